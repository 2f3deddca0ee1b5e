// SPDX-License-Identifier: Apache-2.0

// Generation: the loop of prefill and decode steps of one kGenerate submission. Its whole state is
// the session's: the step record says how many tokens were made and which rows are finished, the
// sequence group holds the tokens. So a new worker goes on with the next token, and draws what the
// old one would have drawn: row r's draw of token n is at random offset first + n * rows + r.
//
// Token slots: slots [0, length) of a group are in K and V; the token made last stands in slot
// `length` and enters K and V with the next step.
#pragma once

#include "daemon/worker/operations.h"

namespace djinn::worker {

// One token for each row, the first one with the whole prompt.
Outcome<Ending> generate_token(Step& step, LaneTools& tools, gc::StepRecord& record);

// What computes a token behind the prompt's, after so many tokens.
ProgramId token_program(const ipc::GenerateBlock& block, uint64_t past);

// --- the same in parts, so that what is computed can be computed with other sessions' runs

// A token step whose run is bound.
struct TokenRun {
  const ipc::GenerateBlock* block;  // the session's
  SequenceUse use;
  exec::Program* program;
};
Outcome<TokenRun> prepare_token(Step& step, LaneTools& tools, Binder& binder,
                                const gc::StepRecord& record);
// Runs what was bound, and finishes.
Outcome<Ending> compute_token(Step& step, LaneTools& tools, const Binder& binder,
                              const TokenRun& run, gc::StepRecord& record);
// Draws from the run's outputs.
Outcome<Ending> finish_token(Step& step, LaneTools& tools,
                             std::span<const exec::OutputView> outputs, const TokenRun& run,
                             gc::StepRecord& record);

}  // namespace djinn::worker
