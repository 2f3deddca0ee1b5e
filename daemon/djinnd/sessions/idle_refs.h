// SPDX-License-Identifier: Apache-2.0

// IdleRefs: what is granted for sessions' refs and holds none, and what is granted for the heaps of
// workers' lanes. A worker keeps both, so that a session that does the same again and again asks
// for nothing; they are taken back when others want them.
//
//   idle bytes   of refs, as the worker says in the state extent, and at most what is granted; of a
//                heap, all, for it holds nothing between two steps. A heap is counted with the
//                session of its worker that has used it last
//   trimming     the worker was asked to give them back, and has not answered
//
// invariant: a session that has given back all that could go is asked again after its next step
// only: what is left, in pieces too small to go, is nothing to wait for.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "daemon/djinnd/sessions/lane_steps.h"
#include "daemon/djinnd/sessions/session.h"
#include "daemon/djinnd/sessions/spill.h"
#include "daemon/djinnd/workers/domains.h"
#include "daemon/djinnd/workers/lane_memory.h"
#include "daemon/djinnd/workers/worker_key.h"
#include "ipc/messages.h"
#include "kernel/base/device_id.h"
#include "kernel/base/owner.h"

namespace djinn::daemon {

class IdleRefs {
 public:
  // spill: knows who has run nothing for a while.
  IdleRefs(Domains& domains, const LaneMemory& lanes, const SessionTable& sessions,
           const LaneSteps& lane_steps, const Spill& spill)
      : domains_(domains),
        lanes_(lanes),
        sessions_(sessions),
        lane_steps_(lane_steps),
        spill_(spill) {}

  struct Bytes {
    uint64_t refs = 0;
    uint64_t heaps = 0;
    [[nodiscard]] uint64_t all() const { return refs + heaps; }
  };
  // The device's idle bytes that could be asked for now.
  [[nodiscard]] Bytes bytes(DeviceId device) const;
  // Begins to take back, until so many bytes are on their way; gives how many are. idle_only: of
  // those sessions alone that have run nothing for a while.
  uint64_t begin(DeviceId device, uint64_t bytes, bool idle_only);
  // How long until one more session has run nothing for a while; nothing where there is none.
  [[nodiscard]] std::optional<uint64_t> ms_to_next_idle(DeviceId device) const;
  // Begins to take back all of the user's.
  void begin(DeviceId device, Owner user);

  // What the session's worker was asked for on its account, and has not given back.
  [[nodiscard]] uint64_t coming_bytes(const Session& session) const;
  // The worker has given back so many of the session's bytes.
  static void note_returned(Session& session, uint64_t bytes);
  // It has given back what could go.
  void on_trimmed(WorkerKey key, const ipc::RefsTrimmed& event);
  static void worker_died(Session& session);

 private:
  struct Candidate {
    Session* session;
    Bytes bytes;
  };
  // Of sessions that run nothing first, those that were used least recently before others.
  [[nodiscard]] std::vector<Candidate> candidates(DeviceId device,
                                                  std::optional<Owner> user = {}) const;
  void begin(const Candidate& candidate);

  Domains& domains_;
  const LaneMemory& lanes_;
  const SessionTable& sessions_;
  const LaneSteps& lane_steps_;
  const Spill& spill_;
};

}  // namespace djinn::daemon
