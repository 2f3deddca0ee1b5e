// SPDX-License-Identifier: Apache-2.0

// Generator: a model that lives in djinnd, opened from the directory of a bundle (bundle.h), or
// from a Hugging Face directory of a Llama model. The loop over tokens runs in the worker; they
// stream back as they are made.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libdjinn-client/client.h"
#include "libdjinn-client/models/llama_programs.h"
#include "libdjinn-client/models/model_options.h"

namespace djinn::client {

struct GenerateOptions {
  uint32_t max_new_tokens = 64;
  uint32_t min_new_tokens = 0;
  std::vector<int32_t> stop_tokens;
  int32_t pad_token = 0;
  bool greedy = true;
  float temperature = 1.0f;
  uint32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  uint64_t seed = 0;
  uint64_t random_offset = 0;
};

struct Generated {
  // The tokens of each row, up to and with a stop token; padding behind it is dropped.
  std::vector<std::vector<int32_t>> tokens;
  uint64_t random_offset = 0;  // the next unused one
  bool given_up = false;       // on_token ended it
};

// Of numbers that a caller gives, before anything is read by them. Errors: kInvalidArgument;
// kOutOfRange.
Status check_prompts(size_t count, bool each_has_tokens);
Status check_stop_tokens(size_t count);

class Generator {
 public:
  // client outlives the generator. A directory that is a bundle is opened as that. Errors: the
  // directory's, the bundle's or the builder's, djinnd's; kUnsupported for int8 in exact numerics.
  static Result<std::unique_ptr<Generator>> open(Client& client, const std::string& directory,
                                                 const ModelOptions& options = {});

  [[nodiscard]] const GeneratorSizes& sizes() const { return programs_->sizes(); }
  // nullptr: it is of a bundle.
  [[nodiscard]] const LlamaConfig* llama() const { return llama_; }
  [[nodiscard]] srg::Numerics numerics() const { return numerics_; }
  [[nodiscard]] const OpenedModel& model() const { return model_; }
  // Of config.json: keys.h.
  [[nodiscard]] const std::vector<std::string>& unknown_keys() const { return unknown_keys_; }
  [[nodiscard]] const std::vector<int64_t>& end_tokens() const { return end_tokens_; }
  [[nodiscard]] int64_t begin_token() const { return begin_token_; }  // -1: none

  // Rows of different lengths are padded on the left. Those of a bundle are generated one after the
  // other, each as it is alone, and draws go on where the row before ended; Client::
  // begin_within_ms() is of the first of them, for the others continue a call that has begun.
  // on_token sees each token once, in order; false from it gives the rest up, which is no error.
  // Errors: kInvalidArgument for no rows or an empty one, kOutOfRange for a token outside the
  // vocabulary, and for too many of them; kQueueFull, before any token. An error of a later row,
  // as where memory is short or the worker is lost, is the call's: of the rows before it remains
  // what on_token was told.
  Result<Generated> generate(const std::vector<std::vector<int32_t>>& prompts,
                             const GenerateOptions& options,
                             const std::function<bool(const TokenEvent&)>& on_token = {});

 private:
  Generator(Client& client, OpenedModel model, srg::Numerics numerics)
      : client_(client), model_(std::move(model)), numerics_(numerics) {}
  static Result<std::unique_ptr<Generator>> open_bundle(Client& client,
                                                        const std::string& directory,
                                                        srg::WeightForm matrices,
                                                        srg::Numerics numerics);
  static Result<std::unique_ptr<Generator>> open_llama(Client& client, const std::string& directory,
                                                       srg::WeightForm matrices,
                                                       srg::Numerics numerics);
  using Prompts = std::vector<std::vector<int32_t>>;
  using OnToken = std::function<bool(const TokenEvent&)>;
  Result<Generated> generate_in_turn(const Prompts& prompts, GenerateOptions options,
                                     const OnToken& on_token);
  Result<Generated> generate_block(const Prompts& prompts, const GenerateOptions& options,
                                   const OnToken& on_token, uint64_t begin_within_ms);
  Result<ipc::GenerateBlock> make_block(const Prompts& prompts, const GenerateOptions& options);
  [[nodiscard]] Status check_length(const Prompts& prompts, const GenerateOptions& options) const;
  Result<Generated> stream(const ipc::GenerateBlock& block, const std::vector<int32_t>& prompt,
                           const OnToken& on_token, uint64_t begin_within_ms);

  Client& client_;
  OpenedModel model_;
  srg::Numerics numerics_;
  std::unique_ptr<GenerationPrograms> programs_;
  const LlamaConfig* llama_ = nullptr;
  std::vector<std::string> unknown_keys_;
  std::vector<int64_t> end_tokens_;
  int64_t begin_token_ = -1;
};

}  // namespace djinn::client
