// SPDX-License-Identifier: Apache-2.0

// Session: one client connection and all that it holds. The connection is the lease.
//
//   greeting -> attaching   Hello came; its memory was made, a worker is waited for
//   greeting -> live        Hello of an observer, which has no memory
//   attaching -> live       there is a worker; it was told of the session, and Welcome was sent
//   any -> leaving          the connection is gone; the worker is to let go
//
// What the client submits before the worker has mapped the session waits in its ring. A worker's
// death changes no phase: `attached` falls, and rises when the next worker is told of the session.
//
// invariant: a leaving session has no channel and gets no more grants.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <array>
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
#include "daemon/djinnd/loop/channel.h"
#include "daemon/djinnd/loop/closers.h"
#include "daemon/djinnd/workers/recovery.h"
#include "daemon/djinnd/workers/worker_supervisor.h"
#include "ipc/bell.h"
#include "ipc/limits.h"
#include "ipc/messages.h"
#include "kernel/base/fd.h"
#include "kernel/base/ids.h"

namespace djinn::daemon {

enum class SessionPhase : uint8_t { kGreeting, kAttaching, kLive, kLeaving };
[[nodiscard]] bool may_follow(SessionPhase from, SessionPhase to);

// The memory of one that is dropping is freed last: then it has no memfd.
enum class GroupPhase : uint8_t { kAdding, kLive, kDropping };

// Where its bytes are; spill.h moves them.
enum class GroupPlace : uint8_t { kMemory, kSpilling, kSpilled };
inline constexpr uint8_t kGroupPlaces = 3;

struct SequenceGroup {
  SequenceHandle handle;
  ipc::SequenceGeometry geometry;
  GroupPhase phase = GroupPhase::kAdding;
  Fd memfd;
  uint64_t granted_bytes = 0;
  Asker asker;          // kAdding, kDropping: who waits; no number: nobody
  uint32_t deaths = 0;  // of workers that were about to add it
  GroupPlace place = GroupPlace::kMemory;
  Fd spill_file;                     // kSpilling, kSpilled
  uint64_t spilled_bytes = 0;        // kSpilled: what was granted
  uint64_t spill_not_before_ns = 0;  // after a failure
  uint32_t spill_deaths = 0;         // of workers that were about to spill it
  uint64_t spill_attempt = 0;        // kSpilling: for which its file is made
  // Memory of it that is being freed, which spill.h does; who asks for some waits until then.
  uint32_t frees = 0;
  uint64_t freeing_bytes = 0;
  std::vector<ipc::GrantRequest> asks;

  // What was granted for it and stays so.
  [[nodiscard]] uint64_t held_bytes() const { return granted_bytes - freeing_bytes; }
  // What of it comes free by itself: all of one that is dropped or on its way to disk.
  [[nodiscard]] uint64_t leaving_bytes() const {
    const bool all = phase == GroupPhase::kDropping || place == GroupPlace::kSpilling;
    return all ? granted_bytes : freeing_bytes;
  }
  // What of it is on disk and in no memory that is granted.
  [[nodiscard]] uint64_t aside_bytes() const {
    return place == GroupPlace::kSpilled ? spilled_bytes - std::min(spilled_bytes, granted_bytes)
                                         : 0;
  }
  // Its worker writes or reads it, or its memory is being freed.
  [[nodiscard]] bool moves() const {
    return place == GroupPlace::kSpilling || (place == GroupPlace::kSpilled && granted_bytes > 0);
  }
};

// The slots of a session's sequence groups: handles are chosen here.
class SequenceSlots {
 public:
  // Errors: kLimitExceeded when all slots are taken.
  Result<SequenceGroup*> make(const ipc::SequenceGeometry& geometry);
  // Errors: kNotFound, kStaleHandle. A group that is being dropped is not found.
  Result<SequenceGroup*> find(SequenceHandle handle);
  // Whatever its phase; null if there is none.
  SequenceGroup* lookup(SequenceHandle handle);
  void erase(SequenceHandle handle) { groups_.erase(handle.index); }
  [[nodiscard]] std::map<uint32_t, SequenceGroup>& all() { return groups_; }
  [[nodiscard]] const std::map<uint32_t, SequenceGroup>& all() const { return groups_; }
  [[nodiscard]] size_t size() const { return groups_.size(); }

 private:
  std::map<uint32_t, SequenceGroup> groups_;  // by index
  std::array<uint32_t, limits::kSequences> generations_{};
};

// What a session with a data path shares with its worker. Made whole or not at all.
struct SessionMemory {
  uint64_t staging_bytes = 0;
  uint64_t ref_bytes_max = 0;
  Fd memory;
  Fd state;
  Fd refs;
  Fd submission_bell;
  ipc::CompletionBell completion_bell;

  // staging_bytes: a multiple of 4096. The rings have their pages then; those of the staging slab
  // come as the client uses it. Errors: kOutOfMemory, kLimitExceeded (descriptors).
  static Result<SessionMemory> make(uint64_t staging_bytes, uint64_t ref_bytes_max);
  // What is granted for it: all that it may come to.
  static uint64_t bytes(uint64_t staging_bytes);
  // What of it the client has, too.
  [[nodiscard]] uint64_t shared_bytes() const { return ipc::SessionLayout::bytes(staging_bytes); }
  // Of the state head. Errors: kMalformed, kSystem.
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
  DomainId domain = 0;
  Caller caller;
  pid_t pid = 0;
  std::string client_name;
  uint64_t started_wall_ns = 0;
  uint64_t payload_bytes_in = 0;  // memfds that came with its requests
  SessionPhase phase = SessionPhase::kGreeting;
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
  SequenceSlots sequences;
  bool attached = false;  // the present worker was told of it
  uint32_t hello = 0;     // the number of the Hello that waits for Welcome
  DeathCount deaths;
  Quarantine quarantine;
  bool has_killed = false;       // a worker ended in a step of it
  std::optional<Error> refusal;  // of the submission in flight, by the next worker
  uint64_t commit_at_death = 0;
  uint32_t attach_deaths = 0;  // of workers that were about to attach it
  uint64_t commit_seen = 0;    // when it was last looked whether it does something
  uint64_t used_ns = 0;        // when it was last seen to

  void go(SessionPhase next);
  [[nodiscard]] bool has_memory() const { return memory.state.valid(); }
  // Whether it has a run in flight, or asks for one.
  [[nodiscard]] bool runs() const;
  // All memory that no client has; it must not be used after this.
  std::vector<Fd> take_memory();
  // Leaves the bells to its closer. No worker has them any more.
  void close_bells();
  // Of its sequence groups.
  [[nodiscard]] uint64_t aside_bytes() const;
  // Whether a sequence group of it is on its way to disk or back.
  [[nodiscard]] bool moves_groups() const;
};

// Checks what a client asked for against limits.h. Errors: kInvalidArgument, kLimitExceeded.
Result<uint64_t> check_staging_bytes(uint64_t asked);
Status check_geometry(const ipc::SequenceGeometry& geometry);

}  // namespace djinn::daemon
