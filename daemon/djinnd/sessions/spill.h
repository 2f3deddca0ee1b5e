// SPDX-License-Identifier: Apache-2.0

// Spill: moves sequence groups of idle sessions to disk, and hears of their coming back
// (ARCHITECTURE section 4, Tiers). The worker copies, djinnd decides:
//
//   memory -> spilling     a file without a name is made, and the worker fills it
//   spilling -> spilled    the worker said that all is written: the memory is freed
//   spilling -> memory     it could not be written, or the worker died: nothing has changed
//   spilled -> memory      the group's next use: the worker asked for a grant, read the file, and
//                          said so; the file goes
//
// invariant: a group that is spilled has no memory but what was granted for its way back, once
// what it had is freed; until then nothing that is asked for it is granted.
// invariant: what a session has on disk counts against its quota as if it were in memory, so that
// no quota refuses its return; all that is on disk is at most the limit.
// invariant: a worker that dies changes nothing: what is spilled then is in its file, the rest is
// in memory. What is spilled holds what users wrote; the file goes with the group, whatever ends
// that.
// invariant: the loop waits for no disk and for no freeing of memory: queues do what takes time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/djinnd/events/events.h"
#include "daemon/djinnd/loop/work_queue.h"
#include "daemon/djinnd/memory/memory.h"
#include "daemon/djinnd/sessions/session.h"
#include "daemon/djinnd/workers/domains.h"
#include "kernel/base/clock.h"

namespace djinn::daemon {

struct SpillRules {
  std::string directory;      // empty: nothing is spilled
  uint64_t idle_ms = 60'000;  // who ran nothing for so long gives way to the first threshold
  uint64_t limit_bytes = 0;   // of all that is on disk or on its way there
};

class Spill {
 public:
  struct World {
    const Clock& clock;
    Memory& memory;
    Domains& domains;
    Events& events;
    WorkQueue& memory_work;
    WorkQueue& file_work;
    const std::map<SessionId, std::unique_ptr<Session>>& sessions;
    // A group's memory is free: who asks for it anew may have it.
    std::function<void(DomainId, const ipc::GrantRequest&)> grant;
  };
  Spill(const World& world, SpillRules rules) : world_(world), rules_(std::move(rules)) {}

  void set_idle_ms(uint64_t ms) { rules_.idle_ms = ms; }
  // What is there already may stay.
  void set_limit(uint64_t bytes) { rules_.limit_bytes = bytes; }

  // Begins with groups of sessions that run nothing, least recently used first, until so many bytes
  // are on their way; gives how many are. idle_only: those that have run nothing for a while.
  uint64_t begin(uint64_t bytes, bool idle_only);
  // Of groups that could go at once.
  [[nodiscard]] uint64_t evictable_bytes() const;
  // Of groups that are on disk.
  [[nodiscard]] uint64_t spilled_bytes() const;
  // Until a group has been idle for a while that is not yet; nothing where there is none.
  [[nodiscard]] std::optional<uint64_t> ms_to_next_idle() const;

  // Looks whether the session has done something since the last look.
  void note_use(Session& session, const gc::Progress& progress) const;

  // --- workers
  // False when the worker says what cannot be.
  bool hear(const Session& session, SequenceGroup& group, const ipc::SequenceSpilled& event);
  void restored(const Session& session, SequenceGroup& group);
  void worker_died(const Session& session, SequenceGroup& group);
  // A grant for a group whose memory is being freed waits until it is; false: this one need not.
  static bool put_off(SequenceGroup& group, const ipc::GrantRequest& request);

  // The session, or the group, is nobody's any more.
  void let_go_of_files(Session& session) const;
  void let_go_of_file(SequenceGroup& group) const;
  // What of a session's is on disk, or what was granted for its return, has changed.
  void note_aside(const Session& session) const;

 private:
  struct Candidate {
    Session* session;
    SequenceGroup* group;
  };
  // Least recently used first, as many as the limit has room for.
  [[nodiscard]] std::vector<Candidate> candidates(bool idle_only) const;
  [[nodiscard]] bool may_spill(const Session& session) const;
  [[nodiscard]] bool is_idle(const Session& session) const;
  void begin(const Candidate& candidate);
  void has_file(SessionId session, SequenceHandle handle, uint64_t attempt, Result<Fd> file);
  void stays(SequenceGroup& group);
  // So many bytes of what was granted for it are not any more, then.
  void free_memory(const Session& session, SequenceGroup& group, uint64_t bytes);
  void freed(SessionId session, SequenceHandle handle, uint64_t bytes, bool done);
  [[nodiscard]] Session* find(SessionId session) const;
  // Of groups that are on their way to disk.
  [[nodiscard]] uint64_t spilling_bytes() const;
  void tell(EventKind kind, const Session& session, uint64_t bytes, const char* what);

  World world_;
  SpillRules rules_;
  uint64_t not_before_ns_ = 0;  // no file could be made
  uint64_t attempts_ = 0;
};

}  // namespace djinn::daemon
