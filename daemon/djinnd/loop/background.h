// SPDX-License-Identifier: Apache-2.0

// Background: a thread for what may have to wait for others, so that the loop does not: one piece
// of work after the other, in the order of its coming.
//
//   work      a function; it is called on the thread, and destroyed there
//   backlog   work that has not begun
//
// invariant: nobody who posts ever waits.
// Where no thread can be had, work is done at once by who posts it.
//
// The work that is left at the end is still done, if that takes no more than kPatienceMs. A thread
// that hangs is left behind, and ends with the process: it must touch nothing but what its work
// captured.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "kernel/base/result.h"

namespace djinn::daemon {

// A thread without signals, which are the loop's, and without the loop's higher priority, where a
// service manager gave one (Nice=): it does one user's work, or starts programs. name: 15
// characters at most. Errors: kSystem and its kin.
Result<std::thread> start_thread(const char* name, std::function<void()> work);

class Background {
 public:
  using Work = std::function<void()>;
  static constexpr uint64_t kPatienceMs = 2000;

  // backlog_max: of what may be lost.
  Background(const char* name, size_t backlog_max);
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // False if the backlog is full: the work is lost then, and counted.
  bool post(Work work);
  // Whatever the backlog is: whoever posts so bounds it otherwise.
  void post_surely(Work work);

  [[nodiscard]] size_t backlog() const;
  // Pieces of work that were never done.
  [[nodiscard]] uint64_t lost() const { return lost_; }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Work> backlog;
    bool busy = false;
    bool stopping = false;
  };
  static void run(State& state);

  size_t backlog_max_;
  uint64_t lost_ = 0;
  std::shared_ptr<State> state_ = std::make_shared<State>();
  std::thread thread_;
};

}  // namespace djinn::daemon
