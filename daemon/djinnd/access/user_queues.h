// SPDX-License-Identifier: Apache-2.0

// UserQueues: work whose length is that of what a user sent, off the loop: one piece after the
// other for each user, on a thread of the user's own (user_thread.h).
//
//   work        done on the thread
//   then        called on the loop with what the work gave, or with why it could not be begun
//   is_wanted   asked on the loop before the work is begun: whose waiter has gone is forgotten
//
// invariant: of each user, one piece at most is between its beginning and the end of its `then`: so
// results do not pile up before the loop, and nobody's keep it from another user.
// Nothing is called on the loop once this is destroyed.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "daemon/djinnd/loop/inbox.h"
#include "daemon/djinnd/loop/user_thread.h"
#include "kernel/base/owner.h"
#include "kernel/base/result.h"

namespace djinn::daemon {

class UserQueues {
 public:
  explicit UserQueues(Loop& loop) : done_(loop) {}

  // work: Result<T>(); then: void(Result<T>). Captures may be destroyed on either thread.
  template <typename Work, typename Then>
  void run(
      Owner user, Work work, Then then, std::function<bool()> is_wanted = [] { return true; }) {
    using Given = decltype(work());
    auto task = std::make_shared<std::pair<Work, Then>>(std::move(work), std::move(then));
    add(user, {[task]() -> std::function<void()> {
                 auto given = std::make_shared<Given>(task->first());  // closures are copied
                 return [task, given] { task->second(std::move(*given)); };
               },
               [task](const Error& error) { task->second(error); }, std::move(is_wanted)});
  }

 private:
  struct Piece {
    std::function<std::function<void()>()> work;  // gives what is to be called on the loop
    std::function<void(const Error&)> refuse;
    std::function<bool()> is_wanted;
  };
  static constexpr int kNice = 5;  // the loop's own thread comes first
  struct Queue {
    std::shared_ptr<UserThread> thread = std::make_shared<UserThread>("user's work", kNice);
    std::deque<Piece> waiting;
    bool busy = false;  // a piece is under way, or refused
  };
  void add(Owner user, Piece piece);
  void begin_next(Owner user);
  void forget_idle();

  std::map<Owner, Queue> queues_;
  Inbox done_;
};

}  // namespace djinn::daemon
