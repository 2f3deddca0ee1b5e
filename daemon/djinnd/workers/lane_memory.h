// SPDX-License-Identifier: Apache-2.0

// LaneMemory: what is granted to the lanes of workers, and to no session.
//
//   slab   an extent that djinnd has made; a new one replaces the former
//   heap   what the lane takes beside its slab, for recordings and copies of inputs
//
// invariant: a lane has what was granted to it until it gives it back or its worker is dead.
#pragma once

#include <map>

#include "daemon/djinnd/memory/extent_source.h"
#include "daemon/djinnd/memory/memory.h"
#include "daemon/djinnd/memory/quota_refusals.h"
#include "daemon/djinnd/workers/domains.h"
#include "ipc/messages.h"
#include "kernel/base/owner.h"

namespace djinn::daemon {

class LaneMemory {
 public:
  LaneMemory(Memory& memory, ExtentSource& extents, Domains& domains, QuotaRefusals& refusals)
      : memory_(memory), extents_(extents), domains_(domains), refusals_(refusals) {}

  // Whether memory of that kind is a lane's.
  [[nodiscard]] static bool is_of_lane(ipc::GrantKind kind) {
    return kind == ipc::GrantKind::kSlab || kind == ipc::GrantKind::kHeap;
  }

  void on_grant_request(Owner domain, const ipc::GrantRequest& event);
  // False when the worker gives back more than it was given, which it must not live to repeat.
  bool on_grant_return(Owner domain, const ipc::GrantReturn& event);
  void worker_died(Owner domain);

 private:
  // Who asked: the domain's worker, as long as so many have died.
  struct Lane {
    Owner domain;
    uint64_t deaths;
  };
  void slab_granted(Lane lane, const ipc::GrantRequest& event, const Status& granted);
  void give_slab(Lane lane, const ipc::GrantRequest& event, Result<Fd> made);
  void give_heap(Owner domain, const ipc::GrantRequest& event, const Status& granted);

  Memory& memory_;
  ExtentSource& extents_;
  Domains& domains_;
  QuotaRefusals& refusals_;
  std::map<Owner, uint64_t> deaths_;  // of each domain's workers
};

}  // namespace djinn::daemon
