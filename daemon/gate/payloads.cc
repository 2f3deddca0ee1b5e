// SPDX-License-Identifier: Apache-2.0

#include "daemon/gate/payloads.h"

#include <errno.h>
#include <unistd.h>

#include "ipc/limits.h"
#include "ipc/rpc/fault.h"
#include "kernel/pal/memfd.h"

namespace djinn::gate {
namespace {

// A request has no more of them, and one is on its way at a time.
constexpr size_t kPayloadsMax = limits::kControlDescriptors;

}  // namespace

Result<Fd>& Payloads::of(uint64_t id) {
  if (const auto found = payloads_.find(id); found != payloads_.end()) return found->second;
  if (payloads_.size() >= kPayloadsMax) {
    rpc::raise(rpc::breach("Too many payloads wait for their request."));
  }
  return payloads_.emplace(id, pal::make_memfd("djinn-payload", 0)).first->second;
}

void Payloads::add(uint64_t id, std::span<const std::byte> bytes) {
  Result<Fd>& payload = of(id);
  while (payload && !bytes.empty()) {
    const ssize_t written = ::write(payload->get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      payload = system_error("keep what the client sends", errno);
    } else {
      bytes = bytes.subspan(static_cast<size_t>(written));
    }
  }
}

Result<Fd> Payloads::take(uint64_t id) {
  Result<Fd> payload = std::move(of(id));
  payloads_.erase(id);
  if (payload) DJINN_CHECK(pal::seal_content(*payload));
  return payload;
}

}  // namespace djinn::gate
