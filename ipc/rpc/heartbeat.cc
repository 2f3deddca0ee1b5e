// SPDX-License-Identifier: Apache-2.0

#include "ipc/rpc/heartbeat.h"

namespace djinn::rpc {

kj::Promise<void> Silence::lasts() {
  const kj::TimePoint end = heard_ + most_;
  if (timer_.now() >= end) return kj::READY_NOW;
  return timer_.atTime(end).then([this] { return lasts(); });
}

}  // namespace djinn::rpc
