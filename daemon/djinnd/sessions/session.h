// SPDX-License-Identifier: Apache-2.0

// Session: one client connection and all that it holds. The connection is the lease.
//
//   greeting -> attaching   Hello came; its memory was made, a worker is waited for
//   greeting -> live        Hello of an observer, which has no memory
//   attaching -> live       there is a worker; it was told of the session, and Welcome was sent
//   any -> leaving          the connection is gone; the worker is to let go
//
// Who comes by djinn-gate's socket is the gate's user, who may do nothing with the session, until
// Hello names a principal, and that principal from then on.
//
// What the client submits before the worker has mapped the session waits in its ring. A worker's
// death changes no phase: `attached` falls, and rises when the next worker is told of the session.
//
// invariant: a leaving session has no channel and gets no more grants.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "daemon/djinnd/access/authority.h"
#include "daemon/djinnd/access/replies.h"
#include "daemon/djinnd/access/visitor.h"
#include "daemon/djinnd/loop/channel.h"
#include "daemon/djinnd/loop/deferred_close.h"
#include "daemon/djinnd/sessions/sequence_group.h"
#include "daemon/djinnd/workers/recovery.h"
#include "daemon/djinnd/workers/worker_key.h"
#include "daemon/djinnd/workers/worker_supervisor.h"
#include "ipc/bell.h"
#include "ipc/limits.h"
#include "ipc/messages.h"
#include "kernel/base/fd.h"
#include "kernel/base/ids.h"
#include "kernel/base/owned_state.h"
#include "kernel/base/owner.h"

namespace djinn::daemon {

enum class SessionPhase : uint8_t { kGreeting, kAttaching, kLive, kLeaving };
[[nodiscard]] bool may_follow(SessionPhase from, SessionPhase to);
class Sessions;  // sessions.h

// Memory for refs that one descriptor names.
struct RefExtent {
  uint64_t bytes = 0;
  Fd fd;
};

// What a session with a data path shares with its worker. It has all of it or none.
struct SessionMemory {
  uint64_t staging_bytes = 0;
  uint64_t ref_bytes_max = 0;
  Fd memory;
  Fd state;
  // Those of the window of ref_bytes_max, by offset. Where extents have parts one, of all of it;
  // elsewhere those that were granted (ref_grants.h).
  std::map<uint64_t, RefExtent> refs;
  Fd submission_bell;
  ipc::CompletionBell completion_bell;

  // All but the refs, which are of a device (extent_source.h). staging_bytes: a multiple of 4096.
  // The rings have their pages then; those of the staging slab come as the client uses it. Errors:
  // kOutOfMemory, kLimitExceeded (descriptors).
  static Result<SessionMemory> make(uint64_t staging_bytes);
  // What is granted for it: all that it may come to.
  static uint64_t bytes(uint64_t staging_bytes);
  // Of these the state's.
  static uint64_t state_bytes();
  // Of all extents of refs.
  [[nodiscard]] uint64_t chunk_bytes() const;
  // What of it the client has, too.
  [[nodiscard]] uint64_t shared_bytes() const { return ipc::SessionLayout::bytes(staging_bytes); }
  // Reads the progress off the state head. Errors: kMalformed, kSystem.
  [[nodiscard]] Result<gc::Progress> progress() const;
  // The client has submitted what is not complete, if its memory is to be believed.
  [[nodiscard]] bool is_asked() const;
  // The worker has completions to tell and no slot for them, if the client's memory is to be
  // believed.
  [[nodiscard]] bool client_is_awaited() const;
  // What the client says of itself; nothing where it cannot be read.
  [[nodiscard]] ipc::ClientStatement statement() const;
  // Asks the worker, whose lane may sleep, to give up the submission in flight. Through memory that
  // no client has: writing to a memfd may wait for whoever else has it (ipc/README.md). Errors:
  // kOutOfMemory, kSystem.
  [[nodiscard]] Status cancel_in_flight() const;
  // The worker that was in the running step is dead, so nobody is. Errors: likewise.
  [[nodiscard]] Status leave_step() const;
};

// What a client sent.
struct ClientMessage {
  std::vector<std::byte> bytes;
  std::vector<SharedFd> fds;
};

struct Session {
  SessionId id;
  Owner domain;
  DeviceId device = kHostDevice;  // where its refs and groups are
  Caller caller;
  Entrance entrance = Entrance::kClients;
  std::string principal;  // that a gate has named; then it stays theirs
  pid_t pid = 0;
  std::string client_name;
  ServiceClass service = ServiceClass::kNormal;
  uint64_t started_wall_ns = 0;
  uint64_t payload_bytes_in = 0;  // memfds that came with its requests
  OwnedState<SessionPhase, Sessions> phase;
  bool observer = false;
  std::unique_ptr<Channel> channel;  // null once it leaves
  std::unique_ptr<Channel> parted;   // what the channel was, until the memory is let go of
  std::set<uint32_t> pending;        // numbers of requests without an answer
  // Answers that are to be made when the client has read the earlier ones.
  std::deque<std::function<ipc::DaemonReply()>> owed;
  std::shared_ptr<Closer> closer;       // of all that the client sends
  std::vector<SharedFd> files;          // added for the next OpenModel
  std::vector<std::string> file_names;  // of those; of some empty

