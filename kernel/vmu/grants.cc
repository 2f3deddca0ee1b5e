// SPDX-License-Identifier: Apache-2.0

#include "kernel/vmu/grants.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernel/base/assert.h"
#include "kernel/base/size_text.h"

namespace djinn::vmu {
namespace {

Error not_held() {
  return {ErrorCode::kNotFound, "the holder has no grant. It may have ended already."};
}

}  // namespace

GrantLedger::GrantLedger(uint64_t device_bytes, uint64_t default_quota_bytes)
    : total_bytes_(device_bytes), default_quota_(default_quota_bytes), free_bytes_(device_bytes) {}

void GrantLedger::set_total(uint64_t bytes) {
  DJINN_ASSERT(bytes >= total_bytes_);
  free_bytes_ += bytes - total_bytes_;
  total_bytes_ = bytes;
}

void GrantLedger::set_quota(PrincipalId principal, uint64_t bytes) {
  quotas_[principal] = bytes;
}

void GrantLedger::set_default_quota(uint64_t bytes) {
  default_quota_ = bytes;
}

void GrantLedger::set_aside(PrincipalId principal, uint64_t bytes) {
  DJINN_ASSERT(principal.valid());
  if (bytes == 0) {
    aside_by_principal_.erase(principal);
  } else {
    aside_by_principal_[principal] = bytes;
  }
}

uint64_t GrantLedger::quota_of(PrincipalId principal) const {
  const auto found = quotas_.find(principal);
  return found != quotas_.end() ? found->second : default_quota_;
}

uint64_t GrantLedger::held_by(PrincipalId principal) const {
  const auto found = held_by_principal_.find(principal);
  return found != held_by_principal_.end() ? found->second : 0;
}

uint64_t GrantLedger::aside_of(PrincipalId principal) const {
  const auto found = aside_by_principal_.find(principal);
  return found != aside_by_principal_.end() ? found->second : 0;
}

uint64_t GrantLedger::held_by(Holder holder) const {
  const auto found = accounts_.find(holder);
  return found != accounts_.end() ? found->second.bytes : 0;
}

Status GrantLedger::check_quota(PrincipalId principal, uint64_t bytes) const {
  const uint64_t quota = quota_of(principal), held = held_by(principal);
  const uint64_t aside = aside_of(principal);
  if (held <= quota && aside <= quota - held && bytes <= quota - held - aside) return {};
  return Error{
      ErrorCode::kQuotaExceeded,
      fmt::format("needs {}; {} of the quota's {} are in use. Release something, or ask for "
                  "a larger quota.",
                  size_text(bytes), size_text(held + aside), size_text(quota))};
}

Status GrantLedger::check_device(uint64_t bytes) const {
  if (bytes <= free_bytes_) return {};
  return Error{ErrorCode::kOutOfMemory,
               fmt::format("needs {}; {} of the device's {} are free", size_text(bytes),
                           size_text(free_bytes_), size_text(total_bytes()))};
}

void GrantLedger::add(uint64_t bytes, PrincipalId principal) {
  granted_bytes_ += bytes;
  free_bytes_ -= bytes;
  held_by_principal_[principal] += bytes;
  DJINN_ASSERT(granted_bytes_ + free_bytes_ == total_bytes());
}

Status GrantLedger::grant(PrincipalId principal, Holder holder, uint64_t bytes) {
  return grant(principal, holder, bytes, 0);
}

Status GrantLedger::grant_return(PrincipalId principal, Holder holder, uint64_t bytes) {
  return grant(principal, holder, bytes, std::min(bytes, aside_of(principal)));
}

Status GrantLedger::grant(PrincipalId principal, Holder holder, uint64_t bytes,
                          uint64_t returning) {
  DJINN_ASSERT(principal.valid() && holder.id != 0);
  if (bytes == 0) return Error{ErrorCode::kInvalidArgument, "a grant needs at least one byte"};
  const auto found = accounts_.find(holder);
  DJINN_ASSERT(found == accounts_.end() || found->second.principal == principal);
  if (bytes > returning) DJINN_CHECK(check_quota(principal, bytes - returning));
  DJINN_CHECK(check_device(bytes));
  add(bytes, principal);
  set_aside(principal, aside_of(principal) - returning);
  Account& account = accounts_[holder];
  account.principal = principal;
  account.bytes += bytes;
  return {};
}

void GrantLedger::end(Accounts::iterator account, uint64_t bytes) {
  const auto principal = held_by_principal_.find(account->second.principal);
  DJINN_ASSERT(principal != held_by_principal_.end() && principal->second >= bytes);
  DJINN_ASSERT(account->second.bytes >= bytes && granted_bytes_ >= bytes);
  granted_bytes_ -= bytes;
  free_bytes_ += bytes;
  principal->second -= bytes;
  account->second.bytes -= bytes;
  if (principal->second == 0) held_by_principal_.erase(principal);
  if (account->second.bytes == 0) accounts_.erase(account);
  DJINN_ASSERT(granted_bytes_ + free_bytes_ == total_bytes());
}

Status GrantLedger::acknowledge(Holder holder, uint64_t bytes) {
  const auto found = accounts_.find(holder);
  if (found == accounts_.end()) return not_held();
  if (bytes > found->second.bytes) {
    return Error{ErrorCode::kOutOfRange,
                 fmt::format("{} bytes were given back, {} are held", bytes, found->second.bytes)};
  }
  end(found, bytes);
  return {};
}

uint64_t GrantLedger::holder_died(Holder holder) {
  const auto found = accounts_.find(holder);
  if (found == accounts_.end()) return 0;
  const uint64_t bytes = found->second.bytes;
  end(found, bytes);
  return bytes;
}

Status GrantLedger::hand_over(Holder from, Holder to) {
  DJINN_ASSERT(to.id != 0);
  const auto found = accounts_.find(from);
  if (found == accounts_.end()) return not_held();
  if (accounts_.contains(to)) {
    return Error{ErrorCode::kAlreadyExists, "the new holder has grants of its own"};
  }
  accounts_.emplace(to, found->second);
  accounts_.erase(found);
  return {};
}

}  // namespace djinn::vmu
