// SPDX-License-Identifier: Apache-2.0

// Queue: which session's step a lane takes next. It computes no step and reads no clock.
//
//   account   a session. Its virtual time is what it was given, divided by its weight: 4, 2 and 1
//             for interactive, normal and batch. Accounts of the class idle are picked only while
//             no other is ready
//   active    ready, or picked and not charged yet
//   V         the mean virtual time of the active accounts, each as often as its weight says: who
//             is behind it is owed something (its lag is positive)
//   deadline  when a step should be over: virtual time + request / weight
//   unit      20 ms: what an account that wakes may be owed. One that was away for a moment only
//             keeps what it is owed, up to the longest of the last steps
//   request   what a step is counted upon to want: what it is predicted to take, if that is sure
//   slice     a run that can be paused is picked for a unit, or less if less is owed to it, and
//             then again. A step that is likely to be long is such a run, and its request is a unit
//   held      ready, but its step is long, and another run is in the midst of its slices: one is
//             enough. Who is held lends that one its weight, and is not active. When it is let go
//             all others owe it what they did before, a unit at most, and the lent time is owed by
//             the run that had it
//   borrowed  that time, of the run and of its lenders: for each long step a unit of it at most is
//             paid back, so that runs of all lengths get the same time, and no short step waits
//             longer for that
//   lingers   for a moment after its step an account with nothing ready: its client is just reading
//             the result. A long step waits for it where its next one would come before, for a
//             twentieth of the long step's time at most. That time is charged to who is waited for
//   company   of a step with a batch key: an account whose client has the loop, that is whose steps
//             of this key came one submission at a time, each so long after the last step of the
//             account (its gap). Two of them would compute by turns for ever, each beginning while
//             the other's client is away. So `fair` lets the step wait for its company, where that
//             usually comes within a quarter of the time that a step of it takes: for two gaps, or
//             that quarter. That time is charged likewise. Who has no company never waits for it.
//             Company that is ready with a short step of another kind, behind which its next one of
//             this key comes, does that first, as long as it is ahead of the step's account by no
//             more than a step and that quarter
//
// Lanes and forecasts call it as turns.h does; djinnd's simulated lane does so by itself.
//
// Two policies. `fair`: of the ready accounts whose lag is not negative, the one with the earliest
// deadline (EEVDF: Stoica, Abdel-Wahab, "Earliest Eligible Virtual Deadline First", 1995). A long
// step so waits until those that the last one kept waiting have had as much. `fifo`: in the order
// in which submissions came; one of several steps goes on until its end.
//
// Virtual nanoseconds are those of an interactive account: to others a nanosecond is 2 or 4.
// All calls but ready_with(), begin_slices(), the end of slices, picked(), remove() and decisions()
// take O(log n), averaged over a series of them; so do charges, but for a run that has slices,
// which look at who is held; is_worth_waiting() more, by the accounts that have had the key of the
// step that is next. Not thread-safe: one lane's. A copy is a queue of its own (forecast.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "kernel/base/clock.h"
#include "kernel/base/ids.h"
#include "kernel/base/schedule.h"

namespace djinn::sched {

inline constexpr uint64_t kUnitNs = 20 * kNsPerMs;
inline constexpr uint64_t kLingerNs = kNsPerMs / 2;

// What a ready session's next step is to its last one.
enum class Arrival : uint8_t {
  kWoke,     // it had nothing to do in between
  kNext,     // the first of another submission, which was there already, or a moment later
  kGoesOn,   // of the same submission
  kResumes,  // likewise, but it could not go on in between
  kAgain,    // the last one itself, which was given up
};

struct ReadyStep {
  SessionId session;
  Arrival arrival = Arrival::kWoke;
  uint64_t predicted_ns = 0;
  uint64_t batch_key = 0;  // steps of one key could be taken as one; 0: it is taken alone
  bool is_long = false;    // it has slices, or would have: while another has, it is held
  bool is_sure = true;     // of the prediction. What may be wrong is counted upon to want a unit
};

struct Decision {
  uint64_t number = 0;  // from 1, of all that this queue took
  SessionId session;
  ServiceClass service = ServiceClass::kNormal;
  PickReason reason = PickReason::kOnly;
  uint64_t at_ns = 0;         // in the caller's clock
  uint64_t ready = 0;         // how many were, itself included
  int64_t lag_ns = 0;         // virtual; negative: it had more than its share
  int64_t deadline_ns = 0;    // virtual, from V
  uint64_t predicted_ns = 0;  // of the step; of a slice behind the first: what the slice may take
  uint64_t measured_ns = 0;   // 0: not charged yet
  SessionId paused{};         // whose run was paused meanwhile; none: invalid
  friend bool operator==(const Decision&, const Decision&) = default;
};
inline constexpr size_t kDecisions = 256;

class Queue {
 public:
  explicit Queue(SchedulePolicy policy) : policy_(policy) {}