  SessionMemory memory;  // not for observers
  uint64_t ref_bytes_granted = 0;
  // Of those granted (ref_grants.h): chunks that are being made, and that are being freed.
  uint64_t ref_bytes_coming = 0;
  uint64_t ref_bytes_freeing = 0;
  std::set<uint64_t> ref_makes;             // requests of its worker whose chunks are being made
  std::vector<ipc::GrantRequest> ref_asks;  // likewise, that wait until no chunk is being freed
  bool has_trimmed = false;                 // and waits likewise
  bool trims = false;                       // see idle_memory.h
  uint64_t trimming_bytes = 0;              // of those granted, what its worker is to give back
  uint64_t trimming_heap_bytes = 0;         // and of its worker's heap
  std::optional<uint64_t> trimmed_at;       // the commit at which it had given back what could go
  SequenceSlots sequences;
  bool attached = false;        // the present worker was told of it
  uint64_t attachment = 0;      // how many workers were
  uint64_t lost_worker_ns = 0;  // when the last of them died, by the monotonic clock
  uint32_t hello = 0;           // the number of the Hello that waits for Welcome
  DeathCount deaths;
  Quarantine quarantine;
  bool has_killed = false;          // a worker ended in a step of it
  uint64_t gives_way_until_ns = 0;  // where it has killed: others have their turn before
  uint64_t commit_at_attach = 0;
  std::optional<Error> refusal;  // of the submission in flight, by the next worker
  uint64_t commit_at_death = 0;
  uint32_t attach_deaths = 0;  // of workers that were about to attach it
  uint64_t commit_seen = 0;    // when it was last looked whether it does something
  uint64_t used_ns = 0;        // when it was last seen to

  // The worker that serves it.
  [[nodiscard]] WorkerKey worker() const { return {domain, device}; }
  [[nodiscard]] bool has_memory() const { return memory.state.valid(); }
  // Whether memory may be granted for what it has.
  [[nodiscard]] bool may_be_granted() const {
    return phase != SessionPhase::kLeaving && has_memory();
  }
  // Whether it has a run in flight, or asks for one.
  [[nodiscard]] bool runs() const;
  // Likewise, of a session with memory whose progress was just read.
  [[nodiscard]] bool runs(const gc::Progress& now) const;
  // Its extents: of refs and groups. They must not be used after this.
  std::vector<Fd> take_extents();
  // Leaves the bells to its closer. No worker has them any more.
  void close_bells();
  // The bytes of its sequence groups that lie aside.
  [[nodiscard]] uint64_t aside_bytes() const;
  // Whether a sequence group of it is on its way to disk or back.
  [[nodiscard]] bool moves_groups() const;
};

// The errors for a worker that asks memory for what is no more, or is wanted no more.
[[nodiscard]] Error session_has_ended();
[[nodiscard]] Error memory_is_given_up();

// Checks what a client asked for against limits.h. Errors: kLimitExceeded.
Result<uint64_t> check_staging_bytes(uint64_t asked);

// The sessions that there are.
class SessionTable {
 public:
  using Map = std::map<SessionId, std::unique_ptr<Session>>;

  Session& add(std::unique_ptr<Session> session);
  void erase(SessionId id) { sessions_.erase(id); }
  // Null when there is none any more.
  [[nodiscard]] Session* find(SessionId id) const;
  // A session that this worker serves, or null.
  [[nodiscard]] Session* find(SessionId id, WorkerKey worker) const;
  [[nodiscard]] const Map& all() const { return sessions_; }
  [[nodiscard]] size_t size() const { return sessions_.size(); }

 private:
  Map sessions_;
};

}  // namespace djinn::daemon
