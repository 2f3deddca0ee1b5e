// SPDX-License-Identifier: Apache-2.0

// LaneMemory: what is granted to the lanes of workers, and to no session.
//
//   slab   a memfd that djinnd makes; a new one replaces the former
//   heap   what the lane takes beside its slab, for recordings and copies of inputs
//
// invariant: a lane has what was granted to it until it gives it back or its worker is dead.
#pragma once

#include "daemon/djinnd/memory/memory.h"
#include "daemon/djinnd/memory/quota_refusals.h"
#include "daemon/djinnd/workers/domains.h"
#include "ipc/messages.h"

namespace djinn::daemon {

class LaneMemory {
 public:
  LaneMemory(Memory& memory, Domains& domains, QuotaRefusals& refusals)
      : memory_(memory), domains_(domains), refusals_(refusals) {}

  // Whether memory of that kind is a lane's.
  [[nodiscard]] static bool is_of_lane(ipc::GrantKind kind) {
    return kind == ipc::GrantKind::kSlab || kind == ipc::GrantKind::kHeap;
  }

  void on_grant_request(DomainId domain, const ipc::GrantRequest& event);
  // False when the worker gives back more than it was given, which it must not live to repeat.
  bool on_grant_return(DomainId domain, const ipc::GrantReturn& event);
  void worker_died(DomainId domain);

 private:
  void give_slab(DomainId domain, const ipc::GrantRequest& event, const Status& granted);
  void give_heap(DomainId domain, const ipc::GrantRequest& event, const Status& granted);

  Memory& memory_;
  Domains& domains_;
  QuotaRefusals& refusals_;
};

}  // namespace djinn::daemon
