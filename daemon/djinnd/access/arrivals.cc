// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/access/arrivals.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "daemon/djinnd/loop/descriptors.h"
#include "ipc/limits.h"
#include "kernel/base/assert.h"
#include "kernel/base/owner.h"

namespace djinn::daemon {

void Arrivals::connected(Fd socket, const Visitor& visitor) {
  const Owner user = Owner::of_user(visitor.peer.uid);
  const Status may_wait = check_may_wait(socket, user);
  if (!may_wait) return turn_away(std::move(socket), visitor, may_wait.error());
  ++waiting_;
  turns_.owe(user, [this, visitor, shared = std::make_shared<Fd>(std::move(socket))] {
    DJINN_ASSERT(waiting_ > 0);
    --waiting_;
    door_.serve(std::move(*shared), visitor);
  });
}

void Arrivals::too_many(Fd socket, const Visitor& visitor) {
  turn_away(std::move(socket), visitor, out_of_descriptors());
}

void Arrivals::turn_away(Fd socket, const Visitor& visitor, const Error& why) {
  const Turns::Bill bill(turns_, Owner::of_user(visitor.peer.uid));
  door_.turn_away(std::move(socket), visitor, why);
}

Status Arrivals::check_may_wait(const Fd& socket, Owner user) const {
  DJINN_CHECK(check_descriptors_left(socket, waiting_ * kDescriptorsOfSession));
  if (turns_.owed_to(user) < limits::kSessionsPerUser) return {};
  return Error{ErrorCode::kLimitExceeded,
               fmt::format("More than {} connections and answers of one user wait. Ask for less "
                           "at once.",
                           limits::kSessionsPerUser)};
}

}  // namespace djinn::daemon
