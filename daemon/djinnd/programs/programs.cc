// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/programs/programs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "daemon/djinnd/loop/log.h"
#include "ipc/codec/control_codec.h"
#include "ipc/limits.h"
#include "kernel/base/assert.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon {

void Programs::define(const Waiter& waiter, WorkerKey key, ModelId model, Payload graph) {
  const Status begun = admit(waiter, key, model, std::move(graph));
  if (begun) return;
  ++counts_.refused;
  sessions_.refuse(waiter, begun.error());
}

Status Programs::admit(const Waiter& waiter, WorkerKey key, ModelId model, Payload graph) {
  if (model.valid() && !models_.leased_by(model, waiter.session)) {
    return Error{ErrorCode::kNotFound, "The session has not opened such a model."};
  }
  DJINN_TRY(const Fingerprint fingerprint, fingerprint_of(key, model, graph.hash));
  if (Program* const known = table_.find(fingerprint)) {
    ++counts_.cached;
    known->users.insert(waiter.session);
    table_.touch(*known);
    if (known->phase == ProgramPhase::kAdmitted) {
      answer(*known, waiter, true);
    } else {
      known->waiters.push_back(waiter);
      tell(*known);
    }
    return {};
  }
  DJINN_CHECK(make_room(key, graph.bytes));
  Program fresh;
  fresh.id = ids_.next<ProgramId>([this](ProgramId t) { return table_.find(t) != nullptr; });
  fresh.worker = key;
  fresh.model = model;
  fresh.fingerprint = fingerprint;
  fresh.graph = std::move(graph.copy);
  fresh.graph_bytes = graph.bytes;
  fresh.users.insert(waiter.session);
  fresh.waiters.push_back(waiter);
  tell(table_.add(std::move(fresh)));
  return {};
}

Status Programs::make_room(WorkerKey key, uint64_t bytes) {
  while (!table_.has_room(key, bytes)) {
    const Program* const oldest = table_.oldest_unused(key);
    if (oldest == nullptr) {
      return Error{
          ErrorCode::kLimitExceeded,
          "All programs that may be kept are in use. Let go of some, or close a session that "
          "defined them."};
    }
    forget(*oldest);
  }
  return {};
}

void Programs::forget(const Program& program) {
  DJINN_ASSERT(program.waiters.empty());
  domains_.send(program.worker, {ipc::DropProgram{program.id}});
  table_.erase(program.id);
}

bool Programs::is_attached(SessionId session) const {
  const Session* const found = sessions_.find(session);
  return found != nullptr && found->attached;
}

void Programs::tell(Program& program) {
  DJINN_ASSERT(program.graph != nullptr);
  const bool again = program.phase == ProgramPhase::kAdmitted;
  const bool is_due = again || std::ranges::any_of(program.waiters, [this](const Waiter& waiter) {
                        return is_attached(waiter.session);
                      });
  if (program.told || !is_due || !domains_.ready(program.worker)) return;
  program.told = true;
  const int fds[] = {program.graph->get()};
  domains_.send(program.worker, {ipc::AddProgram{program.id, program.model, again}}, fds);
}

// A session that has closed the program's model in the meantime no longer uses the program, but may
// still wait for it.
void Programs::session_attached(SessionId session) {
  for (auto& [id, program] : table_.all()) {
    const bool waits = std::ranges::any_of(
        program.waiters, [&](const Waiter& waiter) { return waiter.session == session; });
    if (waits || program.users.contains(session)) tell(program);
  }
}

void Programs::answer(const Program& program, const Waiter& waiter, bool was_cached) {
  DJINN_ASSERT(program.phase == ProgramPhase::kAdmitted);
  sessions_.reply(waiter,
                  {waiter.number, ipc::ProgramDefined{program.id, was_cached, program.outputs}});
}

