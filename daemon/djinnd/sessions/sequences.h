// SPDX-License-Identifier: Apache-2.0

// Sequences: the sequence groups of all sessions: made, granted memory, moved to disk and back,
// dropped. The worker writes and reads a group, djinnd decides; spill.h says which group goes.
//
// It alone changes a group's phase, its place and what is granted for it (sequence_group.h).
//
// invariant: a group that is spilled has no memory but what was granted for its way back, once
// what it had is freed; until then nothing that is asked for it is granted.
// invariant: what a session has on disk counts against its quota as if it were in memory, so that
// no quota refuses its return.
// invariant: a worker that dies changes nothing: what is spilled then is in its file, the rest is
// in memory. What is spilled holds what users wrote; the file goes with the group, whatever ends
// that.
// invariant: the extents of a session's groups have at most limits::kSequenceAddressBytes together,
// so that those of all sessions of a user fit the addresses of their worker.
// invariant: the loop waits for no disk and for no freeing of memory: queues do what takes time.
#pragma once

#include <cstdint>

#include "daemon/djinnd/access/replies.h"
#include "daemon/djinnd/events/events.h"
#include "daemon/djinnd/loop/work_queue.h"
#include "daemon/djinnd/memory/devices.h"
#include "daemon/djinnd/memory/quota_refusals.h"
#include "daemon/djinnd/sessions/deaths.h"
#include "daemon/djinnd/sessions/lane_steps.h"
#include "daemon/djinnd/sessions/session.h"
#include "daemon/djinnd/sessions/spill.h"
#include "daemon/djinnd/workers/domains.h"
#include "daemon/djinnd/workers/worker_key.h"
#include "kernel/base/clock.h"

namespace djinn::daemon {

class Sequences {
 public:
  // file_work makes and closes files.
  Sequences(const Clock& clock, const Devices& devices, Domains& domains, Events& events,
            QuotaRefusals& refusals, Replies& replies, WorkQueue& file_work,
            const SessionTable& sessions, const LaneSteps& lane_steps, const Deaths& deaths,
            SpillRules rules);

  // --- requests; they answer the client
  void make(Session& session, uint32_t number, const ipc::SequenceGeometry& geometry);
  void drop(Session& session, uint32_t number, SequenceHandle handle);

  // --- to disk
  [[nodiscard]] Spill& spill() { return spill_; }
  [[nodiscard]] const Spill& spill() const { return spill_; }
  // Begins to move groups of the device, until so many bytes are on their way; gives how many are.
  // idle_only: those of sessions that have run nothing for a while.
  uint64_t begin_spill(DeviceId device, uint64_t bytes, bool idle_only);
  // Tries whether groups could go to disk, and tells where they could not.
  void check_spill();

  // --- sessions
  // The session's worker has just taken it in: it is told of the groups.
  void send_all(const Session& session) const;
  // What was asked for the session's groups and waits is given up; who asked is told.
  void refuse_asks(Session& session) const;
  // The session's memory is let go of.
  void let_go_of_files(Session& session) const;

  // --- workers
  // Groups that were being dropped are dropped now; one that kills the worker is refused.
  void worker_died(Session& session, const WorkerDeath& death);
  // Error: the session had the group before, and cannot go on without it.
  [[nodiscard]] Status on_sequence_added(WorkerKey key, const ipc::SequenceAdded& event);
  void on_sequence_dropped(WorkerKey key, const ipc::SequenceDropped& event);
  // False when the worker says what cannot be.
  bool on_sequence_spilled(WorkerKey key, const ipc::SequenceSpilled& event);
  void on_sequence_restored(WorkerKey key, const ipc::SequenceRestored& event);
  // A request of kind kSequence.
  void on_grant_request(WorkerKey key, const ipc::GrantRequest& event);
  // A return of kind kSequence. False when the worker gives back more than it was given.
  bool on_grant_return(WorkerKey key, const ipc::GrantReturn& event);

 private:
  // The transition functions: each asserts that the next state may follow.
  static void enter(SequenceGroup& group, GroupPhase next) { group.phase.enter(next); }
  static void enter(SequenceGroup& group, GroupPlace next) { group.place.enter(next); }
  // Changes what is granted for the group.
  void set_granted(const Session& session, SequenceGroup& group, uint64_t bytes) const;
  // Tells Memory how much of the session is on disk, whenever that or what was granted for its
  // return has changed.
  void note_aside(const Session& session) const;

  // That the session's groups are in.
  [[nodiscard]] Memory& memory_of(const Session& session) const {
    return devices_.of(session.device);
  }
  [[nodiscard]] SequenceGroup* find(SessionId id, WorkerKey key, SequenceHandle handle) const;
  // Of a group that is to be.
  struct GroupBytes {
    uint64_t of_extent;
    uint64_t granted;  // all of it where groups have no parts; else none yet
  };
  void make_extent(const Waiter& waiter, DeviceId device, const ipc::SequenceGeometry& geometry,
                   GroupBytes bytes);
  // Its extent was made, or could not be.
  void has_extent(const Waiter& waiter, DeviceId device, const ipc::SequenceGeometry& geometry,
                  GroupBytes bytes, Result<Fd> made);
  // Takes the extent over, if there is room for the group.
  Status add(Session& session, uint32_t number, const ipc::SequenceGeometry& geometry,
             GroupBytes bytes, Fd& extent);
  void send(const Session& session, const SequenceGroup& group) const;
  void erase(const Session& session, SequenceGroup& group);
  void erased(SessionId id, SequenceHandle handle);
  void refuse_asks(const Session& session, SequenceGroup& group) const;
  void granted(WorkerKey key, const ipc::GrantRequest& event, const Status& status);

  void begin_spill(const Spill::Candidate& candidate);
  void cannot_spill(const std::string& why);
  void has_file(SessionId id, SequenceHandle handle, uint64_t attempt, Result<Fd> file);
  void stays(const Session& session, SequenceGroup& group);
  // Frees the group's memory, and takes so many bytes from what is granted for it when that is
  // done.
  void free_memory(const Session& session, SequenceGroup& group, uint64_t bytes);
  void freed(SessionId id, SequenceHandle handle, uint64_t bytes, bool done);
  void let_go_of_file(SequenceGroup& group) const;
  // Its worker is dead, so the group is in memory or in its file, and on no way between them.
  void left_by_worker(const Session& session, SequenceGroup& group);
  void emit(EventKind kind, const Session& session, uint64_t bytes, const char* what);

  const Clock& clock_;
  const Devices& devices_;
  Domains& domains_;
  Events& events_;
  QuotaRefusals& refusals_;
  Replies& replies_;
  WorkQueue& file_work_;
  const SessionTable& sessions_;
  Spill spill_;
  uint64_t attempts_ = 0;
};

}  // namespace djinn::daemon