  [[nodiscard]] SchedulePolicy policy() const { return policy_; }

  // An account that was owed nothing so far. Of what steps of those who left had beyond their
  // shares it owes the longest of the last ones at most: to come again for each is no way around
  // one's share. What was borrowed for runs its lenders are still owed. Precondition: the session
  // has none.
  void add(SessionId session, ServiceClass service);
  // Also one that is ready or picked. Of a session without account: nothing.
  void remove(SessionId session);

  // Precondition: the session has an account, which is neither active nor held.
  void enqueue(const ReadyStep& step, uint64_t now_ns);
  // The session whose step is next, at now_ns: charge() it, or remove() it. Nobody: none is ready.
  std::optional<SessionId> pick(uint64_t now_ns);
  // The step of a picked session is over, for now at least, and took so long, beside what it was
  // charged for already. It is not active.
  // ended_ns: when, where that is later than so long after the pick: it shared its step with
  // others.
  void charge(SessionId session, uint64_t measured_ns, std::optional<uint64_t> ended_ns = {});

  // To judge whether the session's step can begin in time took so long, from begun_ns on; arrival
  // is the step's, which comes next or is refused. Whoever makes the lane do so pays for it, also
  // where nothing comes of it. Precondition: the session's account is neither active nor held.
  void charge_judging(SessionId session, Arrival arrival, uint64_t begun_ns, uint64_t took_ns);

  // Precondition, of these two: the session has an account.
  [[nodiscard]] ServiceClass service_of(SessionId session) const {
    return accounts_.at(session).service;
  }
  // The account had more than its share, by so much that its next step waits for more than a unit
  // where others have work.
  [[nodiscard]] bool owes_a_unit(SessionId session) const;

  // One can be picked.
  [[nodiscard]] bool has_ready() const { return ready_ > 0; }
  // Whether to wait, before pick(), for one that lingers, or for company; ask again until it is
  // ready or this says no.
  [[nodiscard]] bool is_worth_waiting(uint64_t now_ns);
  // Of the ready ones those with this batch key, which is not 0: who is owed most comes first, or,
  // of fifo, whose submission came first.
  [[nodiscard]] std::vector<SessionId> ready_with(uint64_t batch_key) const;
  // Picks that session, which is ready and will share the step of the one picked last.
  void join(SessionId session, uint64_t now_ns);

  // --- a run that goes on for longer than a unit; of `fair` alone
  // The picked session's run has slices from now on: those whose steps are long are held until it
  // is charged or removed. Precondition: no other's has.
  void begin_slices(SessionId session);
  [[nodiscard]] bool has_slices() const { return slicing_.valid(); }
  // It has taken so long since it was picked, or since this was called last. It stays picked.
  void charge_running(SessionId session, uint64_t measured_ns);
  // It is charged for all, and ready for its next slice: pick() or resume() it.
  void end_slice(SessionId session);
  // How long the slice of the run that was picked may be: until it is owed nothing, but a quarter
  // of a unit at least, and a unit at most.
  [[nodiscard]] uint64_t slice_ns() const;
  // Picks it, whosever turn it is.
  void resume(SessionId session, uint64_t now_ns);
  // The run with slices is of the class idle, and one of another class is held: to give it up, and
  // to begin it again when no other can run, is what its class is for.
  [[nodiscard]] bool must_give_up() const;
  // Empty where no run has slices.
  [[nodiscard]] const std::set<SessionId>& held() const { return held_; }
  // Its step, if it is held, is not long any more.
  void let_go(SessionId session);
  // Likewise, and it is given up: what was lent meanwhile for a step that nobody wants is no debt.
  void withdraw(SessionId session);

  // Those that were picked and not charged yet, and the one whose run has slices, or none.
  [[nodiscard]] std::vector<SessionId> picked() const;
  [[nodiscard]] SessionId slicing() const { return slicing_; }

  // The last kDecisions ones, the oldest first.
  [[nodiscard]] std::vector<Decision> decisions() const;

