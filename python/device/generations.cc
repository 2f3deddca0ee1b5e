// SPDX-License-Identifier: Apache-2.0

#include "python/device/generations.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "python/device/errors.h"
#include "python/device/interruption.h"

namespace djinn::device {
namespace {

// Holds how many calls of on_tokens this thread is inside of, and whether it waited there.
struct Following {
  int depth = 0;
  bool waited = false;
};
thread_local Following following;

// Marks that this thread is inside a call of on_tokens.
class Inside {
 public:
  Inside() : outer_(std::exchange(following, {following.depth + 1, false})) {}
  ~Inside() { following = outer_; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  [[nodiscard]] static bool waited() { return following.waited; }

 private:
  const Following outer_;
};

}  // namespace

bool Generations::any() const {
  return any_through(std::numeric_limits<client::Run>::max());
}

bool Generations::any_through(client::Run run) const {
  return std::ranges::any_of(followed_, [&](const auto& one) {
    const auto& [session, generation] = one;
    return session_.has_link() && session == storages().session() && generation <= run &&
           !session_.client().is_complete(generation);
  });
}

// Takes what has arrived, or sleeps until something may have; one thread sleeps for all. Others
// have the lock in the meantime, so the session may have ended.
void Generations::take_arrivals(Turn& turn, uint64_t session) {
  client::Client& client = session_.link_of(session).client();
  if (take(client.poll())) return arrived_.notify_all();
  if (one_sleeps_) {
    arrived_.wait_for(turn.lock(), kSlice);
    return;
  }
  auto bells = client.begin_sleep();
  if (!bells) return;
  one_sleeps_ = true;
  {
    const Turn::Pause pause(turn);
    client::Client::sleep(*bells, static_cast<int>(kSlice.count()));
  }
  one_sleeps_ = false;
  arrived_.notify_all();
  if (session != storages().session() || session_.is_orphan()) return;
  // Runs that were done before djinnd ended are in the ring, and count.
  if (!client.end_sleep(*bells) && !take(client.poll())) session_.notice_end();
}

void Generations::wait(Turn& turn) {
  if (!any()) return;
  if (following.depth > 0) following.waited = true;
  const uint64_t session = storages().session();
  const auto settled = [this](size_t* waiting) {
    --*waiting;
    arrived_.notify_all();
  };
  ++settling_;
  const std::unique_ptr<size_t, decltype(settled)> settling(&settling_, settled);
  Interruption interruption(Interruption::Place::kWithoutLock);
  while (any() && session == storages().session()) {
    take_arrivals(turn, session);
    const Turn::Pause pause(turn);
    if (interruption()) interruption.raise_again();
  }
}

void Generations::wait_until(Turn& turn, const std::function<bool(Link&)>& holds) {
  const uint64_t session = storages().session();
  Interruption interruption(Interruption::Place::kWithoutLock);
  while (session == storages().session() && session_.live() != nullptr &&
         !holds(*session_.live())) {
    if (following.depth > 0 && any()) following.waited = true;
    take_arrivals(turn, session);
    const Turn::Pause pause(turn);
    if (interruption()) interruption.raise_again();
  }
}

bool Generations::make_way(Turn& turn, uint64_t bytes, size_t runs) {
  if (!any() || session_.client().has_room(bytes, runs)) return false;
  wait(turn);
  return true;
}

// In the child of a fork this ends, because none of the threads that waited are there.
void Generations::queue_up(Turn& turn) {
  if (following.depth > 0 && any()) following.waited = true;
  Interruption interruption(Interruption::Place::kWithoutLock);
  while (settling_ > 0 && !session_.is_orphan()) {
    arrived_.wait_for(turn.lock(), kSlice);
    const Turn::Pause pause(turn);
    if (interruption()) interruption.raise_again();
  }
}

Followed Generations::follow(Turn& turn, uint64_t session, const Start& start,
                             const OnTokens& on_tokens) {
  const std::pair own(session, take(start(session_.link_of(session))));
  const client::Run run = own.second;
  const auto forget = [this](const auto* one) { followed_.erase(*one); };
  const std::unique_ptr<const std::pair<uint64_t, client::Run>, decltype(forget)> known(&own,
                                                                                        forget);
  followed_.insert(own);
  Interruption interruption(Interruption::Place::kWithoutLock);
  Followed followed;
  bool goes_on = true;
  bool cancelled = false;
  for (;;) {
    if (session != storages().session()) interruption.raise_again();  // before what ended it
    client::Client& client = session_.link_of(session).client();
    const std::vector<client::TokenEvent> tokens = client.take_tokens(run);
    if (tokens.empty() && client.is_complete(run)) break;
    if (goes_on) {
      const Turn::Pause pause(turn);
      const Inside inside;
      goes_on = (tokens.empty() || on_tokens(tokens)) && !interruption();
      followed.waited = followed.waited || Inside::waited();
    } else if (!cancelled && client.is_oldest(run)) {  // others' runs are not given up with it
      client.cancel_through(run);
      cancelled = true;
    }
    if (tokens.empty()) take_arrivals(turn, session);
  }
  followed.outcome = take(session_.client().wait(run));
  interruption.raise_again();
  return followed;
}

}  // namespace djinn::device
