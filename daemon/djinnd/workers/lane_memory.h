// SPDX-License-Identifier: Apache-2.0

// LaneMemory: what is granted to the lanes of workers, and to no session.
//
//   slab   an extent that djinnd has made; a new one replaces the former
//   base   of a GPU's worker: what it has taken there by itself before djinnd knew it, for what
//          libraries keep. It tells of it once, as a request for its heap that names no place; it
//          goes with the worker
//   heap   what the lane takes beside its slab, for recordings and copies of inputs; kept for its
//          next runs, and taken back when others want it (sessions/idle_memory.h). Granted in
//          bytes, or, where it is memory of a GPU, in extents, each for a place that the worker
//          names
//
// invariant: a lane has what was granted to it until it gives it back or its worker is dead.
#pragma once

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "daemon/djinnd/memory/devices.h"
#include "daemon/djinnd/memory/quota_refusals.h"
#include "daemon/djinnd/workers/domains.h"
#include "daemon/djinnd/workers/worker_key.h"
#include "ipc/messages.h"
#include "kernel/base/ids.h"

namespace djinn::daemon {

class LaneMemory {
 public:
  // A worker's base is refused: it has what there is not, and is to end.
  using Refused = std::function<void(WorkerKey, const Error&)>;

  LaneMemory(const Devices& devices, Domains& domains, QuotaRefusals& refusals, Refused refused)
      : devices_(devices), domains_(domains), refusals_(refusals), refused_(std::move(refused)) {}

  // Whether memory of that kind is a lane's.
  [[nodiscard]] static bool is_of_lane(ipc::GrantKind kind) {
    return kind == ipc::GrantKind::kSlab || kind == ipc::GrantKind::kHeap;
  }

  void on_grant_request(WorkerKey key, const ipc::GrantRequest& event);
  // False when the worker gives back more than it was given, which it must not live to repeat.
  bool on_grant_return(WorkerKey key, const ipc::GrantReturn& event);
  void worker_died(WorkerKey key);
  // What the worker's heap was granted, and has not given back.
  [[nodiscard]] uint64_t heap_bytes(WorkerKey key) const;
  // Likewise, with its slab and its base.
  [[nodiscard]] uint64_t bytes(WorkerKey key) const;

 private:
  friend struct DaemonForTests;

  // Who asked: the worker, as long as so many have died.
  struct Lane {
    WorkerKey key;
    uint64_t deaths;
  };
  // What is known of the workers of one key.
  struct Known {
    WorkerId number;  // by which Memory knows its lane and its heap; none has another's
    WorkerId base;    // likewise its base
    uint64_t deaths = 0;
  };
  void slab_granted(Lane lane, const ipc::GrantRequest& event, const Status& granted);
  void give_slab(Lane lane, const ipc::GrantRequest& event, Result<Fd> made);
  void heap_granted(Lane lane, const ipc::GrantRequest& event, const Status& granted);
  void take_base(Lane lane, const ipc::GrantRequest& event);
  void give_chunks(Lane lane, const ipc::GrantRequest& event, Result<std::vector<Fd>> made);
  // Whether the lane that asked is still there, with what it was granted.
  [[nodiscard]] bool is_wanted(Lane lane, const ipc::GrantRequest& event);

  Known& known(WorkerKey key);
  [[nodiscard]] Memory::Holder holder_of(WorkerKey key, ipc::GrantKind kind);

  const Devices& devices_;
  Domains& domains_;
  QuotaRefusals& refusals_;
  Refused refused_;
  // Whose lanes have asked for memory, or whose workers have died.
  std::map<WorkerKey, Known> known_;
};

}  // namespace djinn::daemon
