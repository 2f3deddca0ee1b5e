// SPDX-License-Identifier: Apache-2.0

// Places: how many models one user may keep in the table, which has limits::kModels places for all.
//
//   keeps   a session of the user holds the model, resident or on disk, waits for it, or the user
//           has pinned it. Of a shared one that is so of each who keeps it. What nobody keeps gives
//           way to whoever needs a place, so it counts against nobody; what is being read again,
//           and cannot, counts against its owner
//   quota   how many a user may keep; who keeps more when it sinks keeps them, and it does not bind
//           administrators (quotas.h)
//
// invariant: the models that nobody may take a place from are at most the sum of all users' quotas.
#pragma once

#include <cstdint>

#include "daemon/djinnd/access/authority.h"
#include "daemon/djinnd/memory/quotas.h"
#include "daemon/djinnd/models/model.h"
#include "kernel/base/owner.h"
#include "kernel/base/result.h"

namespace djinn::daemon {

class Places {
 public:
  Places(const ModelTable& table, const Quotas& quotas) : table_(table), quotas_(quotas) {}

  // Whether the caller may keep the model too, null being one that is not there yet.
  // Errors: kLimitExceeded.
  [[nodiscard]] Status check(const Caller& caller, const Model* model) const;
  // How many the user keeps.
  [[nodiscard]] uint32_t count(Owner user) const;

 private:
  const ModelTable& table_;
  const Quotas& quotas_;
};

}  // namespace djinn::daemon
