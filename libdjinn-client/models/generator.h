// SPDX-License-Identifier: Apache-2.0

// Generator: a model that lives in djinnd, opened from the directory of a bundle (bundle.h), or
// from a Hugging Face directory of a Llama model. The loop over tokens runs in the worker; they
// stream back as they are made.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "libdjinn-client/client.h"
#include "libdjinn-client/models/bundle.h"
#include "libdjinn-client/models/bundle_programs.h"
#include "libdjinn-client/models/generated.h"
#include "libdjinn-client/models/llama_programs.h"
#include "libdjinn-client/models/model_options.h"

namespace djinn::client {

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

  // Rows of different lengths are padded on the left. Those of a bundle are generated each as it is
  // alone: in fast numerics, where no token is drawn, at the same time (rows_together.h), else one
  // after the other, and draws go on where the row before ended. Client::begin_within_ms() is of
  // the first of them, for the others continue a call that has begun. on_token sees each token
  // once, those of a row in order; false from it gives the rest up, which is no error. Errors:
  // kInvalidArgument for no rows or an empty one, kOutOfRange for a token outside the vocabulary,
  // and for too many of them; kQueueFull, before any token. What fails once a row of a bundle has
  // said something is in what this gives (Generated::errors), beside what all of them said.
  Result<Generated> generate(const Prompts& prompts, const GenerateOptions& options,
                             const OnToken& on_token = {});

 private:
  Generator(Client& client, OpenedModel model, srg::Numerics numerics)
      : client_(client), model_(std::move(model)), numerics_(numerics) {}
  static Result<std::unique_ptr<Generator>> open_bundle(Client& client,
                                                        const std::string& directory,
                                                        const ModelOptions& options);
  static Result<std::unique_ptr<Generator>> open_llama(Client& client, const std::string& directory,
                                                       const ModelOptions& options);
  Result<Generated> generate_in_turn(const Prompts& prompts, GenerateOptions options,
                                     const OnToken& on_token);
  Result<Generated> generate_block(const Prompts& prompts, const GenerateOptions& options,
                                   const OnToken& on_token);
  [[nodiscard]] Status check_length(const Prompts& prompts, const GenerateOptions& options) const;

  Client& client_;
  OpenedModel model_;
  srg::Numerics numerics_;
  std::unique_ptr<GenerationPrograms> programs_;
  const LlamaConfig* llama_ = nullptr;
  BundlePrograms* bundle_ = nullptr;  // programs_, of a bundle
  WeightFiles files_;                 // likewise: what other sessions open the model with
  std::vector<std::string> unknown_keys_;
  std::vector<int64_t> end_tokens_;
  int64_t begin_token_ = -1;
};

}  // namespace djinn::client
