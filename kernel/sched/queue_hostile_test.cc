// SPDX-License-Identifier: Apache-2.0

// What one of a user's clients can take of the others' time, and by what: each test is a pattern of
// submissions, and says how much it comes to.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "kernel/sched/turns.h"

namespace djinn::sched {
namespace {

// A submission of one step, and what its client does after it.
struct Deed {
  uint64_t ns = 0;
  uint64_t predicted_ns = 0;
  bool is_sure = true;
  bool is_long = false;
  bool can_be_paused = false;
  uint64_t batch_key = 0;
  uint64_t away_ns = 0;             // until the client's next one
  bool is_last = false;             // of its session: the client connects again
  uint64_t cancelled_after_ns = 0;  // since it came; 0: it is not
};

Deed step_of(uint64_t ns, uint64_t away_ns = 0) {
  return {.ns = ns, .predicted_ns = ns, .away_ns = away_ns};
}
Deed run_of(uint64_t ns, uint64_t away_ns = 0) {
  return {.ns = ns,
          .predicted_ns = ns,
          .is_long = ns > 3 * kUnitNs,
          .can_be_paused = true,
          .away_ns = away_ns};
}

// The lane of daemon/worker/lane_loop.h, as far as its order of steps goes: operators take a
// millisecond, and long runs have slices.
class HostileLane {
 public:
  size_t add(std::function<Deed()> next, ServiceClass service = ServiceClass::kNormal) {
    clients_.push_back({std::move(next), service});
    connect(clients_.back());
    return clients_.size() - 1;
  }
  size_t add_always(const Deed& deed, ServiceClass service = ServiceClass::kNormal) {
    return add([deed] { return deed; }, service);
  }

  void run_until(uint64_t end_ns) {
    while (now_ns_ < end_ns) {
      come();
      if (!unit_.empty()) {
        compute();
      } else if (is_wait_next(queue_, now_ns_)) {
        now_ns_ += kNsPerMs / 50;
      } else if (const auto turn = next_turn(queue_, now_ns_)) {
        begin(*turn);
      } else {
        now_ns_ = std::max(now_ns_ + 1, next_arrival_ns());
      }
    }
  }

  [[nodiscard]] double share_of(size_t client) const {
    return static_cast<double>(clients_[client].given_ns) / static_cast<double>(now_ns_);
  }

 private:
  struct Client {
    std::function<Deed()> next;
    ServiceClass service = ServiceClass::kNormal;
    SessionId session{};
    Deed deed{};
    bool is_away = true;
    bool is_held_back = false;
    uint32_t tries_inside = 0;
    uint64_t left_ns = 0;    // of its step
    uint64_t comes_ns = 0;   // when
    uint64_t queued_ns = 0;  // likewise
    uint64_t given_ns = 0;
  };

  Client& of(SessionId session) { return *std::ranges::find(clients_, session, &Client::session); }
  void connect(Client& client) {
    client.session = SessionId{++sessions_};
    queue_.add(client.session, client.service);
  }
  void enqueue(Client& client, Arrival arrival) {
    const Deed& deed = client.deed;
    client.left_ns = deed.ns;
    queue_.enqueue({client.session, arrival, deed.predicted_ns, deed.batch_key,
                    deed.is_long || client.is_held_back, deed.is_sure},
                   now_ns_);
  }
  void submit(Client& client) {
    const bool woke = client.deed.away_ns > kNsPerMs;
    client.deed = client.next();
    client.is_away = client.is_held_back = false;
    client.tries_inside = 0;
    client.queued_ns = now_ns_;
    enqueue(client, woke ? Arrival::kWoke : Arrival::kNext);
  }
  void come() {
    for (Client& client : clients_) {
      if (client.is_away && client.comes_ns <= now_ns_) submit(client);
      const bool is_cancelled = client.deed.cancelled_after_ns != 0 &&
                                now_ns_ >= client.queued_ns + client.deed.cancelled_after_ns;
      if (!is_cancelled || client.is_away) continue;
      queue_.withdraw(client.session);
      client.left_ns = 0;
    }
  }
  [[nodiscard]] uint64_t next_arrival_ns() const {
    uint64_t next_ns = UINT64_MAX;
    for (const Client& client : clients_) next_ns = std::min(next_ns, client.comes_ns);
    return next_ns;
  }

  void begin(const Turn& turn) {
    Client& client = of(turn.session);
    if (turn.kind == TurnKind::kGiveUp) return give_up(client);
    unit_ = unit_of(queue_, turn.session, turn.kind == TurnKind::kStep ? client.deed.batch_key : 0,
                    now_ns_, [](SessionId) { return true; });
    if (turn.kind == TurnKind::kSlice) {
      ends_ns_ = now_ns_ + queue_.slice_ns();
      return;
    }
    const bool is_inside = queue_.has_slices() && unit_.size() == 1;
    const bool may_end_early = is_inside || client.deed.can_be_paused;
    ends_ns_ = may_end_early ? now_ns_ + (kUnitNs << client.tries_inside) : UINT64_MAX;
  }

