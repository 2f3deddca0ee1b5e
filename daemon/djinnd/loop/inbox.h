// SPDX-License-Identifier: Apache-2.0

// Inbox: what threads want called on the loop, which may be gone by then.
//
//   sender    for threads; it may outlive the inbox, and what is sent then is dropped
//
// invariant: functions are called on the loop, outside of every other function of it, in the order
// of their coming; none once the inbox is destroyed.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "daemon/djinnd/loop/loop.h"

namespace djinn::daemon {

class Inbox {
  struct Shared {
    std::mutex mutex;
    std::vector<std::function<void()>> calls;
    Wake* wake = nullptr;  // null: nobody listens any more
  };

 public:
  class Sender {
   public:
    // Any thread; never waits.
    void send(std::function<void()> call) const;

   private:
    friend class Inbox;
    explicit Sender(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
    std::shared_ptr<Shared> shared_;
  };

  explicit Inbox(Loop& loop);
  ~Inbox();
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  [[nodiscard]] Sender sender() const { return Sender(shared_); }

 private:
  void take();

  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  Wake wake_;
};

}  // namespace djinn::daemon
