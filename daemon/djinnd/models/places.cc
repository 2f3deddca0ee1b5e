// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/models/places.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernel/base/assert.h"

namespace djinn::daemon {
namespace {

bool keeps(const Model& model, Owner user) {
  const bool is_pinned = model.pins->contains(user);
  const bool holds = std::ranges::any_of(
      *model.leases, [&](const auto& lease) { return lease.second.domain == user; });
  const bool is_stuck = !model.in_use() && !model.pinned() && model.phase == ModelPhase::kLoading;
  return is_pinned || holds || (is_stuck && model.owner() == user);
}

}  // namespace

uint32_t Places::count(Owner user) const {
  return static_cast<uint32_t>(std::ranges::count_if(
      table_.all(), [&](const auto& entry) { return keeps(entry.second, user); }));
}

Status Places::check(const Caller& caller, const Model* model) const {
  if (caller.admin || (model != nullptr && keeps(*model, caller.user))) return {};
  const uint32_t most = quotas_.models_of(caller.user);
  const uint32_t now = count(caller.user);
  DJINN_ASSERT(now <= table_.size());
  if (now < most) return {};
  return Error{
      ErrorCode::kLimitExceeded,
      fmt::format("This user keeps {} models, with sessions that hold them and with pins, and may "
                  "keep {} at a time. Close or unpin one, or ask the administrator for a larger "
                  "{}.",
                  now, most, quotas_.key_of(caller.user, QuotaOf::kModels, 0))};
}

}  // namespace djinn::daemon
