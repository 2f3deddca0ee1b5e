// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/memory/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "kernel/base/assert.h"
#include "kernel/base/size_text.h"

namespace djinn::daemon {
namespace {

// This principal pays for what no session holds. No session has its id.
constexpr vmu::PrincipalId kShared{UINT64_MAX};

// Each session is a principal of its own, so that it has a quota of its own.
vmu::PrincipalId principal_of(vmu::Holder holder) {
  return holder.kind == vmu::HolderKind::kSession ? vmu::PrincipalId{holder.id} : kShared;
}

}  // namespace

Memory::Memory(DeviceId device, uint64_t device_bytes, uint64_t session_quota_bytes,
               const Quotas& quotas)
    : device_(device),
      ledger_(device_bytes, session_quota_bytes),
      users_(quotas, device_bytes),
      session_quota_(session_quota_bytes),
      unkept_(device_bytes) {
  ledger_.set_quota(kShared, vmu::kNoQuota);
}

void Memory::set_total(uint64_t bytes) {
  ledger_.set_total(bytes);
  users_.set_device_bytes(bytes);
  freed();
  change();
}

void Memory::set_session_quota(uint64_t bytes) {
  session_quota_ = bytes;
  ledger_.set_default_quota(bytes);
}

void Memory::set_aside(Holder session, uint64_t bytes) {
  DJINN_ASSERT(session.kind == vmu::HolderKind::kSession);
  ledger_.set_aside(principal_of(session), bytes);
  note(session);
}

void Memory::note(Holder holder) {
  const bool has_aside = holder.kind == vmu::HolderKind::kSession;
  users_.note(holder,
              ledger_.held_by(holder) + (has_aside ? ledger_.aside_of(principal_of(holder)) : 0));
}

// Bytes that return are set aside, and so count for their user already.
Status Memory::check_quotas(const Request& request) const {
  if (!request.returns) DJINN_CHECK(users_.check(request.holder, request.bytes));
  const vmu::PrincipalId principal = principal_of(request.holder);
  const uint64_t aside = request.returns ? ledger_.aside_of(principal) : 0;
  if (request.bytes <= aside) return {};
  return ledger_.check_quota(principal, request.bytes - aside) ? Status() : over_quota(request);
}

void Memory::grant(const Request& request) {
  DJINN_ASSERT(request.missing() <= unkept_);
  unkept_ -= request.missing();
  const vmu::PrincipalId principal = principal_of(request.holder);
  const Status granted = request.returns
                             ? ledger_.grant_return(principal, request.holder, request.bytes)
                             : ledger_.grant(principal, request.holder, request.bytes);
  DJINN_ASSERT(granted.ok());
  held_[request.holder] += request.bytes;
  DJINN_ASSERT(held_.at(request.holder) == ledger_.held_by(request.holder));
  note(request.holder);
  change();
}

// The text is made here, because the ledger knows nothing of the configuration.
Error Memory::over_quota(const Request& request) const {
  const uint64_t aside = ledger_.aside_of(principal_of(request.holder));
  const uint64_t all_bytes = ledger_.total_bytes();
  const std::string advice =
      session_quota_ < all_bytes
          ? "Release something, ask for less staging memory, or ask the administrator for a larger "
            "quota."
          : fmt::format("Release something, or ask for less: djinnd has {} for all.",
                        size_text(all_bytes));
  return {ErrorCode::kQuotaExceeded,
          fmt::format("{} more are needed, and the session holds {} of the {} that one may "
                      "(memory.session_quota). {}",
                      size_text(request.bytes), size_text(ledger_.held_by(request.holder) + aside),
                      size_text(session_quota_), advice)};
}

void Memory::change() {
  if (reclaim_ != nullptr) reclaim_->changed();
}

// The log gets the text about the shortage. The session that is refused is also told how much of
// the memory is its own.
Status Memory::refused(const Request& request, Error why) const {
  if (why.code != ErrorCode::kOutOfMemory) return why;
  why.message =
      request.bytes > ledger_.total_bytes() ? too_large(request.bytes) : shortage(request);
  if (request.holder.kind == vmu::HolderKind::kLoad && request.bytes <= ledger_.total_bytes()) {
    why.message += " Models that are in use, or loaded just now, cannot give way.";
  }
  if (reclaim_ != nullptr && !request.or_less) {
    reclaim_->refused(why, users_.user_of(request.holder));
  }
  if (request.holder.kind == vmu::HolderKind::kSession) why.message += own_part_of(request.holder);
  return why;
}

// Even if everybody gave way, there would not be enough.
std::string Memory::too_large(uint64_t bytes) const {
  const std::string name = text_of(device_);
  return fmt::format(
      "{} are needed, which cannot fit in {}, all that djinnd may grant. Start djinnd with more "
      "memory ({}).",
      size_text(bytes), size_text(ledger_.total_bytes()),
      device_ == kHostDevice ? "--memory, memory.limit"
                             : fmt::format("--device-limit {0}=BYTES, device.{0}.limit", name));
}

// The text, with the session's own part, is no longer than the record of a step can hold.
std::string Memory::shortage(const Request& request) const {
  using enum vmu::HolderKind;
  const uint64_t models = held_by(kModel) + held_by(kLoad);
  const uint64_t held_up = reclaim_ != nullptr ? reclaim_->held_up_bytes() : 0;
  return fmt::format(
      "{}, and {} of {} are free: models have {} ({} of it pinned), sessions {}, "
      "workers {}. {}",
      needed_text(request.holder, request.bytes), size_text(ledger_.free_bytes()),
      size_text(ledger_.total_bytes()), size_text(models),
      size_text(reclaim_ != nullptr ? reclaim_->pinned_bytes() : 0), size_text(held_by(kSession)),
      size_text(held_by(kLane) + held_by(kHeap)),
      held_up == 0 ? "Unpin or close a model, or end a session."
                   : fmt::format("{} wait for a long step: try later.", size_text(held_up)));
}

std::string Memory::own_part_of(Holder session) const {
  const uint64_t bytes = held_by(session);
  return bytes == 0 ? "" : fmt::format(" This session itself holds {}.", size_text(bytes));
}

uint64_t Memory::held_by(vmu::HolderKind kind) const {
  uint64_t bytes = 0;
  for (const auto& [holder, held] : held_) bytes += holder.kind == kind ? held : 0;
  return bytes;
}

bool Memory::waits(Holder holder) const {
  return std::ranges::any_of(waiting_,
                             [&](const Request& waiting) { return waiting.holder == holder; });
}

void Memory::request(Request request) {
  DJINN_ASSERT(request.granted != nullptr);
  if (request.bytes == 0) return request.granted({});
  waiting_.push_back(std::move(request));
  freed();  // there may be room, or what is to be evicted is free already
}

bool Memory::waits_for_its_own(const Request& request) const {
  if (request.returns || reclaim_ == nullptr) return false;
  if (users_.fits_only_soon(request.holder, request.bytes, *reclaim_)) return true;
  if (request.holder.kind != vmu::HolderKind::kSession) return false;
  const vmu::PrincipalId principal = principal_of(request.holder);
  const uint64_t leaving = reclaim_->leaving_bytes(request.holder);
  return !ledger_.check_quota(principal, request.bytes) &&
         ledger_.check_quota(principal, request.bytes - std::min(request.bytes, leaving)).ok();
}

bool Memory::begins_to_wait_for_its_own(const Request& request) const {
  const auto user = users_.user_of(request.holder);
  if (request.returns || reclaim_ == nullptr || !user) return false;
  reclaim_->take_back_idle(*user);
  return waits_for_its_own(request);
}

void Memory::freed() {
  Answers answers;
  bool one_was_answered = true;
  while (one_was_answered) {
    keep_what_came_free();  // what was kept for who is refused, too
    one_was_answered = serve(answers) || make_room(answers);
  }
  for (auto& [granted, status] : answers) granted(std::move(status));
}

void Memory::keep_what_came_free() {
  uint64_t known = unkept_;
  for (const Request& waiting : waiting_) known += waiting.kept;
  DJINN_ASSERT(known <= ledger_.free_bytes());
  uint64_t fresh = ledger_.free_bytes() - known;
  for (Request& waiting : waiting_) {
    if (fresh == 0) return;
    if (waits_for_its_own(waiting)) continue;
    const uint64_t kept = std::min(fresh, waiting.missing());
    waiting.kept += kept;
    fresh -= kept;
  }
  unkept_ += fresh;
}

void Memory::take(Requests::iterator& request, Status status, Answers& answers) {
  answers.emplace_back(std::move(request->granted), std::move(status));
  request = waiting_.erase(request);
}

bool Memory::serve(Answers& answers) {
  bool one_answered = false;
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    if (waits_for_its_own(*next)) {
      ++next;
    } else if (const Status allowed = check_quotas(*next); !allowed) {
      if (begins_to_wait_for_its_own(*next)) continue;
      one_answered = true;
      take(next, refused(*next, allowed.error()), answers);
    } else if (next->bytes > ledger_.total_bytes()) {
      one_answered = true;
      take(next, refused(*next, {ErrorCode::kOutOfMemory, {}}), answers);
    } else if (next->missing() <= unkept_) {
      one_answered = true;
      grant(*next);
      take(next, {}, answers);
    } else {
      ++next;
    }
  }
  return one_answered;
}

