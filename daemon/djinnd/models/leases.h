// SPDX-License-Identifier: Apache-2.0

// Leases: which sessions hold which models, and who waits for one to be there. It alone changes
// Model::leases and Model::openers.
//
//   lease    a session's hold on a model, counted by its opens (model.h)
//   opener   a request that has its lease, and waits for the model to be resident and in its worker
//   settle   answers the openers who need not wait any more
//
// invariant: who is an opener has a lease.
#pragma once

#include <functional>
#include <vector>

#include "daemon/djinnd/access/replies.h"
#include "daemon/djinnd/memory/devices.h"
#include "daemon/djinnd/models/load_failures.h"
#include "daemon/djinnd/models/mappings.h"
#include "daemon/djinnd/models/model.h"
#include "daemon/djinnd/models/open_request.h"
#include "daemon/djinnd/models/residency.h"
#include "kernel/base/clock.h"
#include "kernel/base/owner.h"

namespace djinn::daemon {

class Copies;  // copies.h

class Leases {
 public:
  Leases(const Clock& clock, ModelTable& table, const Devices& devices, Mappings& mappings,
         Residency& residency, Replies& replies, LoadFailures& failures, Copies& copies,
         ModelListener& listener);

  // The session opens the model: it holds it, and waits. Its user's pin, keep-alive time and name
  // for it are noted; whether they may pin it was asked.
  void join(Model& model, const OpenRequest& request);
  // Ends one of the session's opens. Nothing where the session is gone.
  void leave(Model& model, SessionId session);
  // Ends all of them; none of the session's requests waits.
  void session_left(SessionId session);

  // Sees that the openers' workers get the model, by way of a copy those on GPUs, and answers those
  // who have it.
  void settle(Model& model);
  // No opener any more, for the caller to answer; their leases stay. In the order in which they
  // came.
  std::vector<Opener> take_openers(Model& model, const std::function<bool(const Opener&)>& whose);
  // These workers cannot have the model: who waits for that is told, and leaves. user: of whom the
  // log tells.
  void refuse_openers(Model& model, Owner user, const std::function<bool(WorkerKey)>& whose,
                      const Error& error);
  // The opener goes on without the model: nothing of theirs is left with it.
  void forget(Model& model, const Opener& opener);
  // Where all who wait are one session: what it holds itself may be what is missing.
  [[nodiscard]] Error with_own_part(Error error, const Model& model) const;

 private:
  [[nodiscard]] decltype(ipc::DaemonReply::body) opened(ModelId id, const Opener& opener);

  const Clock& clock_;
  ModelTable& table_;
  const Devices& devices_;
  Mappings& mappings_;
  Residency& residency_;
  Replies& replies_;
  LoadFailures& failures_;
  Copies& copies_;
  ModelListener& listener_;
};

}  // namespace djinn::daemon
