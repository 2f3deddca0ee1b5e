// SPDX-License-Identifier: Apache-2.0

// WorkQueue: what would make the loop wait, done by a thread, one piece after the other.
//
//   work    called on the thread; what it gives goes to then
//   then    called on the loop, outside of every other function of it
//
// invariant: what is called on the loop comes in the order of the calls here; nothing does once
// this is destroyed. Then the work that is left is done all the same, within Background's patience.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "daemon/djinnd/loop/background.h"
#include "daemon/djinnd/loop/inbox.h"
#include "kernel/base/fd.h"

namespace djinn::daemon {

class WorkQueue {
 public:
  // name: as for Background.
  WorkQueue(Loop& loop, const char* name);

  // work: Result(); then: void(Result). What either has captured may be destroyed on either thread.
  template <typename Work, typename Then>
  void run(Work work, Then then) {
    using Given = decltype(work());
    auto task = std::make_shared<std::pair<Work, Then>>(std::move(work), std::move(then));
    thread_.post_surely([task = std::move(task), to = done_.sender()] {
      auto given = std::make_shared<Given>(task->first());  // closures are copied
      to.send([task, given] { task->second(std::move(*given)); });
    });
  }

  // With the last descriptor the kernel frees the pages of memory or a file without a name, a third
  // of a second for two GiB.
  void close(std::vector<Fd> held, std::function<void()> then);
  void close(Fd held);

 private:
  Inbox done_;
  Background thread_;
};

}  // namespace djinn::daemon
