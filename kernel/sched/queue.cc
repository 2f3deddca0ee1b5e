// SPDX-License-Identifier: Apache-2.0

#include "kernel/sched/queue.h"

#include <algorithm>
#include <cmath>
#include <ranges>
#include <utility>

#include "kernel/base/assert.h"

namespace djinn::sched {
namespace {

constexpr std::array<int64_t, kServiceClasses> kWeights{4, 2, 1, 1};
constexpr int64_t kWeightOfVirtualTime = kWeights[0];
// A step waits for another for one part in so many of its own time, where that is so long that a
// client may answer who had to be woken.
constexpr uint64_t kWaitOfStep = 20;
// A step waits for its company for such a part of its time at most: with that it computes both at
// once, and without it one after the other.
constexpr uint64_t kWaitForCompany = 4;
// A client that was away for longer was not in its loop. It is known again after a few steps.
constexpr uint64_t kGapNsMax = 40 * kNsPerMs;
constexpr uint64_t kGapFades = 4;
constexpr uint64_t kWaitNsMin = 50'000;
constexpr int64_t kSliceNsMin = kUnitNs / 4;
// Who is owed so much has slices of a unit: products of more with weights would overflow.
constexpr int64_t kLagNsMax = 64 * static_cast<int64_t>(kUnitNs);
// A minute: as long as a prompt may take. More is forgotten, on both sides.
constexpr int64_t kBorrowedNsMax = 60 * static_cast<int64_t>(kNsPerSecond);
// A longest step is forgotten when lanes have worked for so many times its length since.
constexpr uint64_t kLongestFades = 64;

// No step takes longer than this, a month; so no sum of virtual times overflows.
constexpr uint64_t kStepNsMax = uint64_t{31} * 24 * 3600 * kNsPerSecond;

int64_t weight_of(ServiceClass service) {
  return kWeights[static_cast<size_t>(service)];
}

// What a step is counted upon to want before it is over or can be paused.
uint64_t request_of(const ReadyStep& step) {
  const bool is_counted_upon = step.is_sure && !step.is_long;
  return is_counted_upon ? step.predicted_ns : std::min(step.predicted_ns, kUnitNs);
}

int64_t floor_of_quotient(int64_t dividend, int64_t divisor) {
  return dividend / divisor - (dividend % divisor < 0 ? 1 : 0);
}

// Those sessions that stand there with this key.
auto with_key(const std::set<std::pair<uint64_t, SessionId>>& sessions, uint64_t key) {
  return std::ranges::subrange(sessions.lower_bound({key, SessionId{}}),
                               sessions.upper_bound({key, SessionId{UINT64_MAX}}));
}

}  // namespace

// --- Band

// The base stays near V, so that the sum stays small whatever the virtual times are.
void Queue::Band::enter(int64_t weight, int64_t virtual_ns) {
  const int64_t v = now_ns();
  weighted_ns -= weights * (v - base_ns);
  base_ns = v;
  weights += weight;
  weighted_ns += weight * (virtual_ns - base_ns);
}

void Queue::Band::leave(int64_t weight, int64_t virtual_ns) {
  DJINN_ASSERT(weights >= weight);
  // Of the last one's time something stays: V does not go back to where it was without it.
  if (weights == weight) base_ns = std::max(base_ns, virtual_ns);
  weights -= weight;
  weighted_ns = weights == 0 ? 0 : weighted_ns - weight * (virtual_ns - base_ns);
}

int64_t Queue::Band::now_ns() const {
  return weights == 0 ? base_ns : base_ns + floor_of_quotient(weighted_ns, weights);
}

// --- Queue

int64_t Queue::weight_of(const Account& account) {
  return sched::weight_of(account.service) + account.lent;
}

int64_t Queue::virtual_of(uint64_t ns, const Account& account) {
  return static_cast<int64_t>(std::min(ns, kStepNsMax)) * kWeightOfVirtualTime / weight_of(account);
}

Queue::Account& Queue::account_of(SessionId session) {
  const auto found = accounts_.find(session);
  DJINN_ASSERT(found != accounts_.end());
  return found->second;
}

void Queue::add(SessionId session, ServiceClass service) {
  DJINN_ASSERT(!accounts_.contains(session));
  Account& account = accounts_[session];
  account.service = service;
  const Band& band = band_of(account);
  const int64_t v = band.now_ns();
  account.virtual_ns = std::max(v, std::min(band.left_ns, v + virtual_of(longest_ns_, account)));
}

void Queue::remove(SessionId session) {
  const auto found = accounts_.find(session);
  if (found == accounts_.end()) return;
  Account& account = found->second;
  if (account.place == Place::kReady) unplace(session, account);
  if (account.place == Place::kHeld) {
    held_.erase(session);
    lend(account, -weight_of(account));
  } else if (account.place != Place::kAsleep) {
    deactivate(account);
  }
  if (session == slicing_) end_slices();
  Band& band = band_of(account);
  band.left_ns = std::max(band.left_ns, account.virtual_ns);
  forget_loans(account);
  by_company_.erase({account.company, session});
  accounts_.erase(found);
}

void Queue::place(SessionId session, Account& account) {
  account.place = Place::kReady;
  Band& band = band_of(account);
  account.is_eligible = policy_ == SchedulePolicy::kFifo || account.virtual_ns <= band.now_ns();
  if (!account.is_eligible) {
    band.waiting.emplace(account.virtual_ns, session);
  } else if (policy_ == SchedulePolicy::kFifo) {
    band.eligible.emplace(static_cast<int64_t>(account.came), session);
  } else {
    band.eligible.emplace(account.deadline_ns, session);
  }
  if (account.batch_key != 0) by_key_.emplace(account.batch_key, session);
  ++ready_;
}

void Queue::unplace(SessionId session, Account& account) {
  DJINN_ASSERT(account.place == Place::kReady && ready_ > 0);
  Band& band = band_of(account);
  const int64_t order =
      policy_ == SchedulePolicy::kFifo ? static_cast<int64_t>(account.came) : account.deadline_ns;
  const size_t erased = account.is_eligible ? band.eligible.erase({order, session})
                                            : band.waiting.erase({account.virtual_ns, session});
  DJINN_ASSERT(erased == 1);
  if (account.batch_key != 0) by_key_.erase({account.batch_key, session});
  --ready_;
}

void Queue::deactivate(Account& account) {
  band_of(account).leave(weight_of(account), account.virtual_ns);
  account.place = Place::kAsleep;
}

// Who wakes is owed one unit at most, for what it did not want; what it owes, it goes on owing. Who
// goes on at once is behind by no more than others' steps can bring it.
int64_t Queue::credit_max(const Account& account, Arrival arrival) const {
  const bool slept = arrival == Arrival::kWoke || arrival == Arrival::kResumes;
  return virtual_of(slept ? kUnitNs : std::max(kUnitNs, longest_ns_), account);
}

void Queue::forfeit_credit(Account& account, Arrival arrival) {
  if (arrival == Arrival::kGoesOn || arrival == Arrival::kAgain) return;
  const int64_t v = band_of(account).now_ns();
  account.virtual_ns = std::max(account.virtual_ns, v - credit_max(account, arrival));
}

void Queue::enqueue(const ReadyStep& step, uint64_t now_ns) {
  Account& account = account_of(step.session);
  DJINN_ASSERT(account.place == Place::kAsleep);
  if (awaited_ == step.session) charge_wait(now_ns);
  forfeit_credit(account, step.arrival);
  const bool is_next = step.arrival == Arrival::kWoke || step.arrival == Arrival::kNext;
  if (is_next || account.came == 0) account.came = ++arrivals_;
  account.predicted_ns = step.predicted_ns;
  account.request_ns = request_of(step);
  account.batch_key = step.batch_key;
  note_gap(step, account, now_ns);
  account.is_long = step.is_long;
  if (account.is_long && step.arrival != Arrival::kAgain) {
    pay_back(account, credit_max(account, step.arrival));
  }
  if (slicing_.valid() && account.is_long)
    return hold(step.session, account, band_of(account).now_ns());
  activate(step.session, account);
}

void Queue::activate(SessionId session, Account& account) {
  account.deadline_ns = account.virtual_ns + virtual_of(account.request_ns, account);
  band_of(account).enter(weight_of(account), account.virtual_ns);
  place(session, account);
}

// --- slices

void Queue::hold(SessionId session, Account& account, int64_t v) {
  DJINN_ASSERT(slicing_.valid() && session != slicing_ && account.place == Place::kAsleep);
  account.place = Place::kHeld;
  account.held_lag_ns = v - account.virtual_ns;
  account.borrowed_at_hold_ns = account.borrowed_ns;
  held_.insert(session);
  lend(account, weight_of(account));
}

// Who could be picked after the run with slices alone has nothing to lend to it.
void Queue::lend(const Account& held, int64_t weight) {
  Account& to = account_of(slicing_);
  if (&band_of(to) != &band_of(held)) return;
  const bool is_active = to.place == Place::kReady || to.place == Place::kPicked;
  if (is_active) band_of(to).leave(weight_of(to), to.virtual_ns);
  to.lent += weight;
  DJINN_ASSERT(to.lent >= 0);
  if (is_active) band_of(to).enter(weight_of(to), to.virtual_ns);
}

// virtual_ns: what the run with slices was charged for, as if all the weight were its own. What it
// owes too much to remember, nobody is owed.
void Queue::note_borrowed(Account& account, int64_t virtual_ns) {
  const int64_t all_ns = virtual_ns * account.lent / sched::weight_of(account.service);
  const int64_t taken_ns = std::min(all_ns, kBorrowedNsMax - account.borrowed_ns);
  if (taken_ns <= 0) return;
  account.borrowed_ns += taken_ns;
  const double part = static_cast<double>(taken_ns) / static_cast<double>(all_ns);
  const auto of_lender_ns = static_cast<int64_t>(static_cast<double>(virtual_ns) * part);
  for (const SessionId session : held_) {
    Account& lender = account_of(session);
    if (&band_of(lender) != &band_of(account)) continue;
    lender.borrowed_ns = std::max(lender.borrowed_ns - of_lender_ns, -kBorrowedNsMax);
  }
}

// Of what it had of others, or others of it, a unit at most. Nobody is owed more by it than
// most_ns. Precondition: it is not active.
void Queue::pay_back(Account& account, int64_t most_ns) {
  const int64_t unit_ns = virtual_of(kUnitNs, account);
  const int64_t owed_ns = band_of(account).now_ns() - account.virtual_ns;
  const int64_t room_ns = std::clamp(most_ns - owed_ns, int64_t{0}, unit_ns);
  const int64_t paid_ns = std::clamp(account.borrowed_ns, -room_ns, unit_ns);
  account.borrowed_ns -= paid_ns;
  account.virtual_ns += paid_ns;
}

// Who leaves takes its loans along: those who owe have as much less. Who leaves in debt changes
// nothing: its lenders are owed what they were, as if it were there and idle, so that to come again
// is no way around that. So loans may be more than debts: then those go first whose debtors are not
// there any more. A virtual nanosecond of a heavier class is more time.
void Queue::forget_loans(const Account& leaving) {
  if (leaving.borrowed_ns >= 0) return;
  const auto time_of = [](const Account& account) {
    return static_cast<double>(account.borrowed_ns) *
           static_cast<double>(sched::weight_of(account.service));
  };
  double debts = 0, loans = 0;
  for (const auto& [id, other] : accounts_) {
    if (&band_of(other) != &band_of(leaving)) continue;
    (other.borrowed_ns > 0 ? debts : loans) += std::abs(time_of(other));
  }
  const double of_the_departed = std::max(0.0, loans - debts);
  const double forgotten = -time_of(leaving) - of_the_departed;
  if (forgotten <= 0 || debts == 0) return;
  const double part = std::min(1.0, forgotten / debts);
  for (auto& [id, other] : accounts_) {
    if (&band_of(other) != &band_of(leaving) || other.borrowed_ns <= 0) continue;
    other.borrowed_ns -= static_cast<int64_t>(static_cast<double>(other.borrowed_ns) * part);
  }
}

void Queue::begin_slices(SessionId session) {
  DJINN_ASSERT(policy_ == SchedulePolicy::kFair && !slicing_.valid() && held_.empty());
  DJINN_ASSERT(account_of(session).place == Place::kPicked);
  slicing_ = session;
  const std::array<int64_t, 2> v{bands_[0].now_ns(), bands_[1].now_ns()};
  for (auto& [id, account] : accounts_) {
    if (account.place != Place::kReady || !account.is_long) continue;
    unplace(id, account);
    deactivate(account);
    hold(id, account, v[band_number(account.service)]);
  }
}

void Queue::end_slices() {
  Account& former = account_of(std::exchange(slicing_, {}));
  DJINN_ASSERT(former.place == Place::kAsleep || former.place == Place::kPicked);
  former.lent = 0;
  const std::set<SessionId> held = std::exchange(held_, {});
  for (const Band& band : bands_) {
    std::vector<SessionId> of_band;
    for (const SessionId session : held) {
      if (&band_of(account_of(session)) == &band) of_band.push_back(session);
    }
    release(of_band, band.now_ns());
  }
}

// v: V. While they were held, their weights were used: each is owed what it was owed before, a unit
// at most, and what it lent by who had it. So of those of a class that are owed something who
// borrowed least has the first of their places in virtual time.
void Queue::release(const std::vector<SessionId>& sessions, int64_t v) {
  std::map<ServiceClass, std::vector<SessionId>> owed;
  for (const SessionId session : sessions) {
    Account& account = account_of(session);
    account.place = Place::kAsleep;
    account.virtual_ns = v - std::min(account.held_lag_ns, virtual_of(kUnitNs, account));
    if (account.held_lag_ns >= 0) owed[account.service].push_back(session);
  }
  for (auto& [service, of_class] : owed) {
    std::vector<int64_t> places;
    for (const SessionId session : of_class) places.push_back(account_of(session).virtual_ns);
    std::ranges::sort(places);
    std::ranges::stable_sort(of_class, {},
                             [&](SessionId id) { return account_of(id).borrowed_ns; });
    for (size_t i = 0; i < of_class.size(); ++i) account_of(of_class[i]).virtual_ns = places[i];
  }
  for (const SessionId session : sessions) activate(session, account_of(session));
}

void Queue::charge_running(SessionId session, uint64_t measured_ns) {
  Account& account = account_of(session);
  DJINN_ASSERT(account.place == Place::kPicked);
  add_time(account, measured_ns);
}

void Queue::end_slice(SessionId session) {
  Account& account = account_of(session);
  DJINN_ASSERT(session == slicing_ && account.place == Place::kPicked);
  account.predicted_ns = account.request_ns = kUnitNs;
  account.deadline_ns = account.virtual_ns + virtual_of(kUnitNs, account);
  place(session, account);
}

// While it computes it loses what it is owed as its own time passes faster than the others'.
uint64_t Queue::slice_ns() const {
  DJINN_ASSERT(slicing_.valid());
  const Account& account = accounts_.at(slicing_);
  const Band& band = band_of(account);
  const int64_t lag_ns = band.now_ns() - account.virtual_ns;
  const int64_t weight = weight_of(account), others = band.weights - weight;
  if (others <= 0 || lag_ns > kLagNsMax) return kUnitNs;
  if (lag_ns <= 0) return static_cast<uint64_t>(kSliceNsMin);  // also where it is far ahead
  const int64_t owed_ns = lag_ns * weight / kWeightOfVirtualTime * band.weights / others;
  return static_cast<uint64_t>(std::clamp(owed_ns, kSliceNsMin, static_cast<int64_t>(kUnitNs)));
}

void Queue::resume(SessionId session, uint64_t now_ns) {
  DJINN_ASSERT(session == slicing_);
  take(session, account_of(session), now_ns, PickReason::kSlice);
}

void Queue::withdraw(SessionId session) {
  Account& account = account_of(session);
  if (account.place != Place::kHeld) return;
  Account& borrower = account_of(slicing_);
  const int64_t lent_ns = std::max<int64_t>(account.borrowed_at_hold_ns - account.borrowed_ns, 0);
  account.borrowed_ns += lent_ns;
  if (&band_of(account) == &band_of(borrower)) {
    borrower.borrowed_ns -=
        lent_ns * sched::weight_of(account.service) / sched::weight_of(borrower.service);
  }
  let_go(session);
}

void Queue::let_go(SessionId session) {
  Account& account = account_of(session);
  if (account.place != Place::kHeld) return;
  held_.erase(session);
  lend(account, -weight_of(account));
  account.is_long = false;
  release({session}, band_of(account).now_ns());
}

bool Queue::must_give_up() const {
  const auto is_idle = [this](SessionId session) {
    return accounts_.at(session).service == ServiceClass::kIdle;
  };
  return slicing_.valid() && is_idle(slicing_) && !std::ranges::all_of(held_, is_idle);
}

// --- picking

// Somebody's virtual time is not above their mean, so somebody is eligible.
SessionId Queue::first_of(Band& band) {
  DJINN_ASSERT(band.ready() > 0);
  if (policy_ == SchedulePolicy::kFifo) return band.eligible.begin()->second;
  const int64_t v = band.now_ns();
  while (!band.waiting.empty() && band.waiting.begin()->first <= v) {
    const SessionId session = band.waiting.begin()->second;
    Account& account = account_of(session);
    band.waiting.erase(band.waiting.begin());
    account.is_eligible = true;
    band.eligible.emplace(account.deadline_ns, session);
  }
  while (!band.eligible.empty()) {
    const SessionId session = band.eligible.begin()->second;
    Account& account = account_of(session);
    if (account.virtual_ns <= v) return session;
    band.eligible.erase(band.eligible.begin());
    account.is_eligible = false;
    band.waiting.emplace(account.virtual_ns, session);
  }
  // One that is picked and not charged yet may be the only one below the mean.
  return band.waiting.begin()->second;
}

Queue::Account* Queue::lingering(SessionId session, uint64_t slept_ns) {
  const auto found = accounts_.find(session);
  if (found == accounts_.end()) return nullptr;
  Account& account = found->second;
  return account.place == Place::kAsleep && account.slept_ns == slept_ns ? &account : nullptr;
}

void Queue::note_gap(const ReadyStep& step, Account& account, uint64_t now_ns) {
  const bool came = step.arrival == Arrival::kWoke || step.arrival == Arrival::kNext;
  if (step.batch_key == 0 || !came || account.slept_ns == 0) return;
  const uint64_t gap_ns = std::min(now_ns - std::min(now_ns, account.slept_ns), kGapNsMax);
  if (account.company == step.batch_key) {
    account.gap_ns = (account.gap_ns * (kGapFades - 1) + gap_ns) / kGapFades;
    return;
  }
  by_company_.erase({account.company, step.session});
  by_company_.emplace(step.batch_key, step.session);
  account.company = step.batch_key;
  account.gap_ns = gap_ns;
}

// Gives one that the step is to wait for, if there is one.
SessionId Queue::company_of(const Account& first, uint64_t now_ns) {
  if (first.batch_key == 0) return {};
  for (const auto& [key, session] : with_key(by_company_, first.batch_key)) {
    const Account& account = account_of(session);
    const uint64_t wait_ns = account.keyed_ns / kWaitForCompany;
    const bool is_near = account.place == Place::kAsleep && account.gap_ns <= wait_ns &&
                         &band_of(account) == &band_of(first);
    if (is_near && now_ns < account.slept_ns + std::min(2 * account.gap_ns, wait_ns)) {
      return session;
    }
  }
  return {};
}

// Gives one whose next step is short, and to be done before that of the first, if there is one.
SessionId Queue::ready_company_of(const Account& first) {
  if (first.batch_key == 0) return {};
  for (const auto& [key, session] : with_key(by_company_, first.batch_key)) {
    const Account& account = account_of(session);
    const uint64_t quarter_ns = account.keyed_ns / kWaitForCompany;
    const bool is_short = account.place == Place::kReady && account.batch_key == 0 &&
                          account.request_ns <= quarter_ns && &band_of(account) == &band_of(first);
    const int64_t ahead_ns = account.virtual_ns - first.virtual_ns;
    if (is_short && ahead_ns <= virtual_of(account.keyed_ns + quarter_ns, account)) {
      return session;
    }
  }
  return {};
}

void Queue::forget_lingering(uint64_t now_ns) {
  while (!lingering_.empty() && now_ns >= lingering_.front().first + kLingerNs) {
    lingering_.pop_front();
  }
}

// Its next step is taken for one like its last.
bool Queue::comes_before(const Account& account, const Account& first) {
  Band& band = band_of(first);
  if (&band_of(account) != &band) return &band_of(account) < &band;
  const int64_t deadline_ns = account.virtual_ns + virtual_of(account.request_ns, account);
  return account.virtual_ns <= band.now_ns() && deadline_ns < first.deadline_ns;
}

// The wait is over, or goes on from now.
void Queue::charge_wait(uint64_t now_ns) {
  const auto found = accounts_.find(std::exchange(awaited_, {}));
  if (found == accounts_.end() || now_ns <= awaited_ns_) return;
  Account& account = found->second;
  DJINN_ASSERT(account.place == Place::kAsleep);
  account.virtual_ns += virtual_of(now_ns - awaited_ns_, account);
}

bool Queue::is_worth_waiting(uint64_t now_ns) {
  const SessionId before = awaited_;
  charge_wait(now_ns);
  if (policy_ == SchedulePolicy::kFifo || ready_ == 0) return false;
  const Account& first = account_of(first_of(bands_[0].ready() > 0 ? bands_[0] : bands_[1]));
  if (const SessionId company = company_of(first, now_ns); company.valid()) {
    awaited_ = company;
    awaited_ns_ = now_ns;
    return true;
  }
  forget_lingering(now_ns);
  const uint64_t wait_ns = std::min(kLingerNs, first.request_ns / kWaitOfStep);
  if (wait_ns < kWaitNsMin) return false;
  for (const auto& [slept_ns, session] : lingering_) {
    if (now_ns >= slept_ns + wait_ns) continue;
    Account* const account = lingering(session, slept_ns);
    if (account == nullptr || !comes_before(*account, first)) continue;
    awaited_ = session;
    awaited_ns_ = before == session ? now_ns : slept_ns;
    return true;
  }
  return false;
}

std::optional<SessionId> Queue::pick(uint64_t now_ns) {
  charge_wait(now_ns);
  if (ready_ == 0) return std::nullopt;
  Band& band = bands_[0].ready() > 0 ? bands_[0] : bands_[1];
  SessionId session = first_of(band);
  if (policy_ == SchedulePolicy::kFair) {
    const SessionId company = ready_company_of(account_of(session));
    if (company.valid()) session = company;
  }
  PickReason reason =
      policy_ == SchedulePolicy::kFifo ? PickReason::kArrival : PickReason::kDeadline;
  if (band.ready() == 1) reason = PickReason::kOnly;
  if (session == slicing_) reason = PickReason::kSlice;
  take(session, account_of(session), now_ns, reason);
  return session;
}

void Queue::take(SessionId session, Account& account, uint64_t at_ns, PickReason reason) {
  const int64_t v = band_of(account).now_ns();
  account.decision = ++decided_;
  account.picked_ns = at_ns;
  Decision& decision = decisions_[decided_ % kDecisions];
  decision = {};
  decision.number = decided_;
  decision.session = session;
  decision.service = account.service;
  decision.reason = reason;
  decision.at_ns = at_ns;
  decision.ready = ready_ + held_.size();
  if (session != slicing_) decision.paused = slicing_;
  decision.lag_ns = v - account.virtual_ns;
  decision.deadline_ns = account.deadline_ns - v;
  decision.predicted_ns = account.predicted_ns;
  unplace(session, account);
  account.place = Place::kPicked;
}

void Queue::add_time(Account& account, uint64_t measured_ns) {
  Decision& decision = decisions_[account.decision % kDecisions];
  if (decision.number == account.decision) decision.measured_ns += measured_ns;
  Band& band = band_of(account);
  const int64_t before_ns = account.virtual_ns;
  account.virtual_ns += virtual_of(measured_ns, account);
  if (account.lent > 0) note_borrowed(account, account.virtual_ns - before_ns);
  // The others get older by it, too, while the account is still among them.
  band.weighted_ns += weight_of(account) * (account.virtual_ns - before_ns);
  longest_ns_ -= std::min(longest_ns_, measured_ns / kLongestFades);
  longest_ns_ = std::max(longest_ns_, measured_ns);
}

void Queue::charge(SessionId session, uint64_t measured_ns, std::optional<uint64_t> ended_ns) {
  Account& account = account_of(session);
  DJINN_ASSERT(account.place == Place::kPicked);
  add_time(account, measured_ns);
  deactivate(account);
  if (session == slicing_) {
    end_slices();
    if (!account.is_long) pay_back(account, 0);  // nobody knew, and so it has not paid
  }
  account.slept_ns = ended_ns.value_or(account.picked_ns + measured_ns);
  if (account.batch_key != 0) {
    account.keyed_ns = account.slept_ns - std::min(account.slept_ns, account.picked_ns);
  }
  forget_lingering(account.slept_ns);
  lingering_.emplace_back(account.slept_ns, session);
}

// Of what the account was owed it is first left what a step that comes finds: nobody pays with
// credit that would be forfeited. V is the others' mean before and after; without others it goes on
// to the account's time, as behind a step.
void Queue::charge_judging(SessionId session, Arrival arrival, uint64_t begun_ns,
                           uint64_t took_ns) {
  Account& account = account_of(session);
  DJINN_ASSERT(account.place == Place::kAsleep);
  if (awaited_ == session) {  // that ends with the step, or goes on after the refusal
    charge_wait(begun_ns);
    awaited_ = session;
    awaited_ns_ = begun_ns + took_ns;
  }
  forfeit_credit(account, arrival);
  account.virtual_ns += virtual_of(took_ns, account);
  Band& band = band_of(account);
  band.enter(weight_of(account), account.virtual_ns);
  band.leave(weight_of(account), account.virtual_ns);
}

bool Queue::owes_a_unit(SessionId session) const {
  const Account& account = accounts_.at(session);
  const int64_t v = band_of(account).now_ns();
  return account.virtual_ns - v > virtual_of(kUnitNs, account);
}

std::vector<SessionId> Queue::ready_with(uint64_t batch_key) const {
  DJINN_ASSERT(batch_key != 0);
  std::vector<SessionId> sessions;
  for (const auto& [key, session] : with_key(by_key_, batch_key)) sessions.push_back(session);
  const auto order = [this](SessionId session) {
    const Account& account = accounts_.at(session);
    const auto came = static_cast<int64_t>(account.came);
    return std::pair(policy_ == SchedulePolicy::kFifo ? came : account.virtual_ns, session);
  };
  std::ranges::sort(sessions, {}, order);
  return sessions;
}

void Queue::join(SessionId session, uint64_t now_ns) {
  take(session, account_of(session), now_ns, PickReason::kBatch);
}

std::vector<SessionId> Queue::picked() const {
  std::vector<SessionId> sessions;
  for (const auto& [id, account] : accounts_) {
    if (account.place == Place::kPicked) sessions.push_back(id);
  }
  return sessions;
}

std::vector<Decision> Queue::decisions() const {
  std::vector<Decision> decisions;
  const uint64_t first = decided_ > kDecisions ? decided_ - kDecisions + 1 : 1;
  for (uint64_t number = first; number <= decided_; ++number) {
    decisions.push_back(decisions_[number % kDecisions]);
  }
  return decisions;
}

}  // namespace djinn::sched
