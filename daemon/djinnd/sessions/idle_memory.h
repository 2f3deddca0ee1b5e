// SPDX-License-Identifier: Apache-2.0

// IdleMemory: what is granted and of no use to anybody now. Workers keep it, so that a session that
// does the same again and again asks for nothing; it is taken back when others want it.
//
//   of refs      granted for a session's refs, and holding none, as its worker says in the state
//                extent: at most what is granted
//   of a heap    all that a lane's heap was granted, because it holds nothing between two steps. It
//                is counted with the session of its worker that has used it last
//   left over    of the lane, slab and heap, of a worker that serves no session any more. Such a
//                worker ends, and the next session gets a spare one
//   trimming     the worker was asked to give back refs' and heap's, and has not answered
//
// invariant: a session that has given back all that could go is asked again after its next step
// only: what is left, in pieces too small to go, is nothing to wait for.
#pragma once

#include <cstdint>
#include <map>
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

class IdleMemory {
 public:
  // spill: knows who has run nothing for a while.
  IdleMemory(Domains& domains, const LaneMemory& lanes, const SessionTable& sessions,
             const LaneSteps& lane_steps, const Spill& spill)
      : domains_(domains),
        lanes_(lanes),
        sessions_(sessions),
        lane_steps_(lane_steps),
        spill_(spill) {}

  struct Candidate {
    Session* session;
    bool runs;         // both as they were when it was looked at: its client and its worker go on
    uint64_t used_ns;  // between two looks
    uint64_t ref_bytes;
    uint64_t heap_bytes = 0;
    [[nodiscard]] uint64_t bytes() const { return ref_bytes + heap_bytes; }
  };
  // What could be taken back now; good for as long as the caller goes on without the loop.
  struct Offer {
    // Of sessions that run nothing first, those that were used least recently before others.
    std::vector<Candidate> candidates;
    std::map<WorkerKey, uint64_t> left_over;  // bytes of each worker, those that end not among them
    [[nodiscard]] uint64_t ref_bytes() const;
    [[nodiscard]] uint64_t lane_bytes() const;
    [[nodiscard]] uint64_t bytes() const { return ref_bytes() + lane_bytes(); }
  };
  [[nodiscard]] Offer offer(DeviceId device) const;
  // Begins to take back, until so many bytes are on their way; gives how many are. idle_only: of
  // those sessions alone that have run nothing for a while, and nothing that is left over.
  uint64_t begin(const Offer& offer, uint64_t bytes, bool idle_only);
  // How long until one more session has run nothing for a while; nothing where there is none.
  [[nodiscard]] std::optional<uint64_t> ms_to_next_idle(DeviceId device) const;
  // Begins to take back all of the user's.
  void begin(DeviceId device, Owner user);

  // What the session's worker was asked for on its account, and has not given back.
  [[nodiscard]] uint64_t coming_bytes(const Session& session) const;
  // What left-over workers have that were told to end, and have not.
  [[nodiscard]] uint64_t ending_bytes(DeviceId device, std::optional<Owner> user) const;
  // The worker has given back so many of the session's bytes.
  static void note_returned(Session& session, uint64_t bytes);
  // It has given back what could go.
  void on_trimmed(WorkerKey key, const ipc::RefsTrimmed& event);
  static void worker_died(Session& session);

 private:
  // Whether anything is granted that could be idle, on the session's account; no system call.
  [[nodiscard]] bool may_have_idle(const Session& session) const;
  [[nodiscard]] std::vector<Candidate> candidates(DeviceId device, std::optional<Owner> user) const;
  [[nodiscard]] std::map<WorkerKey, uint64_t> left_over(DeviceId device,
                                                        std::optional<Owner> user) const;
  void begin(const Candidate& candidate);

  Domains& domains_;
  const LaneMemory& lanes_;
  const SessionTable& sessions_;
  const LaneSteps& lane_steps_;
  const Spill& spill_;
};

}  // namespace djinn::daemon