bool Memory::make_room(Answers& answers) {
  auto first = waiting_.end();
  uint64_t missing = 0;
  for (auto next = waiting_.begin(); next != waiting_.end(); ++next) {
    if (waits_for_its_own(*next)) continue;
    if (first == waiting_.end()) first = next;
    missing += next->missing();
  }
  if (first == waiting_.end()) return false;
  DJINN_ASSERT(first->missing() > unkept_);
  const bool first_waits = reclaim_ != nullptr && reclaim_->make_room(first->missing() - unkept_);
  if (!first_waits) {
    take(first, refused(*first, {ErrorCode::kOutOfMemory, {}}), answers);
    return true;
  }
  // If room for all cannot be made, the requests behind wait on: the first may be served, or give
  // up.
  if (missing > first->missing()) reclaim_->make_room(missing - unkept_);
  return false;
}

void Memory::release(Holder holder, uint64_t bytes) {
  if (bytes == 0) return;
  DJINN_ASSERT(bytes <= ledger_.held_by(holder));
  const Status released = ledger_.acknowledge(holder, bytes);
  DJINN_ASSERT(released.ok());
  if ((held_.at(holder) -= bytes) == 0) held_.erase(holder);
  DJINN_ASSERT(held_.contains(holder) == (ledger_.held_by(holder) > 0));
  note(holder);
  freed();
  change();
}

