// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/models/pins.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "daemon/djinnd/loop/log.h"
#include "ipc/limits.h"
#include "kernel/base/assert.h"
#include "kernel/base/checked.h"
#include "kernel/base/size_text.h"

namespace djinn::daemon {
namespace {

Status check_stays(const Model& model) {
  if (model.phase != ModelPhase::kUnloading) return {};
  return Error{ErrorCode::kBusy, "The model is being unloaded. Load it again, pinned."};
}

}  // namespace

void tell_of_pins(Events& events, const Model& model, const std::set<Owner>& before, Owner by) {
  const auto tell = [&](EventKind kind, Owner user, std::string text) {
    Event event = event_of(kind, model, std::move(text));
    event.owner = user;
    event.by = events.user_text(by);
    events.emit_limited(std::move(event));
  };
  for (const Owner user : *model.pins) {
    if (before.contains(user)) continue;
    tell(EventKind::kModelPinned, user,
         fmt::format("model {} is pinned for {}: {}", text_of(model.id), events.user_text(user),
                     size_text(model.bytes)));
  }
  for (const Owner user : before) {
    if (model.pins->contains(user)) continue;
    tell(EventKind::kModelUnpinned, user,
         fmt::format("model {} is no longer pinned for {}", text_of(model.id),
                     events.user_text(user)));
  }
}

Error pinned_by_others() {
  return {ErrorCode::kPermissionDenied,
          "Another user has pinned the model. Ask them, or an administrator, to unpin it."};
}

Status Pins::pin(const Caller& caller, Model& model) const {
  DJINN_CHECK(check_stays(model));
  const bool size_is_known = model.phase != ModelPhase::kLoading || model.returns();
  if (!size_is_known && !caller.admin) {
    return Error{ErrorCode::kBusy, "The model is being loaded. Pin it then."};
  }
  DJINN_CHECK(check(caller, model));
  add(model, caller.user);
  return {};
}

Status Pins::unpin(const Caller& caller, Model& model) {
  DJINN_CHECK(check_stays(model));
  if (caller.admin) {
    remove_all(model);
  } else if (model.pins.value_.erase(caller.user) == 0 && model.pinned()) {
    return pinned_by_others();
  }
  return {};
}

Status Pins::check(const Caller& caller, const Model& model) const {
  if (model.pins->contains(caller.user)) return {};
  if (model.pins->size() >= limits::kModelUsers) {
    return Error{ErrorCode::kLimitExceeded, "Enough users have pinned the model: it stays."};
  }
  DJINN_CHECK(places_.check(caller, &model));
  return check_quota(caller, model, model.bytes);
}

Status Pins::check_quota(const Caller& caller, const Model& model, uint64_t bytes) const {
  if (caller.admin) return {};
  const uint64_t device_bytes = devices_.of(model.device()).total_bytes();
  const uint64_t quota = quotas_.of(caller.user, device_bytes).pin_bytes;
  const uint64_t own = model.pins->contains(caller.user) ? model.bytes : 0;
  const uint64_t all = bytes_of(caller.user, model.device());
  DJINN_ASSERT(all >= own);
  const uint64_t pinned = all - own;
  if (range_fits(pinned, bytes, quota)) return {};
  const std::string key = quotas_.key_of(caller.user, QuotaOf::kPins, device_bytes);
  return Error{ErrorCode::kQuotaExceeded,
               quota == 0
                   ? fmt::format("You may pin no models: {} is 0. Load it without a pin (djinnctl "
                                 "load --no-pin).",
                                 key)
                   : fmt::format("The model needs {}; of {} that you may pin ({}) you have pinned "
                                 "{}. {}oad it without a pin (djinnctl load --no-pin).",
                                 size_text(bytes), size_text(quota), key, size_text(pinned),
                                 pinned > 0 ? "Unpin another model, or l" : "L")};
}

void Pins::add(Model& model, Owner user) {
  model.pins.value_.insert(user);
  DJINN_ASSERT(model.pins->size() <= limits::kModelUsers);
}

uint64_t Pins::bytes_of(Owner user, DeviceId device) const {
  uint64_t bytes = 0;
  for (const auto& [id, model] : table_.all()) {
    if (model.device() == device && model.pins->contains(user)) bytes += model.bytes;
  }
  return bytes;
}

}  // namespace djinn::daemon
