// SPDX-License-Identifier: Apache-2.0

// Encoder: a BERT model that lives in djinnd, opened from a Hugging Face directory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "libdjinn-client/client.h"
#include "libdjinn-client/models/bert.h"
#include "libdjinn-client/models/model_options.h"

namespace djinn::client {

inline constexpr uint32_t kEncoderRowsMax = 256;  // of one call; more rows go in several calls

// Token ids of rows that are padded on the right to one length.
struct EncoderBatch {
  uint32_t rows = 0;
  uint32_t tokens = 0;           // a row, padding included
  std::span<const int64_t> ids;  // [rows, tokens]
  std::span<const int64_t>
      mask;  // [rows, tokens], 1 for a token and 0 for padding; empty: no padding
  std::span<const int64_t> types;  // [rows, tokens], token types; empty: all 0
};

struct Encoded {
  DType dtype = DType::kFloat32;
  std::vector<std::byte> hidden;     // [rows, tokens, hidden], if asked for
  std::vector<std::byte> embedding;  // [rows, hidden]: sentence embeddings of length 1
};

class Encoder {
 public:
  // client outlives the encoder. Errors: the directory's, the builder's, djinnd's; kUnsupported for
  // int8 in exact numerics.
  static Result<std::unique_ptr<Encoder>> open(Client& client, const std::string& directory,
                                               const ModelOptions& options = {});

  [[nodiscard]] const BertConfig& config() const { return config_; }
  [[nodiscard]] const OpenedModel& model() const { return model_; }
  // Of config.json: keys.h.
  [[nodiscard]] const std::vector<std::string>& unknown_keys() const { return unknown_keys_; }
  // Errors: kShapeMismatch, and what the run gives (an id outside the vocabulary, say).
  Result<Encoded> encode(const EncoderBatch& batch, bool want_hidden);

 private:
  Encoder(Client& client, OpenedModel model, BertConfig config, srg::Numerics numerics)
      : client_(client),
        model_(std::move(model)),
        config_(std::move(config)),
        numerics_(numerics) {}

  // Input storages of one program, by name, and its id.
  struct Program {
    ProgramId id;
    srg::Graph graph;
  };
  Result<const Program*> program(bool masked);

  Client& client_;
  OpenedModel model_;
  BertConfig config_;
  srg::Numerics numerics_;
  std::vector<std::string> unknown_keys_;
  std::optional<Program> plain_;
  std::optional<Program> masked_;
};

}  // namespace djinn::client
