// SPDX-License-Identifier: Apache-2.0

// Operations: what each kind of submission does within its step. Each function validates the
// private copy of its block, stages its effects, and returns how the step ends. One that is pending
// is rolled back and repeated when what it awaits has come (waits.h); an Error ends the submission,
// after the step was rolled back (runner.h).
#pragma once

#include "daemon/worker/binder.h"
#include "daemon/worker/grants.h"
#include "daemon/worker/program_table.h"
#include "daemon/worker/step.h"
#include "daemon/worker/waits.h"
#include "kernel/base/clock.h"
#include "kernel/base/outcome.h"
#include "kernel/executor/executor.h"

namespace djinn::worker {

// What the lane's thread works with.
struct LaneTools {
  exec::Executor& executor;  // the lane's
  exec::Lane& lane;
  Waits& waits;
  ProgramTable& programs;
  SequencePager& pager;
  Binder& binder;
  const Clock& clock;
  Grants& grants;
};

// A run that is refused before it begins makes nothing: who reads what it would have made is told.
// What it would have changed is as it was, and stays good.
void doom_made(Step& step);
// One that is given up makes and changes nothing: who reads what it would have
// is told. What stopped its workers is not tried again: its graph is read, and no kernel called.
void doom_products(Step& step, const LaneTools& tools);
//
// What of a run of a series stays where it fails (ipc/session_memory.h): the longest beginning of
// its graph that can be run is run in its place, and the step keeps that. An operator that fails
// says where this ends. For want of memory, and where admission refuses the graph, it is found by
// halves. All is done in one step, so a death repeats all. Nothing is kept where the block does not
// fit the graph, and where admission takes too long.
Outcome<Ending> run_program(Step& step, LaneTools& tools);
// --- the same in parts, so that what is computed can be computed with other sessions' runs

// A run of a program whose inputs are bound.
struct ProgramRun {
  ipc::RunBlock block;
  exec::Program* program = nullptr;
  SequenceUse use;  // without a group: it binds none
};
Outcome<ProgramRun> prepare_run(Step& step, LaneTools& tools, Binder& binder);
// Runs what was bound, and finishes. Of a run that keeps a part where it fails it would keep none:
// those with a sequence group do not.
Outcome<Ending> compute_run(Step& step, LaneTools& tools, const Binder& binder,
                            const ProgramRun& run);
// Takes the run's outputs to where its block says. Those that become refs are made in their places
// or copied there.
Outcome<Ending> finish_run(Step& step, LaneTools& tools, std::span<const exec::OutputView> outputs,
                           const ProgramRun& run);

// Its admission is a part of the run: it shows life, ends where the run is given up, and may take
// what a program's may.
Outcome<Ending> run_graph_once(Step& step, LaneTools& tools);
Result<Ending> read_ref(Step& step, const LaneTools& tools);
Outcome<Ending> write_ref(Step& step);
Result<Ending> release_refs(Step& step);
Result<Ending> crop_sequence(Step& step);
Outcome<Ending> reorder_sequence(Step& step, const LaneTools& tools);

// Rolls the session back.
void roll_back(Session& session);
// Likewise, and the step goes on. What it dooms stays doomed.
void begin_again(Step& step);

// The tokens symbol of a run that binds a sequence group, by role. Errors: kInvalidArgument.
Result<int64_t> tokens_of(const srg::Graph& graph, std::span<const int64_t> symbols);

}  // namespace djinn::worker