  // Until the step is over, or the lane asks what is to be next.
  void compute() {
    Client& client = of(unit_.front());
    const uint64_t ns = std::min(client.left_ns, ends_ns_ - now_ns_);
    now_ns_ += ns;
    spent_ns_ += ns;
    client.left_ns -= ns;
    if (client.left_ns == 0) return end_unit();
    if (queue_.has_slices() && queue_.slicing() != client.session) {
      client.is_held_back = true;
      client.tries_inside = std::min(client.tries_inside + 1, 3U);
      return give_up(client);
    }
    ends_ns_ = now_ns_ + kNsPerMs;
    take(client);
    charge_slice(queue_, client.session, std::exchange(spent_ns_, 0));
    come();
    const AfterSlice next = after_slice(queue_);
    if (next == AfterSlice::kIsGivenUp) return give_up(client);
    if (next == AfterSlice::kGoesOn) return;
    queue_.end_slice(client.session);
    unit_.clear();
  }
  void take(Client& client) { client.given_ns += spent_ns_; }

  void give_up(Client& client) {
    unit_.clear();
    take(client);
    queue_.charge(client.session, std::exchange(spent_ns_, 0), now_ns_);
    enqueue(client, Arrival::kAgain);
  }
  void end_unit() {
    const auto unit = std::exchange(unit_, {});
    spent_ns_ /= unit.size();
    for (const SessionId id : unit) {
      Client& client = of(id);
      take(client);
      queue_.charge(id, spent_ns_, now_ns_);
      client.is_away = true;
      client.comes_ns = now_ns_ + client.deed.away_ns;
      if (!client.deed.is_last) continue;
      queue_.remove(id);
      connect(client);
    }
    spent_ns_ = 0;
  }

