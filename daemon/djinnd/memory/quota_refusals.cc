// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/memory/quota_refusals.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "daemon/djinnd/loop/log.h"
#include "ipc/codec/control_codec.h"

namespace djinn::daemon {
namespace {

constexpr uint64_t kOftenNs = 10'000'000'000;

}  // namespace

void QuotaRefusals::note(Owner user, DeviceId device, SessionId session, const Status& status) {
  if (status || status.error().code != ErrorCode::kQuotaExceeded) return;
  const uint64_t now_ns = clock_.monotonic_ns();
  const auto [told, is_first] = told_ns_.try_emplace({user, session}, now_ns);
  if (!is_first && now_ns - told->second < kOftenNs) return;
  told->second = now_ns;
  const std::string name = events_.user_text(user);
  Event event = device_event(
      device, EventKind::kMemoryRefused,
      session.valid() ? fmt::format("memory is refused to session {} of {}", text_of(session), name)
                      : fmt::format("memory is refused to the worker of {}", name));
  event.owner = user;
  event.session = session;
  event.error = status.error().code;
  event.sentence = ipc::showable_sentence(status.error().message);
  events_.emit_limited(std::move(event));
}

}  // namespace djinn::daemon
