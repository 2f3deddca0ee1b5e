// SPDX-License-Identifier: Apache-2.0

// Generations: those of the device that are under way in djinnd, and who waits for them.
//
//   follow     starts one, and gives its tokens to on_tokens as they come, without the lock
//   wait       until those under way have ended: runs complete in order, so what is handed over now
//              ends behind them
//   wait_until likewise, until something else holds that completions bring about
//   queue_up   those that are asked for while somebody waits begin when that one has what it wants
//
// invariant: nobody waits for room in the ring or in staging, with the lock, that a generation
// keeps: make_way() is called before such a thing is handed over.
// All is called in a turn, which the waits pause.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "python/device/session_life.h"
#include "python/device/turn.h"

namespace djinn::device {

// A generation that has ended.
struct Followed {
  client::Outcome outcome;
  bool waited = false;  // inside of on_tokens for what comes behind it: for its end
};

class Generations {
 public:
  // It may use the device: what must wait there waits for the generation's end. False ends it.
  using OnTokens = std::function<bool(const std::vector<client::TokenEvent>&)>;
  using Start = std::function<Result<client::Run>(Link&)>;

  // session outlives this.
  explicit Generations(SessionLife& session) : session_(session) {}

  // Whether one is under way.
  [[nodiscard]] bool any() const;
  // Whether one is that began before that run, or is it.
  [[nodiscard]] bool any_through(client::Run run) const;
  // Throws what a signal's handler raised.
  void wait(Turn& turn);
  // Waits until that holds for the link, or its session has ended. Throws what a signal's handler
  // raised.
  void wait_until(Turn& turn, const std::function<bool(Link&)>& holds);
  // Waits for them if there is no room for so much beside them. Tells whether it has.
  bool make_way(Turn& turn, uint64_t bytes, size_t runs);
  // Before follow(): waits until nobody waits for generations.
  void queue_up(Turn& turn);
  // Runs one of that session until its end. Where on_tokens says false, or a signal's handler
  // raises something, it is cancelled, once all that was handed over before it is done.
  Followed follow(Turn& turn, uint64_t session, const Start& start, const OnTokens& on_tokens);

 private:
  void take_arrivals(Turn& turn, uint64_t session);

  SessionLife& session_;
  // That are followed, with the session that each is of.
  std::set<std::pair<uint64_t, client::Run>> followed_;
  size_t settling_ = 0;                  // threads that wait for their end
  bool one_sleeps_ = false;              // for completions, without the lock
  std::condition_variable_any arrived_;  // there may be completions, or nobody sleeps for them
};

}  // namespace djinn::device