  Queue queue_{SchedulePolicy::kFair};
  std::deque<Client> clients_;
  uint64_t now_ns_ = kNsPerMs;
  uint64_t sessions_ = 0;
  std::vector<SessionId> unit_;  // whose step is computed
  uint64_t ends_ns_ = 0;         // it is not paused or abandoned before
  uint64_t spent_ns_ = 0;        // on it, and not charged
};

constexpr uint64_t kMsec = kNsPerMs;

Deed unforeseen(Deed deed) {
  deed.predicted_ns = 0;
  deed.is_sure = deed.is_long = false;
  return deed;
}
Deed last_of_its_session(Deed deed) {
  deed.is_last = true;
  return deed;
}
Deed cancelled_after(Deed deed, uint64_t ns) {
  deed.cancelled_after_ns = ns;
  return deed;
}

// The share of a client that always has the same to do, beside others.
double share_beside(const Deed& deed, uint64_t end_ns,
                    const std::function<void(HostileLane&)>& add_others) {
  HostileLane lane;
  const size_t victim = lane.add_always(deed);
  add_others(lane);
  lane.run_until(end_ns);
  return lane.share_of(victim);
}
double share_beside(const Deed& deed, uint64_t end_ns, const Deed& other, size_t others = 1) {
  return share_beside(deed, end_ns, [&](HostileLane& lane) {
    for (size_t i = 0; i < others; ++i) lane.add_always(other);
  });
}

const Deed kToken = step_of(10 * kMsec);
const Deed kPrompt = run_of(100 * kMsec);
constexpr uint64_t kHalfAMinute = 30 * kNsPerSecond;

TEST(HostileClients, one_that_connects_anew_for_each_step_gets_no_more_than_one_that_stays) {
  for (const uint64_t step_ms : {20, 200, 1000}) {
    for (const uint64_t away_ms : {0, 1, 5}) {
      for (const Deed& victim : {kToken, kPrompt}) {
        const Deed step = last_of_its_session(step_of(step_ms * kMsec, away_ms * kMsec));
        for (const Deed& other : {step, unforeseen(step)}) {
          const double share = share_beside(victim, kHalfAMinute, other);
          EXPECT_GE(share, 0.49) << step_ms << " ms, away for " << away_ms;
        }
      }
    }
  }
}

TEST(HostileClients,
     once_one_that_connects_anew_for_each_run_leaves_others_what_one_that_stays_does) {
  for (const uint64_t run_ms : {1000, 10'000}) {
    for (const uint64_t away_ms : {0, 5}) {
      const Deed run = last_of_its_session(run_of(run_ms * kMsec, away_ms * kMsec));
      for (const Deed& victim : {kToken, kPrompt}) {
        for (const Deed& other : {run, unforeseen(run)}) {
          const double share = share_beside(victim, 4 * kHalfAMinute, other);
          EXPECT_GE(share, 0.4) << run_ms << " ms, away for " << away_ms;
        }
      }
    }
  }
}

// That is the price: others' loans are paid by whoever is there.
TEST(HostileClients, who_comes_after_a_run_that_left_waits_no_longer_than_that_let_others_wait) {
  for (const uint64_t run_ms : {200, 1000, 10'000}) {
    for (const Deed& deed : {kToken, kPrompt}) {
      HostileLane lane;
      lane.add_always(kPrompt);
      lane.add_always(last_of_its_session(run_of(run_ms * kMsec, 1000 * kNsPerSecond)));
      const uint64_t run_ends_ns = run_ms * kMsec + 2 * kPrompt.ns;
      lane.run_until(run_ends_ns);
      const size_t comes = lane.add_always(deed);
      lane.run_until(run_ends_ns + run_ms * kMsec + kPrompt.ns);
      EXPECT_GT(lane.share_of(comes), 0) << run_ms << " ms";
    }
  }
}

TEST(HostileClients, runs_that_nobody_could_foresee_leave_other_long_runs_their_part) {
  for (const uint64_t run_ms : {200, 1000, 5000}) {
    for (const Deed& victim : {kToken, kPrompt}) {
      const Deed other = unforeseen(run_of(run_ms * kMsec));
      const double share = share_beside(victim, 2 * kHalfAMinute, other);
      EXPECT_GE(share, 0.4) << run_ms << " ms";
    }
  }
}

TEST(HostileClients, long_runs_leave_those_of_a_hundredth_of_their_length_nearly_as_much_time) {
  for (const uint64_t run_ms : {400, 10'000, 60'000}) {
    const double share = share_beside(kPrompt, 10 * kHalfAMinute, run_of(run_ms * kMsec));
    EXPECT_GE(share, 0.38) << run_ms << " ms";
  }
}

TEST(HostileClients, once_lenders_that_are_cancelled_win_nothing_for_the_run_that_they_lent_to) {
  for (const uint64_t run_ms : {200, 1000, 10000}) {
    const auto add = [&](HostileLane& lane) {
      const Deed run = run_of(run_ms * kMsec);
      lane.add_always(run);
      for (int i = 0; i < 2; ++i) lane.add_always(cancelled_after(run, run.ns * 9 / 10));
    };
    for (const Deed& victim : {kToken, kPrompt}) {
      const double share = share_beside(victim, 5 * kHalfAMinute, add);
      EXPECT_GE(share, 0.2) << run_ms << " ms";
    }
  }
}

TEST(HostileClients, once_no_false_prediction_no_sleep_and_no_number_of_short_steps_wins_time) {
  Deed ends_early = run_of(kMsec);
  ends_early.predicted_ns = 9 * kNsPerSecond;
  ends_early.is_long = true;
  EXPECT_GE(share_beside(kToken, kHalfAMinute, ends_early), 0.49);
  EXPECT_GE(share_beside(kToken, kHalfAMinute, unforeseen(step_of(400 * kMsec))), 0.49);
  EXPECT_GE(share_beside(kToken, kHalfAMinute, step_of(20 * kMsec, 20 * kMsec)), 0.49);
  EXPECT_GE(share_beside(kToken, kHalfAMinute, step_of(kMsec, 2 * kMsec), 8), 0.11);
  EXPECT_GE(share_beside(kToken, kHalfAMinute, step_of(kMsec / 5), 30), 0.03);
}

TEST(HostileClients, a_new_session_waits_for_what_another_that_left_had_no_longer_than_that_took) {
  Queue queue(SchedulePolicy::kFair);
  for (const uint64_t id : {1, 2}) {
    queue.add(SessionId{id}, ServiceClass::kInteractive);
    queue.enqueue({SessionId{id}, Arrival::kWoke, id * kMsec}, 0);
  }
  uint64_t now_ns = 0;
  const auto compute = [&](uint64_t ns) {
    const SessionId id = *queue.pick(now_ns);
    now_ns += ns;
    queue.charge(id, ns);
    return id;
  };
  ASSERT_EQ(compute(50 * kMsec), SessionId{1});
  queue.remove(SessionId{1});
  queue.add(SessionId{3}, ServiceClass::kInteractive);
  queue.enqueue({SessionId{3}, Arrival::kWoke, kMsec}, now_ns);
  uint64_t waited_ns = 0;
  while (compute(5 * kMsec) == SessionId{2}) {
    waited_ns += 5 * kMsec;
    queue.enqueue({SessionId{2}, Arrival::kNext, 5 * kMsec}, now_ns);
  }
  EXPECT_EQ(waited_ns, 50 * kMsec);
}

}  // namespace
}  // namespace djinn::sched
