// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/models/generator.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernel/base/assert.h"
#include "libdjinn-client/models/bundle_programs.h"
#include "libdjinn-client/models/keys.h"
#include "libdjinn-client/models/vocabulary.h"
#include "libdjinn-client/models/weights.h"
#include "libdjinn-client/operations.h"

namespace djinn::client {
namespace {

// The worker knows the ranges; what is in none crosses to it no more than other numbers can.
Status check_sampling(const GenerateOptions& options) {
  const std::pair<const char*, float> numbers[] = {
      {"temperature", options.temperature},
      {"top_p", options.top_p},
      {"min_p", options.min_p},
      {"repetition_penalty", options.repetition_penalty}};
  for (const auto& [name, number] : numbers) {
    if (std::isfinite(number)) continue;
    return Error{ErrorCode::kInvalidArgument,
                 std::string("The option ") + name + " is not a finite number. Give one that is."};
  }
  if (options.min_new_tokens <= options.max_new_tokens) return {};
  return Error{ErrorCode::kInvalidArgument, "At least " + std::to_string(options.min_new_tokens) +
                                                " new tokens are asked for, and at most " +
                                                std::to_string(options.max_new_tokens) +
                                                ". Lower min_new_tokens."};
}

Status check(const std::vector<std::vector<int32_t>>& prompts, const GenerateOptions& options,
             const GenerationPrograms& programs) {
  const int64_t vocabulary = programs.sizes().vocabulary;
  const bool empty = std::ranges::any_of(prompts, [](const auto& row) { return row.empty(); });
  DJINN_CHECK(check_prompts(prompts.size(), !empty));
  for (const auto& row : prompts) {
    for (const int32_t token : row) DJINN_CHECK(check_token("Token", token, vocabulary));
  }
  DJINN_CHECK(check_stop_tokens(options.stop_tokens.size()));
  DJINN_CHECK(check_sampling(options));
  if (prompts.size() == 1 || programs.rows_max() == 1) return {};  // nothing is padded
  return check_token("pad_token", options.pad_token, vocabulary);
}

size_t longest(const std::vector<std::vector<int32_t>>& prompts) {
  return std::ranges::max(prompts, {}, &std::vector<int32_t>::size).size();
}

// Gives the prompts as [rows, tokens], padded on the left.
std::vector<int32_t> left_padded(const std::vector<std::vector<int32_t>>& prompts,
                                 const ipc::GenerateBlock& block) {
  std::vector<int32_t> out;
  out.reserve(size_t{block.rows} * block.prompt_tokens);
  for (size_t row = 0; row < prompts.size(); ++row) {
    out.insert(out.end(), block.padding[row], block.pad_token);
    out.insert(out.end(), prompts[row].begin(), prompts[row].end());
  }
  return out;
}

std::vector<int> numbers_of(const std::vector<Fd>& files) {
  std::vector<int> numbers;
  for (const Fd& file : files) numbers.push_back(file.get());
  return numbers;
}

}  // namespace

Status check_prompts(size_t count, bool each_has_tokens) {
  if (count > 0 && count <= limits::kRows && each_has_tokens) return {};
  return Error{ErrorCode::kInvalidArgument,
               "A generation needs 1 to 32 prompts of at least one token each."};
}

Status check_stop_tokens(size_t count) {
  if (count <= limits::kStopTokens) return {};
  return Error{ErrorCode::kOutOfRange, "A generation stops at " +
                                           std::to_string(limits::kStopTokens) +
                                           " tokens at most, and " + std::to_string(count) +
                                           " are given. Name fewer as stop_tokens."};
}

Result<std::unique_ptr<Generator>> Generator::open(Client& client, const std::string& directory,
                                                   const ModelOptions& options) {
  DJINN_TRY(const srg::Numerics numerics, numerics_of(options, client.welcome().numerics));
  if (is_bundle(directory)) return open_bundle(client, directory, options.matrices, numerics);
  return open_llama(client, directory, options.matrices, numerics);
}

Result<std::unique_ptr<Generator>> Generator::open_bundle(Client& client,
                                                          const std::string& directory,
                                                          srg::WeightForm matrices,
                                                          srg::Numerics numerics) {
  DJINN_TRY(Bundle bundle, read_bundle(directory));
  const auto plan = plan_of(bundle.plan(), matrices);
  DJINN_TRY(OpenedModel model,
            client.open_model({bundle.label, numbers_of(bundle.files), bundle.paths},
                              plan ? &*plan : nullptr));
  const Status is_same = check_tensors(bundle, model.manifest);
  if (!is_same) {
    DJINN_CHECK(client.close_model(model.id));
    return is_same.error();
  }
  const ModelId id = model.id;
  std::unique_ptr<Generator> made(new Generator(client, std::move(model), numerics));
  made->end_tokens_ = bundle.end_tokens;
  made->begin_token_ = bundle.begin_token;
  made->programs_ = std::make_unique<BundlePrograms>(client, id, std::move(bundle), numerics);
  return made;
}

Result<std::unique_ptr<Generator>> Generator::open_llama(Client& client,
                                                         const std::string& directory,
                                                         srg::WeightForm matrices,
                                                         srg::Numerics numerics) {
  DJINN_TRY(const ModelDirectory files, open_model_directory(directory));
  DJINN_TRY(const std::string type, files.config.text_or("model_type", ""));
  if (type != "llama") {
    return Error{ErrorCode::kUnsupported,
                 "The generator opens models of type llama, and this one is of type '" + type +
                     "'. Export it, and open what that writes: python3 -m djinn export MODEL DIR."};
  }
  DJINN_TRY(std::vector<std::string> unknown, check_keys(Builder::kLlama, files.config));
  const auto plan = plan_of(nullptr, matrices);
  DJINN_TRY(OpenedModel model,
            client.open_model({files.label, numbers_of(files.files), files.paths},
                              plan ? &*plan : nullptr));
  DJINN_TRY(LlamaConfig config, LlamaConfig::from(files.config, model.manifest));
  DJINN_CHECK(check_layers(config.layers, "model.layers.", model.manifest));
  DJINN_TRY(const srg::Graph decode, build_llama(config, {LlamaPhase::kDecode}));
  DJINN_CHECK(check_weights(decode, model.manifest));
  const ModelId id = model.id;
  std::unique_ptr<Generator> made(new Generator(client, std::move(model), numerics));
  auto programs = std::make_unique<LlamaPrograms>(client, id, std::move(config), numerics);
  made->llama_ = &programs->config();
  made->programs_ = std::move(programs);
  made->unknown_keys_ = std::move(unknown);
  DJINN_TRY(made->end_tokens_, files.config.tokens("eos_token_id"));
  DJINN_TRY(const std::vector<int64_t> begin, files.config.tokens("bos_token_id"));
  if (!begin.empty()) made->begin_token_ = begin.front();
  return made;
}

// Before a token is generated of any row.
Status Generator::check_length(const Prompts& prompts, const GenerateOptions& options) const {
  const size_t prompt = longest(prompts);
  if (uint64_t{prompt} + options.max_new_tokens <= sizes().positions) return {};
  return Error{ErrorCode::kOutOfRange,
               "The model has " + std::to_string(sizes().positions) +
                   " positions, and the prompt's " + std::to_string(prompt) + " tokens with " +
                   std::to_string(options.max_new_tokens) + " new ones need more. Ask for fewer."};
}

Result<ipc::GenerateBlock> Generator::make_block(const Prompts& prompts,
                                                 const GenerateOptions& options) {
  ipc::GenerateBlock block;
  block.rows = static_cast<uint32_t>(prompts.size());
  block.prompt_tokens = static_cast<uint32_t>(longest(prompts));
  for (const auto& row : prompts) {
    block.padding.push_back(block.prompt_tokens - static_cast<uint32_t>(row.size()));
  }
  block.max_new_tokens = options.max_new_tokens;
  DJINN_CHECK(programs_->choose(block));
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

Result<Generated> Generator::generate(const Prompts& prompts, const GenerateOptions& options,
                                      const OnToken& on_token) {
  DJINN_CHECK(check(prompts, options, *programs_));
  DJINN_CHECK(check_length(prompts, options));
  if (prompts.size() <= programs_->rows_max()) {
    return generate_block(prompts, options, on_token, client_.begin_within_ms());
  }
  return generate_in_turn(prompts, options, on_token);
}

Result<Generated> Generator::generate_in_turn(const Prompts& prompts, GenerateOptions options,
                                              const OnToken& on_token) {
  DJINN_ASSERT(programs_->rows_max() == 1);
  Generated all;
  all.tokens.resize(prompts.size());
  uint64_t begin_within_ms = client_.begin_within_ms();
  for (uint32_t row = 0; row < prompts.size() && !all.given_up; ++row) {
    OnToken of_row;
    if (on_token) {
      of_row = [&](TokenEvent event) {
        event.row = row;
        return on_token(event);
      };
    }
    DJINN_TRY(Generated one, generate_block({prompts[row]}, options, of_row, begin_within_ms));
    begin_within_ms = 0;  // the call has begun: it is no more as if it had not been
    all.tokens[row] = std::move(one.tokens.front());
    all.random_offset = options.random_offset = one.random_offset;
    all.given_up = one.given_up;
  }
  return all;
}

Result<Generated> Generator::generate_block(const Prompts& prompts, const GenerateOptions& options,
                                            const OnToken& on_token, uint64_t begin_within_ms) {
  DJINN_TRY(ipc::GenerateBlock block, make_block(prompts, options));
  const uint64_t capacity = uint64_t{block.prompt_tokens} + block.max_new_tokens;
  DJINN_TRY(block.sequence, client_.make_sequence(sizes().geometry(block.rows, capacity)));
  Result<Generated> generated =
      stream(block, left_padded(prompts, block), on_token, begin_within_ms);
  if (client_.has_ended()) return generated;  // and the sequence with it
  // Who has given the generation up does not wait for djinnd, which may be why they did.
  const bool given_up =
      generated ? generated->given_up : generated.error().code == ErrorCode::kCancelled;
  if (given_up) {
    client_.drop_sequence_later(block.sequence);
    return generated;
  }
  Status dropped = client_.drop_sequence(block.sequence);
  const bool is_gone = dropped || dropped.error().code == ErrorCode::kCancelled;  // or will be
  if (!generated || is_gone || client_.has_ended()) return generated;
  return std::move(dropped).error();
}

Result<Generated> Generator::stream(const ipc::GenerateBlock& block,
                                    const std::vector<int32_t>& prompt, const OnToken& on_token,
                                    uint64_t begin_within_ms) {
  Generated out;
  out.tokens.resize(block.rows);
  std::vector<bool> finished(block.rows);
  DJINN_TRY(const Run run, submit_generate(client_, block, prompt, begin_within_ms));
  const auto take = [&](const TokenEvent& event) {
    if (event.row >= block.rows || finished[event.row] || out.given_up) return;
    out.tokens[event.row].push_back(event.token);
    const bool stop = std::ranges::find(block.stop_tokens, event.token) != block.stop_tokens.end();
    finished[event.row] = stop;
    if (on_token && !on_token(event)) {
      out.given_up = true;
      client_.cancel_through(run);
    }
  };
  DJINN_TRY(Outcome outcome, client_.wait(run, take));
  out.random_offset = outcome.random_offset;
  const bool cancelled = out.given_up && outcome.error == ErrorCode::kCancelled;
  if (outcome.error != ErrorCode::kOk && !cancelled) {
    return Error{outcome.error, std::move(outcome.message)};
  }
  return out;
}

}  // namespace djinn::client
