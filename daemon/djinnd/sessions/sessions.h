// SPDX-License-Identifier: Apache-2.0

// Sessions: the clients' connections and their memory, from connect to release. Their sequence
// groups: sequences.h.
//
// A release goes: connection closed -> the worker is told -> it lets go, or dies -> descriptors are
// closed and grants end. Start with session.h.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "daemon/djinnd/access/inquiries.h"
#include "daemon/djinnd/access/replies.h"
#include "daemon/djinnd/events/events.h"
#include "daemon/djinnd/loop/id_source.h"
#include "daemon/djinnd/loop/turns.h"
#include "daemon/djinnd/loop/work_queue.h"
#include "daemon/djinnd/memory/departed.h"
#include "daemon/djinnd/memory/devices.h"
#include "daemon/djinnd/memory/quota_refusals.h"
#include "daemon/djinnd/memory/quotas.h"
#include "daemon/djinnd/sessions/deaths.h"
#include "daemon/djinnd/sessions/idle_memory.h"
#include "daemon/djinnd/sessions/lane_steps.h"
#include "daemon/djinnd/sessions/ref_grants.h"
#include "daemon/djinnd/sessions/sequences.h"
#include "daemon/djinnd/sessions/session.h"
#include "daemon/djinnd/workers/domains.h"
#include "daemon/djinnd/workers/worker_key.h"
#include "kernel/base/clock.h"
#include "kernel/base/owner.h"

namespace djinn::daemon {

// The listener stands above sessions and hears of them.
class SessionListener {
 public:
  virtual ~SessionListener() = default;
  // A message of a client came.
  virtual void client_said(Session& session, ClientMessage message) = 0;
  // The worker was told of it: what it defines may be told after it.
  virtual void session_attached(SessionId id) = 0;
  // Models and programs are to let go of it.
  virtual void session_left(SessionId id) = 0;
};

// Where clients' connections are heard and closed; all of it outlives them.
struct ConnectionHost {
  Loop& loop;
  Traffic& traffic;  // counts what goes to and from clients
  DeferredClose& deferred_close;
  Turns& turns;
};

// Threads that do what may wait, so that the loop does not.
struct SessionWork {
  WorkQueue& memory;  // frees host memory
  WorkQueue& files;   // makes and closes files
  UserQueues& users;  // asks who still has what a session shared with its client
};

class Sessions final : public Replies, private LateChunks {
 public:
  Sessions(const ConnectionHost& host, const Clock& clock, IdSource& ids, const Devices& devices,
           Quotas& quotas, Domains& domains, Authority& authority, Events& events,
           QuotaRefusals& refusals, const LaneMemory& lanes, const SessionWork& work,
           Inquiries& inquiries, SessionListener& listener, SpillRules spill);

  // While draining, nobody new gets a session; observers do.
  void set_draining(bool draining) { draining_ = draining; }
  [[nodiscard]] bool draining() const { return draining_; }
  // Of sessions from now on, for graphs of which their clients have not chosen.
  void set_numerics(srg::Numerics numerics) { numerics_ = numerics; }

  // --- connections
  // Takes in a new client, or refuses it with a notice.
  void connected(Fd socket, const Visitor& visitor);
  // Refuses a client before it has a session.
  void turn_away(Fd socket, const Visitor& visitor, const Error& error);
  // A notice, and the end of the session.
  // by: whose will it was, for the log.
  void end(Session& session, const Error& error, std::string by = {});
  void end_all(const Error& error);
  // Likewise of those that compute on the device.
  void end_all_on(DeviceId device, const Error& error);
  // Likewise of those that the worker serves, or would.
  void end_all_of(WorkerKey key, const Error& error);
  // fds stay the caller's. A reply that is too large becomes a refusal. An waiter without a session
  // is an inquiry's.
  void reply(const Waiter& waiter, ipc::DaemonReply reply, std::span<const int> fds = {}) override;
  void owe(const Waiter& waiter, std::function<ipc::DaemonReply()> make) override;

