// SPDX-License-Identifier: Apache-2.0

// Generation: the loop of prefill and decode steps of one kGenerate submission. Its whole state is
// the session's: the step record says how many tokens were made and which rows are finished, the
// sequence group holds the tokens. So a new worker goes on with the next token, and draws what the
// old one would have drawn: row r's draw of token n is at random offset first + n * rows + r.
//
// A prompt of fast numerics runs in parts where the client has a program for those behind the first
// (ipc::GenerateBlock::extend), and no row is padded: each part is a step, and ends at a multiple
// of kPromptPart tokens of its row, or with the prompt. So whatever was asked for in one generation
// or in several, as long as those end at such multiples, is computed alike. A generation that fails
// in the midst of its prompt leaves in the group what was read.
//
// Token slots: slots [0, length) of a group are in K and V; the token made last stands in slot
// `length` and enters K and V with the next step.
#pragma once

#include "daemon/worker/operations.h"

namespace djinn::worker {

// One token for each row, the first one with the prompt, or a part of that.
Outcome<Ending> generate_token(Step& step, LaneTools& tools, gc::StepRecord& record);

// How many tokens the next step takes of a prompt, of which `read` are in the group, which has
// `past` tokens a row. in_parts: whether it runs so.
[[nodiscard]] uint64_t next_part(const ipc::GenerateBlock& block, uint64_t past, uint64_t read,
                                 bool in_parts);
// The client has asked for parts.
[[nodiscard]] bool wants_parts(const ipc::GenerateBlock& block);
// And what computes them. Precondition: read < block.prompt_tokens.
[[nodiscard]] ProgramId prompt_program(const ipc::GenerateBlock& block, uint64_t past,
                                       uint64_t read, uint64_t tokens);

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
