// SPDX-License-Identifier: Apache-2.0

// UserAccounts: what each user has of the device's memory beside models, over all their sessions
// and their worker, and whether they may have more.
//
//   holder   of memory.h, that belongs to one user: a session, a lane, a heap
//   held     what a holder was granted, and what of it lies aside
//
// invariant: a user's bytes are the sum over the holders that are charged to them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "daemon/djinnd/memory/quotas.h"
#include "daemon/djinnd/memory/reclaim.h"
#include "kernel/base/owner.h"
#include "kernel/base/result.h"
#include "kernel/vmu/grants.h"

namespace djinn::daemon {

// "4.0 MiB more are needed"; for a lane says of what, since its runs' results are smaller or
// larger.
[[nodiscard]] std::string needed_text(vmu::Holder holder, uint64_t bytes);

class UserAccounts {
 public:
  // device_bytes: what may be granted of the device.
  UserAccounts(const Quotas& quotas, uint64_t device_bytes)
      : quotas_(quotas), device_bytes_(device_bytes) {}

  void set_device_bytes(uint64_t bytes) { device_bytes_ = bytes; }
  // The holder's bytes are the user's from now on, until it is closed.
  void open(vmu::Holder holder, Owner user);
  void close(vmu::Holder holder);
  // What the holder has now. One that is nobody's counts for nobody.
  void note(vmu::Holder holder, uint64_t held_bytes);

  // Whether its user may have so much more. A lane's slab takes the place of the one before.
  // Errors: kQuotaExceeded.
  [[nodiscard]] Status check(vmu::Holder holder, uint64_t bytes) const;
  // Whether it may have so much more once what comes free by itself is free, and not before.
  [[nodiscard]] bool fits_only_soon(vmu::Holder holder, uint64_t bytes,
                                    const Reclaim& reclaim) const;

  [[nodiscard]] uint64_t held_by(Owner user) const;
  // What the user's quota leaves.
  [[nodiscard]] uint64_t left_to(Owner user) const;
  // The user whose bytes the holder's are, if they are anybody's.
  [[nodiscard]] std::optional<Owner> user_of(vmu::Holder holder) const;

 private:
  struct Account {
    Owner user;
    uint64_t bytes = 0;
  };
  struct Room {
    uint64_t held_bytes;
    uint64_t quota_bytes;
  };
  [[nodiscard]] Room room_of(vmu::Holder holder, const Account& account) const;

  const Quotas& quotas_;
  uint64_t device_bytes_;
  std::map<vmu::Holder, Account> accounts_;
  std::map<Owner, uint64_t> held_by_user_;  // without zeros
};

}  // namespace djinn::daemon
