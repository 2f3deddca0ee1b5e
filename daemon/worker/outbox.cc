// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/outbox.h"

#include "ipc/codec/control_codec.h"

namespace djinn::worker {

void Outbox::send(const ipc::WorkerEvent& event) {
  [[maybe_unused]] const Status sent = channel_.send(ipc::encode(event));
}

}  // namespace djinn::worker