void Programs::read_graph(const Waiter& waiter, const Caller& caller,
                          const ipc::ReadGraph& request) {
  const Program* const program = table_.find(request.program);
  if (program == nullptr || !caller.may_steer(program->worker.owner)) {
    return sessions_.refuse(waiter, {ErrorCode::kNotFound,
                                     "This user sees no such program. djinnctl programs lists "
                                     "those that there are."});
  }
  const uint64_t left = program->graph_bytes - std::min(program->graph_bytes, request.offset);
  auto part = pal::read_memfd(*program->graph, std::min<uint64_t>(left, limits::kGraphPartBytes),
                              request.offset);
  if (!part) return sessions_.refuse(waiter, part.error());
  sessions_.reply(waiter, {waiter.number, ipc::GraphPart{*std::move(part)}});
}

void Programs::on_program_added(WorkerKey key, const ipc::ProgramAdded& event) {
  Program* const program = table_.find(event.program);
  if (program == nullptr || program->worker != key) return;
  program->deaths = 0;
  program->here = true;
  if (program->phase == ProgramPhase::kAdmitting) {
    ++counts_.admitted;
    counts_.fast += event.fast_nodes > 0 ? 1 : 0;
    counts_.exact_instead += event.wants_fast && event.fast_nodes == 0 ? 1 : 0;
    program->phase.enter(ProgramPhase::kAdmitted);
  }
  program->outputs = event.outputs;
  program->name = event.name;
  program->workload = event.workload;
  program->fast_nodes = event.fast_nodes;
  const bool is_awaited = !program->waiters.empty();
  for (const Waiter& waiter : std::exchange(program->waiters, {})) {
    sessions_.owe(waiter, [this, id = program->id, number = waiter.number]() -> ipc::DaemonReply {
      const Program* const defined = table_.find(id);
      if (defined == nullptr) {
        return {number, ipc::Failed{ErrorCode::kNotFound,
                                    "The program's model was closed. Open it, and define the "
                                    "program again."}};
      }
      return {number, ipc::ProgramDefined{id, false, defined->outputs}};
    });
  }
  if (!is_awaited) forget_left_over(key);  // who asked for it has left
}

void Programs::on_program_refused(WorkerKey key, const ipc::ProgramRefused& event) {
  Program* const program = table_.find(event.program);
  if (program == nullptr || program->worker != key) return;
  const bool typed = event.code != ErrorCode::kOk;
  refuse(*program, {typed ? event.code : ErrorCode::kInternal, event.message});
}

void Programs::refuse(Program& program, const Error& error) {
  ++counts_.refused;
  Event event{EventKind::kProgramRefused,
              fmt::format("program {} of {} is refused: {}", text_of(program.id),
                          events_.user_text(program.worker.owner), name_of(error.code)),
              program.worker.owner};
  event.sentence = ipc::showable_sentence(error.message);
  event.model = program.model;
  event.error = error.code;
  events_.emit_limited(std::move(event));
  const WorkerKey key = program.worker;
  const std::vector<Waiter> waiters = std::move(program.waiters);
  table_.erase(program.id);
  sessions_.refuse_each(waiters, error);
  forget_left_over(key);
}

void Programs::session_left(SessionId session, WorkerKey key) {
  std::vector<ProgramId> abandoned;
  for (auto& [id, program] : table_.all()) {
    program.users.erase(session);
    std::erase_if(program.waiters, [&](const Waiter& waiter) { return waiter.session == session; });
    const bool is_wanted = !program.users.empty() || !program.waiters.empty();
    if (!is_wanted && program.phase == ProgramPhase::kAdmitting) abandoned.push_back(id);
  }
  for (const ProgramId id : abandoned) forget(*table_.find(id));
  forget_left_over(key);
}

void Programs::forget_left_over(WorkerKey key) {
  for (const ProgramId id : table_.left_over(key)) forget(*table_.find(id));
}

// A program that is not admitted yet stays: no client has its id, and the session that defined it
// still waits for the answer.
void Programs::dropped(SessionId session, WorkerKey key, std::span<const ProgramId> programs) {
  for (const ProgramId id : programs) {
    Program* const program = table_.find(id);
    if (program == nullptr || program->phase != ProgramPhase::kAdmitted) continue;
    program->users.erase(session);
  }
  forget_left_over(key);
}

void Programs::model_closed(SessionId session, WorkerKey key, ModelId model) {
  for (auto& [id, program] : table_.all()) {
    if (program.model == model) program.users.erase(session);
  }
  forget_left_over(key);
}

