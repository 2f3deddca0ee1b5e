// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/models/generation_run.h"

#include <algorithm>
#include <utility>

#include "libdjinn-client/operations.h"

namespace djinn::client {
namespace {

Result<ipc::GenerateBlock> make_block(GenerationPrograms& programs, const Prompts& prompts,
                                      const GenerateOptions& options) {
  ipc::GenerateBlock block;
  block.rows = static_cast<uint32_t>(prompts.size());
  block.prompt_tokens =
      static_cast<uint32_t>(std::ranges::max(prompts, {}, &std::vector<int32_t>::size).size());
  for (const auto& row : prompts) {
    block.padding.push_back(block.prompt_tokens - static_cast<uint32_t>(row.size()));
  }
  block.max_new_tokens = options.max_new_tokens;
  DJINN_CHECK(programs.choose(block));
  block.min_new_tokens = options.min_new_tokens;
  block.stop_tokens = options.stop_tokens;
  block.pad_token = options.pad_token;
  block.greedy = options.greedy;
  block.temperature = options.temperature;
  block.top_k = options.top_k;
  block.top_p = options.top_p;
  block.min_p = options.min_p;
  block.repetition_penalty = options.repetition_penalty;
  block.seed = options.seed;
  block.random_offset = options.random_offset;
  return block;
}

// Gives the prompts as [rows, tokens], padded on the left.
std::vector<int32_t> left_padded(const Prompts& prompts, const ipc::GenerateBlock& block) {
  std::vector<int32_t> out;
  out.reserve(size_t{block.rows} * block.prompt_tokens);
  for (size_t row = 0; row < prompts.size(); ++row) {
    out.insert(out.end(), block.padding[row], block.pad_token);
    out.insert(out.end(), prompts[row].begin(), prompts[row].end());
  }
  return out;
}

}  // namespace

Result<GenerationRun> GenerationRun::begin(Client& client, GenerationPrograms& programs,
                                           const Prompts& prompts, const GenerateOptions& options,
                                           uint64_t begin_within_ms, OnToken on_token) {
  DJINN_TRY(ipc::GenerateBlock block, make_block(programs, prompts, options));
  const uint64_t capacity = uint64_t{block.prompt_tokens} + block.max_new_tokens;
  DJINN_TRY(block.sequence, client.make_sequence(programs.sizes().geometry(block.rows, capacity)));
  GenerationRun made(client, std::move(block), std::move(on_token));
  made.tokens_.resize(prompts.size());
  made.finished_.resize(prompts.size());
  const auto run =
      submit_generate(client, made.block_, left_padded(prompts, made.block_), begin_within_ms);
  if (!run) return made.drop_sequence(run.error()).error();
  made.run_ = *run;
  return made;
}

void GenerationRun::take(const TokenEvent& event) {
  if (event.row >= block_.rows || finished_[event.row] || given_up_) return;
  tokens_[event.row].push_back(event.token);
  finished_[event.row] =
      std::ranges::find(block_.stop_tokens, event.token) != block_.stop_tokens.end();
  if (on_token_ && !on_token_(event)) give_up();
}

void GenerationRun::give_up() {
  given_up_ = true;
  cancel();
}

Result<bool> GenerationRun::poll() {
  if (client_->has_ended()) DJINN_CHECK(client_->check());  // on_token of another may have forked
  DJINN_CHECK(client_->poll());
  for (const TokenEvent& event : client_->take_tokens(run_)) {
    take(event);
    if (client_->has_ended()) DJINN_CHECK(client_->check());  // or this one's
  }
  return client_->is_complete(run_);
}

Status GenerationRun::wait() {
  DJINN_TRY(Outcome outcome, client_->wait(run_, [this](const TokenEvent& event) { take(event); }));
  random_offset_ = outcome.random_offset;
  const bool cancelled = given_up_ && outcome.error == ErrorCode::kCancelled;
  if (outcome.error == ErrorCode::kOk || cancelled) return {};
  return Error{outcome.error, std::move(outcome.message)};
}

Status GenerationRun::finish() {
  return drop_sequence(wait());
}

Error GenerationRun::leave() {
  client_->abandon(run_);
  if (!client_->has_ended()) client_->drop_sequence_later(block_.sequence);
  return {ErrorCode::kCancelled, "The generation was cancelled, and has not ended yet."};
}

Status GenerationRun::drop_sequence(Status ended) {
  if (client_->has_ended()) return ended;  // and the sequence with it
  // Who has given the generation up does not wait for djinnd, which may be why they did.
  if (given_up_ || (!ended && ended.error().code == ErrorCode::kCancelled)) {
    client_->drop_sequence_later(block_.sequence);
    return ended;
  }
  Status dropped = client_->drop_sequence(block_.sequence);
  const bool is_gone = dropped || dropped.error().code == ErrorCode::kCancelled;  // or will be
  if (!ended || is_gone || client_->has_ended()) return ended;
  return dropped;
}

}  // namespace djinn::client
