#include "daemon/djinnd/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "kernel/base/assert.h"

namespace djinn::daemon {
namespace {

// Who pays for what no session holds; no session has this id.
constexpr vmu::PrincipalId kShared{UINT64_MAX};

// A session pays for itself: its quota is that of its own principal.
vmu::PrincipalId principal_of(vmu::Holder holder) {
  return holder.kind == vmu::HolderKind::kSession ? vmu::PrincipalId{holder.id} : kShared;
}

}  // namespace

Memory::Memory(uint64_t device_bytes, uint64_t session_quota_bytes)
    : ledger_({device_bytes, device_bytes}, {session_quota_bytes, session_quota_bytes}),
      session_quota_(session_quota_bytes) {
  ledger_.set_quota(kShared, {});
}

Status Memory::grant(Holder holder, uint64_t bytes) {
  const auto granted = ledger_.grant(principal_of(holder), holder, bytes);
  if (!granted) return granted.error();
  held_[holder] += bytes;
  change();
  return {};
}

void Memory::change() {
  if (changed_) changed_();
}

// A refusal in terms of what the reader can do something about.
Status Memory::explained(Status status, uint64_t bytes) const {
  if (status || status.error().code != ErrorCode::kOutOfMemory) return status;
  Error why{
      ErrorCode::kOutOfMemory,
      fmt::format("{} bytes are needed, {} of {} are free, {} are pinned, and the rest is "
                  "in use. Unpin or close a model, or end a session, then repeat.",
                  bytes, ledger_.free_bytes(), ledger_.total_bytes(), pinned_ ? pinned_() : 0)};
  if (refused_) refused_(why);
  return why;
}

uint64_t Memory::held_by(vmu::HolderKind kind) const {
  uint64_t bytes = 0;
  for (const auto& [holder, held] : held_) bytes += holder.kind == kind ? held : 0;
  return bytes;
}

bool Memory::waits(Holder holder) const {
  return std::ranges::any_of(waiting_,
                             [&](const Waiting& waiting) { return waiting.holder == holder; });
}

void Memory::request(Holder holder, uint64_t bytes, Granted granted) {
  Status first = bytes == 0 ? Status{} : grant(holder, bytes);
  const bool full = !first && first.error().code == ErrorCode::kOutOfMemory;
  const uint64_t missing = bytes - std::min(bytes, ledger_.free_bytes());
  if (!full || !evictor_ || !evictor_(missing)) return granted(explained(std::move(first), bytes));
  waiting_.push_back({holder, bytes, std::move(granted)});
  freed();  // what was evicted may be free already
}

void Memory::freed() {
  std::vector<std::pair<Granted, Status>> answers;
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    Status again = grant(next->holder, next->bytes);
    const bool wait_on = !again && again.error().code == ErrorCode::kOutOfMemory && evictor_ &&
                         evictor_(next->bytes - std::min(next->bytes, ledger_.free_bytes()));
    if (wait_on) break;  // first come, first served: nobody starves a large request
    answers.emplace_back(std::move(next->granted), explained(std::move(again), next->bytes));
    next = waiting_.erase(next);
  }
  for (auto& [granted, status] : answers) granted(std::move(status));
}

void Memory::release(Holder holder, uint64_t bytes) {
  if (bytes == 0) return;
  const Status released = ledger_.acknowledge(holder, bytes);
  DJINN_ASSERT(released.ok());
  if ((held_.at(holder) -= bytes) == 0) held_.erase(holder);
  freed();
  change();
}

void Memory::cancel(Holder holder) {
  std::vector<Granted> cancelled;
  waiting_.remove_if([&](Waiting& waiting) {
    if (waiting.holder != holder) return false;
    cancelled.push_back(std::move(waiting.granted));
    return true;
  });
  for (Granted& granted : cancelled) {
    granted(Error{ErrorCode::kCancelled, "Who asked for the memory is gone."});
  }
}

uint64_t Memory::release_all(Holder holder) {
  cancel(holder);
  const uint64_t bytes = ledger_.holder_died(holder);
  held_.erase(holder);
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
