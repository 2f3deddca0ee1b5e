// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/simulation/successors.h"

#include <fmt/format.h>

#include <utility>

#include "daemon/djinnd/simulation/daemon_for_tests.h"
#include "kernel/base/clock.h"

namespace djinn::daemon::simulation {

using Access = DaemonForTests;

namespace {

constexpr uint64_t kSuccessorNs = 10'000 * kNsPerMs;

}  // namespace

void Successors::note_losses() {
  const Sessions& sessions = Access::sessions(daemon_);
  std::set<SessionId> attached;
  for (const auto& [id, session] : sessions.all()) {
    if (session->attached) attached.insert(id);
  }
  for (const SessionId id : attached_) {
    if (!attached.contains(id)) lost_ns_[id] = machine_.monotonic_ns();
  }
  std::erase_if(lost_ns_, [&](const auto& lost) {
    return attached.contains(lost.first) || sessions.find(lost.first) == nullptr;
  });
  attached_ = std::move(attached);
}

// When a session's worker was lost is put right meanwhile, where djinnd notes it.
uint64_t Successors::groups_soon() {
  Sessions& sessions = Access::sessions(daemon_);
  std::map<SessionId, uint64_t> noted_ns;
  for (const auto& [id, session] : sessions.all()) {
    const auto lost = lost_ns_.find(id);
    noted_ns[id] =
        std::exchange(session->lost_worker_ns, lost == lost_ns_.end() ? 0 : lost->second);
  }
  const DeviceId device = Access::memory_of(judged_).device();
  const uint64_t bytes = sessions.sequences().spill().evictable_soon_bytes(device);
  for (const auto& [id, session] : sessions.all()) session->lost_worker_ns = noted_ns.at(id);
  return bytes;
}

// Nothing gives way for what is asked for here: it is more than what is there.
std::optional<std::string> Successors::check() {
  note_losses();
  const Memory& memory = Access::memory_of(judged_);
  if (lost_ns_.empty() || memory.waiting() > 0) return std::nullopt;
  const Spill& spill = Access::sessions(daemon_).sequences().spill();
  const uint64_t unspilled = Access::possible_bytes(daemon_, judged_);
  const uint64_t here = unspilled + spill.evictable_bytes(memory.device());
  const uint64_t soon = unspilled + groups_soon();
  for (const uint64_t bytes : {here + 1, soon + 1}) {
    const bool waits = judged_.make_room(bytes);
    if (waits == (bytes <= soon)) continue;
    return fmt::format("who asks for {} bytes of {} {}, and {} are there and {} come soon", bytes,
                       text_of(memory.device()), waits ? "waits" : "is refused", here, soon - here);
  }
  return std::nullopt;
}

}  // namespace djinn::daemon::simulation
