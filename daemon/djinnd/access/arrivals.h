// SPDX-License-Identifier: Apache-2.0

// Arrivals: who has connected, until their turn comes.
//
//   arrival   a connection that the listener took; it waits for its user's turn (turns.h), since
//             who comes next in the queue of connections may be another user
//   door      who serves it then, or turns it away
//
// invariant: whatever an arrival costs, its refusal too, is charged to its user. Whose one of a
// djinn-gate's is, nobody has said yet: it is its own user's.
// invariant: of one user at most kSessionsPerUser arrivals and answers wait; who comes then is
// turned away at once.
#pragma once

#include <cstddef>

#include "daemon/djinnd/access/visitor.h"
#include "daemon/djinnd/loop/turns.h"
#include "kernel/base/fd.h"
#include "kernel/base/result.h"

namespace djinn::daemon {

class Arrivals {
 public:
  class Door {
   public:
    virtual ~Door() = default;
    // In the user's turn.
    virtual void serve(Fd socket, const Visitor& visitor) = 0;
    virtual void turn_away(Fd socket, const Visitor& visitor, const Error& why) = 0;
  };

  Arrivals(Turns& turns, Door& door) : turns_(turns), door_(door) {}

  void connected(Fd socket, const Visitor& visitor);
  // It was taken with a descriptor that djinnd needs itself.
  void too_many(Fd socket, const Visitor& visitor);

 private:
  [[nodiscard]] Status check_may_wait(const Fd& socket, Owner user) const;
  void turn_away(Fd socket, const Visitor& visitor, const Error& why);

  Turns& turns_;
  Door& door_;
  size_t waiting_ = 0;  // arrivals of all users
};

}  // namespace djinn::daemon