  // --- requests
  void hello(Session& session, uint32_t number, const ipc::Hello& hello);
  // Acts on another session. A user steers their own, administrators all.
  // If the user may steer it. Errors: kNotFound.
  Result<Session*> find_steered(const Caller& caller, SessionId id) const;
  void cancel_run(const Waiter& waiter, const Caller& caller, SessionId target);
  void terminate(const Waiter& waiter, const Caller& caller, SessionId target);

  // --- workers
  void worker_ready(WorkerKey key);
  // Gives whether the next worker may come at once: the death is a session's own, which waits for
  // it, or something was committed since the death before, or the worker had nothing to do.
  // definers: of a graph that is known to have been why; the death is theirs, and nobody else's.
  bool worker_died(WorkerKey key, const WorkerDeath& death, const std::set<SessionId>& definers);
  void on_attached(WorkerKey key, const ipc::Attached& event);
  void on_detached(WorkerKey key, const ipc::Detached& event);
  // Ends the session that had the group before and cannot go on without it.
  void on_sequence_added(WorkerKey key, const ipc::SequenceAdded& event);
  // A request for a session's memory.
  void on_grant_request(WorkerKey key, const ipc::GrantRequest& event);
  // False when the worker gives back more than it was given, which it must not live to repeat.
  bool on_grant_return(WorkerKey key, const ipc::GrantReturn& event);
  void on_refs_trimmed(WorkerKey key, const ipc::RefsTrimmed& event);
  void on_session_broken(WorkerKey key, const ipc::SessionBroken& event);
  // No worker of the device can be started: nobody there is kept waiting.
  void refuse_waiting(DeviceId device, const Error& error);
  // None will come as long as this djinnd runs: nor are the sessions kept that had one.
  void end_waiting(DeviceId device, const Error& error);

  [[nodiscard]] LaneActivity activity_of(WorkerKey key);
  [[nodiscard]] bool in_use(WorkerKey key) const;
  // Whether the session has a run in flight, or asks for one.
  [[nodiscard]] bool runs(SessionId id) const;
  // Whether any session does.
  [[nodiscard]] bool any_runs() const;

  [[nodiscard]] const SessionTable::Map& all() const { return sessions_.all(); }
  // Null when there is none any more.
  [[nodiscard]] Session* find(SessionId id) const { return sessions_.find(id); }
  [[nodiscard]] Sequences& sequences() { return sequences_; }
  [[nodiscard]] IdleMemory& idle_memory() { return idle_memory_; }
  [[nodiscard]] const IdleMemory& idle_memory() const { return idle_memory_; }
  [[nodiscard]] LaneSteps& lane_steps() { return lane_steps_; }
  [[nodiscard]] const LaneSteps& lane_steps() const { return lane_steps_; }
  // Bytes of the device that come free by themselves: of sessions and groups that are gone, of
  // groups on their way to disk, and of refs that are trimmed. user: theirs alone.
  [[nodiscard]] uint64_t leaving_bytes(DeviceId device, std::optional<Owner> user = {}) const;
  // Of all these what a worker lets go of at the end of a step that goes on for long.
  [[nodiscard]] uint64_t held_up_bytes(DeviceId device) const;
  // That the user's sessions have added for models that they are to open next.
  [[nodiscard]] size_t files_added(Owner user) const;
  // How many may run something and have not left, of all users or of that one, who has a quota.
  [[nodiscard]] uint32_t count(std::optional<Owner> user = {}) const;

 private:
  friend struct DaemonForTests;

