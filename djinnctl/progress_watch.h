// SPDX-License-Identifier: Apache-2.0

// ProgressWatch: shows the progress of a request while this thread waits for its answer.
//
//   const ProgressWatch watch(invocation, label, look);
//   return client.evict(...);
//
// A thread of its own looks every 50 ms, which takes a connection of its own. Nothing happens where
// no line can be rewritten, nor with --quiet.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "djinnctl/command_line.h"
#include "djinnctl/progress.h"

namespace djinn::ctl {

class ProgressWatch {
 public:
  // How far it is, asked of client; nothing while that is not known. Called on the watch's thread.
  using Look = std::function<std::optional<ProgressLook>(client::Client& client)>;

  ProgressWatch(const Invocation& invocation, const std::string& label, Look look);
  // Clears the line.
  ~ProgressWatch();
  ProgressWatch(const ProgressWatch&) = delete;
  ProgressWatch& operator=(const ProgressWatch&) = delete;

 private:
  std::jthread thread_;
};

}  // namespace djinn::ctl