 private:
  friend struct QueueForTests;
  enum class Place : uint8_t { kAsleep, kReady, kPicked, kHeld };
  struct Account {
    ServiceClass service = ServiceClass::kNormal;
    Place place = Place::kAsleep;
    bool is_eligible = false;  // ready, and in Band::eligible
    bool is_long = false;
    int64_t lent = 0;                 // weight that it has of those that are held
    int64_t borrowed_ns = 0;          // virtual; negative: what others had of it
    int64_t held_lag_ns = 0;          // virtual: what it was owed when it was held
    int64_t borrowed_at_hold_ns = 0;  // likewise
    int64_t virtual_ns = 0;
    int64_t deadline_ns = 0;
    uint64_t came = 0;          // the how-manieth submission it is in
    uint64_t predicted_ns = 0;  // of the step, or of a slice behind the first
    uint64_t request_ns = 0;    // what it is counted upon to want of that
    uint64_t batch_key = 0;
    uint64_t decision = 0;  // the number of its last one
    uint64_t picked_ns = 0;
    uint64_t slept_ns = 0;  // when its last step was over; 0: it had none
    uint64_t company = 0;   // the batch key of the last step that came by itself; 0: none did
    uint64_t gap_ns = 0;    // from the step before to such a one, a mean
    uint64_t keyed_ns = 0;  // how long its last step with a batch key took, with those of others
  };
  using Order = std::set<std::pair<int64_t, SessionId>>;
  // Accounts that are picked before the others, or after them.
  struct Band {
    Order waiting;   // by virtual time; fifo has none
    Order eligible;  // by deadline, or by arrival. Some may have become ineligible since
    // invariant: weighted_ns == the sum of weight * (virtual time - base_ns) over active accounts
    int64_t base_ns = 0;
    int64_t weights = 0;
    int64_t weighted_ns = 0;
    int64_t left_ns = 0;  // the latest virtual time of an account that was removed

    void enter(int64_t weight, int64_t virtual_ns);
    void leave(int64_t weight, int64_t virtual_ns);
    [[nodiscard]] int64_t now_ns() const;  // V
    [[nodiscard]] size_t ready() const { return waiting.size() + eligible.size(); }
  };

  static size_t band_number(ServiceClass service) { return service == ServiceClass::kIdle; }
  Band& band_of(const Account& account) { return bands_[band_number(account.service)]; }
  [[nodiscard]] const Band& band_of(const Account& account) const {
    return bands_[band_number(account.service)];
  }
  Account& account_of(SessionId session);
  void place(SessionId session, Account& account);
  void unplace(SessionId session, Account& account);
  void activate(SessionId session, Account& account);
  void hold(SessionId session, Account& account, int64_t v);
  void lend(const Account& held, int64_t weight);
  void note_borrowed(Account& account, int64_t virtual_ns);
  void release(const std::vector<SessionId>& sessions, int64_t v);
  void pay_back(Account& account, int64_t most_ns);
  void forget_loans(const Account& leaving);
  void end_slices();
  void add_time(Account& account, uint64_t measured_ns);
  [[nodiscard]] static int64_t weight_of(const Account& account);
  [[nodiscard]] static int64_t virtual_of(uint64_t ns, const Account& account);
  SessionId first_of(Band& band);
  void note_gap(const ReadyStep& step, Account& account, uint64_t now_ns);
  [[nodiscard]] SessionId company_of(const Account& first, uint64_t now_ns);
  [[nodiscard]] SessionId ready_company_of(const Account& first);
  void forget_lingering(uint64_t now_ns);
  void charge_wait(uint64_t now_ns);
  // The account, if it lingers since then.
  Account* lingering(SessionId session, uint64_t slept_ns);
  [[nodiscard]] bool comes_before(const Account& account, const Account& first);
  [[nodiscard]] int64_t credit_max(const Account& account, Arrival arrival) const;
  void forfeit_credit(Account& account, Arrival arrival);
  void take(SessionId session, Account& account, uint64_t at_ns, PickReason reason);
  void deactivate(Account& account);

  SchedulePolicy policy_;
  std::map<SessionId, Account> accounts_;
  std::array<Band, 2> bands_;                             // of idle accounts the second
  std::set<std::pair<uint64_t, SessionId>> by_key_;       // those that are ready
  std::set<std::pair<uint64_t, SessionId>> by_company_;   // of all accounts that have one
  SessionId slicing_;                                     // whose run has slices; none: invalid
  std::set<SessionId> held_;                              // invariant: empty where nobody's has
  std::deque<std::pair<uint64_t, SessionId>> lingering_;  // since when; some may not any more
  SessionId awaited_;                                     // that the lane waits for, or invalid
  uint64_t awaited_ns_ = 0;                               // until when that is charged for
  uint64_t longest_ns_ = 0;                               // of the last steps
  size_t ready_ = 0;
  uint64_t arrivals_ = 0;
  uint64_t decided_ = 0;
  std::array<Decision, kDecisions> decisions_;  // by number, from the oldest's place on
};

}  // namespace djinn::sched
