// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/memory/user_accounts.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernel/base/assert.h"
#include "kernel/base/checked.h"
#include "kernel/base/size_text.h"

namespace djinn::daemon {

std::string needed_text(vmu::Holder holder, uint64_t bytes) {
  using enum vmu::HolderKind;
  const bool of_lane = holder.kind == kLane || holder.kind == kHeap;
  return fmt::format("{} more are needed{}", size_text(bytes),
                     of_lane ? " for intermediate results" : "");
}

void UserAccounts::open(vmu::Holder holder, Owner user) {
  DJINN_ASSERT(user.valid());
  const auto [account, is_new] = accounts_.try_emplace(holder, Account{user});
  DJINN_ASSERT(is_new || account->second.user == user);
}

void UserAccounts::close(vmu::Holder holder) {
  note(holder, 0);
  accounts_.erase(holder);
}

void UserAccounts::note(vmu::Holder holder, uint64_t held_bytes) {
  const auto found = accounts_.find(holder);
  if (found == accounts_.end()) return;
  Account& account = found->second;
  uint64_t& all = held_by_user_[account.user];
  DJINN_ASSERT(all >= account.bytes);
  all = all - account.bytes + held_bytes;
  account.bytes = held_bytes;
  DJINN_ASSERT(all >= held_bytes);
  if (all == 0) held_by_user_.erase(account.user);
}

UserAccounts::Room UserAccounts::room_of(vmu::Holder holder, const Account& account) const {
  DJINN_ASSERT(held_by(account.user) >= account.bytes);
  const uint64_t replaced = holder.kind == vmu::HolderKind::kLane ? account.bytes : 0;
  return {held_by(account.user) - replaced, quotas_.of(account.user, device_bytes_).memory_bytes};
}

Status UserAccounts::check(vmu::Holder holder, uint64_t bytes) const {
  const auto found = accounts_.find(holder);
  if (found == accounts_.end()) return {};
  const auto [held, quota] = room_of(holder, found->second);
  if (range_fits(held, bytes, quota)) return {};
  return Error{ErrorCode::kQuotaExceeded,
               fmt::format("{}, and all sessions of this user together have {} of {} ({}). Release "
                           "something, close a session, or ask the administrator for more.",
                           needed_text(holder, bytes), size_text(held), size_text(quota),
                           quotas_.key_of(found->second.user, QuotaOf::kMemory, device_bytes_))};
}

bool UserAccounts::fits_only_soon(vmu::Holder holder, uint64_t bytes,
                                  const Reclaim& reclaim) const {
  const auto found = accounts_.find(holder);
  if (found == accounts_.end()) return false;
  const auto [held, quota] = room_of(holder, found->second);
  if (range_fits(held, bytes, quota)) return false;
  const uint64_t leaving = std::min(held, reclaim.leaving_bytes(found->second.user));
  return range_fits(held - leaving, bytes, quota);
}

std::optional<Owner> UserAccounts::user_of(vmu::Holder holder) const {
  const auto found = accounts_.find(holder);
  return found == accounts_.end() ? std::nullopt : std::optional(found->second.user);
}

uint64_t UserAccounts::held_by(Owner user) const {
  const auto found = held_by_user_.find(user);
  return found == held_by_user_.end() ? 0 : found->second;
}

uint64_t UserAccounts::left_to(Owner user) const {
  const uint64_t quota = quotas_.of(user, device_bytes_).memory_bytes;
  return quota - std::min(quota, held_by(user));
}

}  // namespace djinn::daemon