void Memory::cancel(Holder holder) {
  cancel_those([&](const Request& waiting) { return waiting.holder == holder; });
}

void Memory::cancel(Holder holder, uint64_t part) {
  cancel_those(
      [&](const Request& waiting) { return waiting.holder == holder && waiting.part == part; });
}

void Memory::cancel_those(const std::function<bool(const Request&)>& wanted) {
  std::vector<Granted> cancelled;
  waiting_.remove_if([&](Request& waiting) {
    if (!wanted(waiting)) return false;
    cancelled.push_back(std::move(waiting.granted));
    return true;
  });
  for (Granted& granted : cancelled) {
    granted(Error{ErrorCode::kCancelled, "What the memory was for is given up."});
  }
  if (!cancelled.empty()) freed();  // they stood before others
}

uint64_t Memory::release_all(Holder holder) {
  cancel(holder);
  if (holder.kind == vmu::HolderKind::kSession) set_aside(holder, 0);
  const uint64_t bytes = ledger_.holder_died(holder);
  DJINN_ASSERT(bytes == (held_.contains(holder) ? held_.at(holder) : 0));
  held_.erase(holder);
  users_.close(holder);
  if (bytes > 0) {
    freed();
    change();
  }
  return bytes;
}

void Memory::hand_over(Holder from, Holder to) {
  if (ledger_.held_by(from) == 0) return;
  const Status handed = ledger_.hand_over(from, to);
  DJINN_ASSERT(handed.ok());
  DJINN_ASSERT(held_.contains(from) && !held_.contains(to));
  auto held = held_.extract(from);
  held.key() = to;
  held_.insert(std::move(held));
}

Status Memory::check() const {
  uint64_t held = 0;
  for (const auto& [holder, bytes] : held_) held += bytes;
  if (held == ledger_.granted_bytes() && held <= ledger_.total_bytes()) return {};
  return Error{ErrorCode::kInternal, fmt::format("{} bytes are held and {} of {} granted", held,
                                                 ledger_.granted_bytes(), ledger_.total_bytes())};
}

}  // namespace djinn::daemon