  struct Released {
    Owner user;
    DeviceId device;
    std::optional<Event> event;  // until it is told
    uint64_t shared_bytes;       // with its client
    uint64_t late_bytes;         // of chunks that were being made or freed when it went
    uint64_t freed_bytes = 0;
    uint32_t parts = 3;  // not free yet: what it shares, its state, its extents; and what is late
  };
  // Said Hello, and is not given memory yet.
  struct InLine {
    SessionId session;
    uint64_t staging_bytes;
  };
  // Of one user: with so many on their way out, newcomers wait for these. Else a program that opens
  // and closes sessions in haste gets ahead of its worker and of the threads that free, and is
  // refused for what it has closed.
  static constexpr size_t kLeavingMax = 8;
  // That the session's refs and groups are in.
  [[nodiscard]] Memory& memory_of(const Session& session) const {
    return devices_.of(session.device);
  }
  void end_those(const std::function<bool(const Session&)>& whose, const Error& error);
  [[nodiscard]] Status check_limits(Owner user);
  // Whether one more of those that have come by a gate may be the owner's.
  [[nodiscard]] Status check_connections(Owner owner);
  [[nodiscard]] size_t connections_of(Owner owner) const;
  [[nodiscard]] Status check_quota(Owner user) const;
  void add_connection(Fd socket, const Visitor& visitor);
  // Whose the session is, as Hello says: the user's who connected, or the principal's that a gate
  // names. Errors: kPermissionDenied, kLimitExceeded, and those of Authority::judge().
  [[nodiscard]] Status take_in(Session& session, const std::string& principal);
  void belongs_to(Session& session, const Caller& caller, std::vector<gid_t> groups);
  void heard(SessionId id, ipc::Datagram datagram);
  void disconnected(SessionId id, const Error& error);
  // What the session is owed: one answer, and the next.
  void give_owed_in_turn(SessionId id);
  void give_owed(SessionId id);
  // Of the user, those whose memory comes free by itself, and soon.
  [[nodiscard]] size_t count_leaving(Owner user) const;
  void admit_from_line();
  void memory_granted(SessionId id, uint64_t staging_bytes, const Status& granted);
  // Its refs were made, or could not be.
  void has_refs(SessionId id, DeviceId device, uint64_t staging_bytes, uint64_t ref_bytes_max,
                Result<Fd> made);
  // All but the refs, and a worker that is to have it.
  [[nodiscard]] Result<SessionMemory> make_memory(const Session& session, uint64_t staging_bytes);
  void emit_refused(SessionId session, Owner owner, const Error& error);
  void withdraw_hello(Session& session, const Error& error);
  void attach(Session& session);
  void attach_or_wait(Session& session);
  // Attaches sessions that have no worker yet; others are looked at again soon.
  void attach_those_that_may(const std::function<bool(const Session&)>& in_question);
  void welcome(Session& session);
  void leave(SessionId id);
  void release(Session& session);
  void freed(SessionId id, uint64_t bytes);
  void freed_late(SessionId id, uint64_t bytes) override;
  // What comes free when the worker has let go of the session, which leaves.
  [[nodiscard]] uint64_t leaving_bytes_of(const Session& session) const;
  void emit_freed(Released& session);
  void memory_stays();
  void cancel_requests(Session& session);
  bool note_death(Session& session, const WorkerDeath& death, bool shared);
  void emit(EventKind kind, const Session& session, std::string text,
            std::optional<ErrorCode> error = {});

  Loop& loop_;
  const Clock& clock_;
  IdSource& ids_;
  const Devices& devices_;
  Quotas& quotas_;
  Domains& domains_;
  Authority& authority_;
  Events& events_;
  QuotaRefusals& refusals_;
  WorkQueue& memory_work_;
  Inquiries& inquiries_;
  Traffic& traffic_;
  DeferredClose& deferred_close_;
  Turns& turns_;
  SessionListener& listener_;
  SessionTable sessions_;
  std::map<SessionId, Released> released_;  // gone, their memory not yet
  std::vector<InLine> in_line_;
  LaneSteps lane_steps_;
  Deaths deaths_;
  Sequences sequences_;
  IdleMemory idle_memory_;
  RefGrants ref_grants_;
  Departed departed_;
  bool draining_ = false;
  srg::Numerics numerics_ = srg::Numerics::kExact;
  Timer attach_timer_;
  Timer line_timer_;
};

}  // namespace djinn::daemon
