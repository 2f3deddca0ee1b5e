// SPDX-License-Identifier: Apache-2.0

// Outbox: sends this worker's events to djinnd, from any thread, one datagram each.
#pragma once

#include "daemon/child/channel.h"
#include "ipc/messages.h"

namespace djinn::worker {

class Outbox {
 public:
  explicit Outbox(child::Channel& channel) : channel_(channel) {}

  // Blocks while djinnd is behind. A djinnd that is gone ends this process too, so errors are not
  // reported: the control loop meets the end of the channel.
  void send(const ipc::WorkerEvent& event);

 private:
  child::Channel& channel_;
};

}  // namespace djinn::worker
