// SPDX-License-Identifier: Apache-2.0

// Inquiries: requests that come on no session, and the functions that wait for their answers. D-Bus
// asks so for what a client asks on its socket: who fulfils a request answers both alike.
//
// invariant: an inquiry's waiter has no session, and a number that no other waiting inquiry has.
#pragma once

#include <functional>
#include <map>
#include <utility>

#include "daemon/djinnd/access/replies.h"
#include "kernel/base/assert.h"

namespace djinn::daemon {

class Inquiries {
 public:
  using Answered = std::function<void(const ipc::DaemonReply&)>;

  // Whom to answer. `answered` is called once at most, possibly before what is asked returns.
  [[nodiscard]] Waiter ask(Answered answered) {
    DJINN_ASSERT(answered != nullptr);
    do {
      ++last_;
    } while (last_ == 0 || waiting_.contains(last_));
    waiting_[last_] = std::move(answered);
    return {SessionId{}, last_};
  }

  void answer(uint32_t number, const ipc::DaemonReply& reply) {
    auto found = waiting_.extract(number);
    if (!found.empty()) found.mapped()(reply);
  }

  [[nodiscard]] size_t waiting() const { return waiting_.size(); }

 private:
  std::map<uint32_t, Answered> waiting_;
  uint32_t last_ = 0;
};

}  // namespace djinn::daemon
