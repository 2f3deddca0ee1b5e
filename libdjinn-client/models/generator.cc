// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/models/generator.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernel/base/assert.h"
#include "libdjinn-client/models/keys.h"
#include "libdjinn-client/models/rows_together.h"
#include "libdjinn-client/models/vocabulary.h"
#include "libdjinn-client/models/weights.h"

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
  DJINN_CHECK(check_options(options));
  if (is_bundle(directory)) return open_bundle(client, directory, options);
  return open_llama(client, directory, options);
}

Result<std::unique_ptr<Generator>> Generator::open_bundle(Client& client,
                                                          const std::string& directory,
                                                          const ModelOptions& options) {
  DJINN_TRY(Bundle bundle, read_bundle(directory));
  WeightFiles files{bundle.label, std::move(bundle.paths), std::move(bundle.files),
                    plan_of(bundle.plan(), options.matrices)};
  DJINN_TRY(OpenedModel model,
            client.open_model({files.label, files.numbers(), files.paths}, files.plan_or_null()));
  DJINN_TRY(const srg::Numerics numerics, numerics_of(client, model, options));
  const Status is_same = check_tensors(bundle, model.manifest);
  if (!is_same) {
    DJINN_CHECK(client.close_model(model.id));
    return is_same.error();
  }
  const ModelId id = model.id;
  std::unique_ptr<Generator> made(new Generator(client, std::move(model), numerics));
  made->end_tokens_ = bundle.end_tokens;
  made->begin_token_ = bundle.begin_token;
  auto programs = std::make_unique<BundlePrograms>(client, id, std::move(bundle), numerics);
  made->bundle_ = programs.get();
  made->programs_ = std::move(programs);
  made->files_ = std::move(files);
  return made;
}

Result<std::unique_ptr<Generator>> Generator::open_llama(Client& client,
                                                         const std::string& directory,
                                                         const ModelOptions& options) {
  DJINN_TRY(ModelDirectory files, open_model_directory(directory));
  DJINN_TRY(const std::string type, files.config.text_or("model_type", ""));
  if (type != "llama") {
    return Error{ErrorCode::kUnsupported,
                 "The generator opens models of type llama, and this one is of type '" + type +
                     "'. Export it, and open what that writes: python3 -m djinn export MODEL DIR."};
  }
  DJINN_TRY(std::vector<std::string> unknown, check_keys(Builder::kLlama, files.config));
  const WeightFiles weights{files.label, std::move(files.paths), std::move(files.files),
                            plan_of(nullptr, options.matrices)};
  DJINN_TRY(OpenedModel model, client.open_model({weights.label, weights.numbers(), weights.paths},
                                                 weights.plan_or_null()));
  DJINN_TRY(const srg::Numerics numerics, numerics_of(client, model, options));
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

Result<Generated> Generator::generate(const Prompts& prompts, const GenerateOptions& options,
                                      const OnToken& on_token) {
  DJINN_CHECK(check(prompts, options, *programs_));
  DJINN_CHECK(check_length(prompts, options));
  if (prompts.size() <= programs_->rows_max()) return generate_block(prompts, options, on_token);
  DJINN_ASSERT(bundle_ != nullptr);
  if (numerics_ == srg::Numerics::kExact || !options.greedy) {
    return generate_in_turn(prompts, options, on_token);
  }
  return RowsTogether(client_, *bundle_, files_, options, on_token)
      .generate(prompts, client_.begin_within_ms());
}

Result<Generated> Generator::generate_block(const Prompts& prompts, const GenerateOptions& options,
                                            const OnToken& on_token) {
  DJINN_TRY(GenerationRun run, GenerationRun::begin(client_, *programs_, prompts, options,
                                                    client_.begin_within_ms(), on_token));
  DJINN_CHECK(run.finish());
  return Generated{run.tokens(), run.random_offset(), run.is_given_up(), {}};
}

Result<Generated> Generator::generate_in_turn(const Prompts& prompts, GenerateOptions options,
                                              const OnToken& on_token) {
  RowsMade made(prompts.size());
  uint64_t begin_within_ms = client_.begin_within_ms();
  for (uint32_t row = 0; row < prompts.size() && !made.is_given_up(); ++row) {
    const auto hear = [&](TokenEvent event) {
      event.row = row;
      made.hear(event);
      return !on_token || on_token(event);
    };
    auto run =
        GenerationRun::begin(client_, *programs_, {prompts[row]}, options, begin_within_ms, hear);
    const Status ended = run ? run->finish() : Status(run.error());
    if (!ended) {
      made.fail(row, ended.error());
      const std::string why = "row " + std::to_string(row + 1) + " before it failed";
      while (++row < prompts.size()) made.fail(row, not_begun(why));
      break;
    }
    begin_within_ms = 0;  // the call has begun: it is no more as if it had not been
    options.random_offset = run->random_offset();
    made.end(options.random_offset);
    if (run->is_given_up()) made.give_up();
  }
  return std::move(made).take();
}

}  // namespace djinn::client
