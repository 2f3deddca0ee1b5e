// SPDX-License-Identifier: Apache-2.0

// Pins: which users want which models to stay, and how much each may want. It alone changes
// Model::pins.
//
//   pin     a user's, of one model: while a model has one it stays resident, whoever holds it
//   quota   the bytes of the models that one user has pinned on a device; who has pinned more when
//   it sinks
//           keeps it, and it does not bind administrators (quotas.h)
//
// invariant: a model has at most limits::kModelUsers pins, one of each user.
#pragma once

#include <cstdint>
#include <set>

#include "daemon/djinnd/access/authority.h"
#include "daemon/djinnd/events/events.h"
#include "daemon/djinnd/memory/devices.h"
#include "daemon/djinnd/memory/quotas.h"
#include "daemon/djinnd/models/model.h"
#include "daemon/djinnd/models/places.h"
#include "kernel/base/owner.h"
#include "kernel/base/result.h"

namespace djinn::daemon {

class Pins {
 public:
  Pins(const ModelTable& table, const Quotas& quotas, const Devices& devices, const Places& places)
      : table_(table), quotas_(quotas), devices_(devices), places_(places) {}

  // The caller, who sees the model, pins it for themselves. Errors: kBusy while it leaves or its
  // size is not known, and those of check().
  Status pin(const Caller& caller, Model& model) const;
  // The caller ends their own pin, an administrator all. Errors: kBusy, likewise;
  // kPermissionDenied if the pins are others'.
  static Status unpin(const Caller& caller, Model& model);

  // Whether the caller may have a pin of the model. Errors: kLimitExceeded; kQuotaExceeded.
  [[nodiscard]] Status check(const Caller& caller, const Model& model) const;
  // Whether the quota has room for it, if it has so many bytes. Errors: kQuotaExceeded.
  [[nodiscard]] Status check_quota(const Caller& caller, const Model& model, uint64_t bytes) const;
  // Of who may: check() said so.
  static void add(Model& model, Owner user);
  // Does nothing where the user has none.
  static void remove(Model& model, Owner user) { model.pins.value_.erase(user); }
  static void remove_all(Model& model) { model.pins.value_.clear(); }

  // What the models that the user has pinned on the device come to.
  [[nodiscard]] uint64_t bytes_of(Owner user, DeviceId device) const;

 private:
  const ModelTable& table_;
  const Quotas& quotas_;
  const Devices& devices_;
  const Places& places_;
};

// An event for each user who has a pin now and had none before, or the reverse. before: the model's
// pins then; by: who brought it about.
void tell_of_pins(Events& events, const Model& model, const std::set<Owner>& before, Owner by);

// For who wants to do what a pin of somebody else forbids. Error: kPermissionDenied.
[[nodiscard]] Error pinned_by_others();

}  // namespace djinn::daemon
