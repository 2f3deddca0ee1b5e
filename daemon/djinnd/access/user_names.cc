// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/access/user_names.h"

#include <errno.h>
#include <fmt/format.h>
#include <pwd.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "kernel/base/assert.h"
#include "kernel/base/clock.h"

namespace djinn::daemon {
namespace {

constexpr size_t kUserEntryBytes = 1024;
// A larger entry counts as missing.
constexpr size_t kUserEntryBytesMax = size_t{1} << 20;

}  // namespace

std::optional<std::string> UserNames::look_up_user(uid_t user) {
  for (size_t bytes = kUserEntryBytes; bytes <= kUserEntryBytesMax; bytes *= 2) {
    std::vector<char> buffer(bytes);
    passwd entry{};
    passwd* found = nullptr;
    const int failed = ::getpwuid_r(user, &entry, buffer.data(), buffer.size(), &found);
    if (found != nullptr) return std::string(found->pw_name);
    if (failed == ERANGE) continue;
    // The manual names many error numbers for "no such user". These mean that the question was not
    // answered.
    const bool no_answer = failed == EIO || failed == EMFILE || failed == ENFILE ||
                           failed == ENOMEM || failed == EINTR || failed == EAGAIN;
    if (no_answer) return std::nullopt;
    break;
  }
  return fmt::format("{}", user);
}

UserNames::UserNames(Loop& loop, const Clock& clock, const Principals& principals, Lookup lookup)
    : clock_(clock),
      principals_(principals),
      lookup_(std::move(lookup)),
      patience_(loop, [this] { serve(); }),
      answers_(loop),
      thread_("user names", kBacklogMax) {}

void UserNames::when_known(const std::set<Owner>& users, std::function<void()> then) {
  DJINN_ASSERT(then != nullptr);
  std::set<Owner> missing;
  std::ranges::copy_if(users, std::inserter(missing, missing.end()),
                       [this](Owner user) { return is_missing(user); });
  if (missing.empty()) return then();
  for (const Owner user : missing) look_up(user);
  const uint64_t until_ns = clock_.monotonic_ns() + kPatienceMs * kNsPerMs;
  waiting_.push_back({std::move(missing), until_ns, std::move(then)});
  if (!patience_.active()) patience_.start_once(kPatienceMs);
}

void UserNames::want(Owner user) {
  if (is_missing(user)) look_up(user);
}

std::string UserNames::of(Owner user) const {
  const auto found = known_.find(user);
  if (found != known_.end()) return found->second;
  std::string principal = principals_.name_of(user);
  return principal.empty() ? fmt::format("{}", user.number()) : principal;
}

// The user database knows local users alone.
bool UserNames::is_missing(Owner user) const {
  return user.user().has_value() && !known_.contains(user);
}

void UserNames::look_up(Owner user) {
  if (asked_.contains(user)) return;
  DJINN_ASSERT(user.user().has_value());
  const uid_t uid = *user.user();
  const bool asked = thread_.post([this, user, uid, lookup = lookup_, to = answers_.sender()] {
    to.send([this, user, name = lookup(uid)] { found(user, name); });
  });
  if (asked) asked_.insert(user);
}

void UserNames::found(Owner user, const std::optional<std::string>& name) {
  DJINN_ASSERT(asked_.contains(user));
  asked_.erase(user);
  for (Waiting& one : waiting_) one.users.erase(user);
  if (name) {  // else it is asked again when somebody wants it
    if (known_.size() >= kKnownMax) known_.clear();
    known_[user] = *name;
  }
  DJINN_ASSERT(known_.size() <= kKnownMax);
  serve();
}

// Calls those whose users' names are known by now, and those who have waited long enough.
void UserNames::serve() {
  const uint64_t now_ns = clock_.monotonic_ns();
  std::list<Waiting> due;
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    const auto one = next++;
    if (one->users.empty() || one->until_ns <= now_ns) due.splice(due.end(), waiting_, one);
  }
  for (const Waiting& one : due) one.then();
  if (waiting_.empty()) return;
  const uint64_t until_ns = waiting_.front().until_ns;  // the first to lose patience
  patience_.start_once((until_ns - std::min(until_ns, now_ns)) / kNsPerMs + 1);
}

}  // namespace djinn::daemon
