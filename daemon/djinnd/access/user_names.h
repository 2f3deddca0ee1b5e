// SPDX-License-Identifier: Apache-2.0

// UserNames: what owners are called. The system's user database may be far away and slow, so a
// thread asks it, once for each user, and who wants a name waits, for a moment. A principal has the
// name that djinn-gate said.
//
//   known     what the database said: a name, or that there is none
//   waiting   who wants names that are being looked up
//
// invariant: nobody waits longer than kPatienceMs; then a user is called by their number.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "daemon/djinnd/access/principals.h"
#include "daemon/djinnd/loop/background.h"
#include "daemon/djinnd/loop/inbox.h"
#include "daemon/djinnd/loop/loop.h"
#include "kernel/base/clock.h"
#include "kernel/base/owner.h"

namespace djinn::daemon {

class UserNames {
 public:
  static constexpr uint64_t kPatienceMs = 1000;
  // Users that are remembered; then all are forgotten.
  static constexpr size_t kKnownMax = 4096;
  // Users that wait for their turn to be looked up.
  static constexpr size_t kBacklogMax = 1024;

  // Any thread; may take its time. Nothing: the database did not answer. Its answer for a user who
  // has no name is the number.
  using Lookup = std::function<std::optional<std::string>(uid_t)>;

  UserNames(Loop& loop, const Clock& clock, const Principals& principals,
            Lookup lookup = look_up_user);

  // Calls back when all of them are known, at once if they are.
  void when_known(const std::set<Owner>& users, std::function<void()> then);
  // Has the name looked up, for whoever wants it later.
  void want(Owner user);
  // The number of one that is not known.
  [[nodiscard]] std::string of(Owner user) const;

  static std::optional<std::string> look_up_user(uid_t user);

 private:
  struct Waiting {
    std::set<Owner> users;
    uint64_t until_ns;
    std::function<void()> then;
  };

  void look_up(Owner user);
  void found(Owner user, const std::optional<std::string>& name);
  void serve();

  const Clock& clock_;
  const Principals& principals_;
  Lookup lookup_;
  [[nodiscard]] bool is_missing(Owner user) const;

  std::map<Owner, std::string> known_;
  std::set<Owner> asked_;
  std::list<Waiting> waiting_;
  Timer patience_;
  Inbox answers_;
  Background thread_;
};

}  // namespace djinn::daemon
