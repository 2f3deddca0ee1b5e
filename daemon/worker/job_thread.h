// SPDX-License-Identifier: Apache-2.0

// JobThread: a thread that runs posted closures, one after the other in their order.
//
// The destructor waits for the one that runs; those that have not begun are forgotten.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace djinn::worker {

class JobThread {
 public:
  JobThread();
  ~JobThread();

  // Any thread.
  void post(std::function<void()> job);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::function<void()>> jobs_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace djinn::worker
