// SPDX-License-Identifier: Apache-2.0

// Programs: defines programs and has them admitted by their worker, once each and again by
// each new worker. Start with program_table.h.
#pragma once

#include <set>
#include <span>

#include "daemon/djinnd/loop/id_source.h"
#include "daemon/djinnd/loop/sealed.h"
#include "daemon/djinnd/models/models.h"
#include "daemon/djinnd/programs/program_table.h"
#include "daemon/djinnd/sessions/sessions.h"
#include "daemon/djinnd/workers/domains.h"
#include "daemon/djinnd/workers/worker_key.h"

namespace djinn::daemon {

class Programs {
 public:
  Programs(IdSource& ids, Domains& domains, Models& models, Sessions& sessions, Events& events)
      : ids_(ids), domains_(domains), models_(models), sessions_(sessions), events_(events) {}

  // graph: what the client sent.
  void define(const Waiter& waiter, WorkerKey key, ModelId model, Payload graph);
  void session_attached(SessionId session);
  void session_left(SessionId session, WorkerKey key);
  // The session has them no more, and no run of it names one.
  void dropped(SessionId session, WorkerKey key, std::span<const ProgramId> programs);
  // The session leases the model no more: it uses none of its programs.
  void model_closed(SessionId session, WorkerKey key, ModelId model);
  void model_gone(ModelId model);
  // Answers with GraphPart.
  void read_graph(const Waiter& waiter, const Caller& caller, const ipc::ReadGraph& request);
  // Gives up what no session uses; how many those were.
  uint32_t collect();

  void worker_ready(WorkerKey key);
  // The sessions whose graph is known to have been why: before worker_died.
  [[nodiscard]] std::set<SessionId> definers_to_blame(WorkerKey key,
                                                      const WorkerDeath& death) const;
  // in_step: a session's step may have been why.
  void worker_died(WorkerKey key, const WorkerDeath& death, bool in_step);
  void on_program_added(WorkerKey key, const ipc::ProgramAdded& event);
  void on_program_refused(WorkerKey key, const ipc::ProgramRefused& event);

  [[nodiscard]] const ProgramTable& table() const { return table_; }

  struct Counts {
    uint64_t admitted = 0;  // definitions that a worker looked at, and took
    uint64_t cached = 0;    // that were known already
    uint64_t refused = 0;
    uint64_t fast = 0;           // of those admitted: our own kernels compute a part
    uint64_t exact_instead = 0;  // they asked for fast numerics, and have no fast form
  };
  [[nodiscard]] const Counts& counts() const { return counts_; }

 private:
  Status admit(const Waiter& waiter, WorkerKey key, ModelId model, Payload graph);
  Status make_room(WorkerKey key, uint64_t bytes);
  // Whether it has its user's worker. Who has none, since it ended others, has no new graph looked
  // at.
  [[nodiscard]] bool is_attached(SessionId session) const;
  // Tells the worker of it, if that is due.
  void tell(Program& program);
  [[nodiscard]] ProgramId blamed(WorkerKey key, const DeathAdmitting& death) const;
  void blame(Program& program, const DeathAdmitting& death, bool in_step);
  void answer(const Program& program, const Waiter& waiter, bool was_cached);
  void refuse(Program& program, const Error& error);
  void forget(const Program& program);
  // Forgets all programs but a small rest of a user who has nobody left that uses them.
  void forget_left_over(WorkerKey key);

  IdSource& ids_;
  Domains& domains_;
  Models& models_;
  Sessions& sessions_;
  Events& events_;
  ProgramTable table_;
  Counts counts_;
};

}  // namespace djinn::daemon