void Programs::model_gone(ModelId model) {
  std::vector<ProgramId> gone;
  for (const auto& [id, program] : table_.all()) {
    if (program.model == model) gone.push_back(id);
  }
  for (const ProgramId id : gone) {
    Program& program = *table_.find(id);
    const std::vector<Waiter> waiters = std::move(program.waiters);
    forget(program);
    sessions_.refuse_each(waiters, {ErrorCode::kCancelled, "The model was unloaded meanwhile."});
  }
}

uint32_t Programs::collect() {
  std::vector<ProgramId> unused;
  for (const auto& [id, program] : table_.all()) {
    const bool used = !program.users.empty() || !program.waiters.empty();
    if (!used && program.phase == ProgramPhase::kAdmitted) unused.push_back(id);
  }
  for (const ProgramId id : unused) forget(*table_.find(id));
  return static_cast<uint32_t>(unused.size());
}

// All of the worker's, or none as long as somebody has a use for one. Principals are as many as a
// gate has names: what those left who have gone goes with their workers, of which there are few.
static std::vector<ProgramId> unused_of(WorkerKey key, const ProgramTable& table) {
  std::vector<ProgramId> unused;
  for (const auto& [id, program] : table.all()) {
    if (program.worker != key) continue;
    if (!program.users.empty() || !program.waiters.empty()) return {};
    unused.push_back(id);
  }
  return unused;
}

// Programs that a session waits for are told when that session is attached.
void Programs::worker_ready(WorkerKey key) {
  for (auto& [id, program] : table_.all()) {
    if (program.worker == key) tell(program);
  }
}

ProgramId Programs::blamed(WorkerKey key, const DeathAdmitting& death) const {
  if (death.program.valid()) return death.program;
  for (const auto& [id, program] : table_.all()) {
    if (program.worker == key && program.told && !program.here) return id;
  }
  return {};
}

std::set<SessionId> Programs::definers_to_blame(WorkerKey key, const WorkerDeath& death) const {
  std::set<SessionId> definers;
  for (const DeathAdmitting& one : death.admitting) {
    const auto found = table_.all().find(blamed(key, one));
    const bool is_its = found != table_.all().end() && found->second.worker == key;
    if (one.was_why && is_its)
      definers.insert(found->second.users.begin(), found->second.users.end());
  }
  return definers;
}

void Programs::worker_died(WorkerKey key, const WorkerDeath& death, bool in_step) {
  std::vector<std::pair<ProgramId, DeathAdmitting>> suspects;
  for (const DeathAdmitting& one : death.admitting) {
    // If it is known which graph killed the worker, the other one is not suspected.
    if (one.was_why || !death.was_a_graphs()) suspects.emplace_back(blamed(key, one), one);
  }
  for (auto& [id, program] : table_.all()) {
    if (program.worker == key) program.told = program.here = false;
  }
  for (const auto& [id, one] : suspects) {
    Program* const program = table_.find(id);
    if (program != nullptr && program->worker == key) blame(*program, one, in_step);
  }
  if (!key.owner.is_principal()) return;
  for (const ProgramId id : unused_of(key, table_)) forget(*table_.find(id));
}

// If something else may have killed the worker, a graph that was admitted before is not blamed.
void Programs::blame(Program& program, const DeathAdmitting& death, bool in_step) {
  if (death.overran_ms) {
    return refuse(program, {ErrorCode::kTimeout,
                            fmt::format("To look at a part of the graph took longer than {} s, "
                                        "which is the most that one may take. It is refused; split "
                                        "its largest operators.",
                                        static_cast<double>(*death.overran_ms) / 1000)});
  }
  const bool counts = program.phase == ProgramPhase::kAdmitting || !in_step;
  if (!death.was_why && !counts) return;
  if (!death.was_why && ++program.deaths < limits::kDeathsWithoutProgress) return;
  refuse(program, {ErrorCode::kWorkerLost,
                   "The worker died as it looked at the graph. It is refused; change it."});
}

}  // namespace djinn::daemon
