// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/loop/turns.h"

#include <algorithm>
#include <utility>

#include "kernel/base/assert.h"

namespace djinn::daemon {

void Turns::note(const std::shared_ptr<Speaker>& speaker) {
  DJINN_ASSERT(speaker != nullptr && speaker->hear != nullptr);
  User& user = users_[speaker->user];
  if (!speaker->waits) user.waiting.push_back(speaker);
  speaker->waits = true;
  if (speaker->rests || rest_of(user, clock_.monotonic_ns()) == 0) return;
  speaker->rests = true;
  speaker->rest_changed();
}

void Turns::owe(Owner user, std::function<void()> work) {
  DJINN_ASSERT(work != nullptr);
  users_[user].owed.push_back(std::move(work));
  due_();
}

size_t Turns::owed_to(Owner user) const {
  const auto found = users_.find(user);
  return found == users_.end() ? 0 : found->second.owed.size();
}

Turns::Bill::Bill(Turns& turns, Owner user)
    : turns_(turns), user_(user), cpu_began_ns_(turns.clock_.thread_cpu_ns()) {}

Turns::Bill::~Bill() {
  turns_.charge(turns_.users_[user_], cpu_began_ns_);
}

std::optional<uint64_t> Turns::take() {
  if (users_.empty()) return std::nullopt;
  std::optional<uint64_t> next_ns;
  for (auto& [id, user] : users_) {
    if (rest_of(user, clock_.monotonic_ns()) == 0) serve(user);
    const uint64_t rest_ns = rest_of(user, clock_.monotonic_ns());
    if (!user.waits()) continue;  // who was deaf meanwhile is not noted for
    next_ns = std::min(rest_ns, next_ns.value_or(rest_ns));
  }
  const uint64_t now_ns = clock_.monotonic_ns();
  std::erase_if(users_, [&](const auto& entry) {
    return !entry.second.waits() && entry.second.even_ns <= now_ns;
  });
  return next_ns;
}

void Turns::serve(User& user) {
  const uint64_t cpu_began_ns = clock_.thread_cpu_ns();
  const uint64_t began_ns = clock_.monotonic_ns();
  uint64_t now_ns = began_ns;
  uint32_t messages = 0;
  uint64_t bytes = 0;
  const auto has_share = [&] {
    return messages < share_.messages && bytes < share_.bytes && now_ns - began_ns < share_.ns;
  };
  while (user.waits() && has_share()) {
    const size_t served = serve_one(user);
    messages += served > 0 ? 1 : 0;
    bytes += served;
    now_ns = clock_.monotonic_ns();
  }
  charge(user, cpu_began_ns);
}

size_t Turns::serve_one(User& user) {
  DJINN_ASSERT(user.waits());
  if (!user.owed.empty()) {
    const auto work = std::move(user.owed.front());
    user.owed.pop_front();
    work();
    return 1;
  }
  const auto speaker = user.waiting.front().lock();
  user.waiting.pop_front();
  if (!speaker) return 0;
  const size_t heard = speaker->hear();
  speaker->waits = heard > 0;
  if (speaker->waits) user.waiting.push_back(speaker);  // it may have more
  if (!speaker->waits && std::exchange(speaker->rests, false)) speaker->rest_changed();
  return heard;
}

void Turns::charge(User& user, uint64_t cpu_began_ns) const {
  const uint64_t cpu_ns = clock_.thread_cpu_ns();
  DJINN_ASSERT(cpu_ns >= cpu_began_ns);
  const uint64_t ns = cpu_ns - cpu_began_ns;
  const uint64_t now_ns = clock_.monotonic_ns();
  const uint64_t even_ns = std::max(user.even_ns, now_ns - ns) + ns * share_.one_in;
  user.even_ns = std::min(even_ns, now_ns + share_.saved_ns + share_.rest_ns);
  DJINN_ASSERT(rest_of(user, now_ns) <= share_.rest_ns);
}

uint64_t Turns::rest_of(const User& user, uint64_t now_ns) const {
  const uint64_t debt_ns = user.even_ns > now_ns ? user.even_ns - now_ns : 0;
  return debt_ns > share_.saved_ns ? debt_ns - share_.saved_ns : 0;
}

}  // namespace djinn::daemon
