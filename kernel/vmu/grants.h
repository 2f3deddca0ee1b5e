// SPDX-License-Identifier: Apache-2.0

// The grant ledger: what djinnd knows of a device's memory. It grants bytes before anybody touches
// them, and rests on nothing that a worker or loader claims.
//
//   principal  who pays: a user or a remote identity
//   holder     who spends: a session, a model, a load, a lane or its heap. It has one principal
//   grant      bytes that a holder may commit; grants to one holder add up
//   aside      bytes of a principal that left the device and may come back: they count against its
//              quota alone, so that no quota refuses their return
//
// A grant ends only when its holder acknowledges that it no longer touches the bytes, or is dead:
// bytes that are merely asked back are not free (ARCHITECTURE section 4).
//
// invariant: granted_bytes() + free_bytes() == total_bytes()
// invariant: granted_bytes() is the sum over the holders, and over the principals
// invariant: no principal holds more than its quota, unless that was lowered beneath it
//
// Pure: no I/O, no clock. One thread.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <unordered_map>

#include "kernel/base/ids.h"
#include "kernel/base/result.h"

namespace djinn::vmu {

// How much is asked for. kMore: more than is needed now; who is refused asks for less.
enum class Amount : uint8_t { kNeeded, kMore };

using PrincipalId = Id<struct PrincipalTag>;

enum class HolderKind : uint8_t { kSession = 0, kModel, kLoad, kLane, kHeap };

struct Holder {
  HolderKind kind = HolderKind::kSession;
  uint64_t id = 0;
  friend auto operator<=>(const Holder&, const Holder&) = default;
};

inline constexpr uint64_t kNoQuota = UINT64_MAX;

class GrantLedger {
 public:
  // device_bytes is what the device has to give. The default quota is that of every principal to
  // whom set_quota gives no other.
  GrantLedger(uint64_t device_bytes, uint64_t default_quota_bytes);

  // The device has so many bytes, and not fewer than before: one whose size was not known at first.
  void set_total(uint64_t bytes);

  // The quota may lie beneath what the principal holds: then it gets nothing more until it is below
  // again.
  void set_quota(PrincipalId principal, uint64_t bytes);
  void set_default_quota(uint64_t bytes);

  // How much of the principal's lies aside, in all.
  void set_aside(PrincipalId principal, uint64_t bytes);

  // Whether the principal's quota has room for so many bytes, beside what it has on the device and
  // aside. Errors: kQuotaExceeded.
  [[nodiscard]] Status check_quota(PrincipalId principal, uint64_t bytes) const;
  // Errors: kQuotaExceeded, kOutOfMemory, both with what was needed and what is free;
  // kInvalidArgument for no bytes. A holder keeps the principal of its first grant.
  Status grant(PrincipalId principal, Holder holder, uint64_t bytes);
  // As grant(); the bytes come first from those that lie aside, which lie there no more.
  Status grant_return(PrincipalId principal, Holder holder, uint64_t bytes);

  // The holder says that it has let go of so many of its bytes. Errors: kNotFound, kOutOfRange for
  // more than it holds; then nothing has changed.
  Status acknowledge(Holder holder, uint64_t bytes);

  // The holder's process is dead, so that nobody touches its bytes any more. Gives what became
  // free.
  uint64_t holder_died(Holder holder);

  // All of from's bytes belong to a new holder of the same principal: a load that became a model.
  // Errors: kNotFound, kAlreadyExists if to holds something.
  Status hand_over(Holder from, Holder to);

  [[nodiscard]] uint64_t total_bytes() const noexcept { return total_bytes_; }
  [[nodiscard]] uint64_t granted_bytes() const noexcept { return granted_bytes_; }
  [[nodiscard]] uint64_t free_bytes() const noexcept { return free_bytes_; }
  [[nodiscard]] uint64_t held_by(Holder holder) const;
  [[nodiscard]] uint64_t held_by(PrincipalId principal) const;
  [[nodiscard]] uint64_t aside_of(PrincipalId principal) const;
  [[nodiscard]] uint64_t quota_of(PrincipalId principal) const;

 private:
  struct Account {
    PrincipalId principal;
    uint64_t bytes = 0;  // invariant: not zero; an account that is empty is erased
  };
  using Accounts = std::map<Holder, Account>;

  Status grant(PrincipalId principal, Holder holder, uint64_t bytes, uint64_t returning);
  [[nodiscard]] Status check_device(uint64_t bytes) const;
  void add(uint64_t bytes, PrincipalId principal);
  void end(Accounts::iterator account, uint64_t bytes);

  uint64_t total_bytes_;
  uint64_t default_quota_;
  uint64_t granted_bytes_ = 0;
  uint64_t free_bytes_ = 0;
  Accounts accounts_;
  std::unordered_map<PrincipalId, uint64_t> held_by_principal_;   // without zeros
  std::unordered_map<PrincipalId, uint64_t> aside_by_principal_;  // without zeros
  std::unordered_map<PrincipalId, uint64_t> quotas_;
};

}  // namespace djinn::vmu
