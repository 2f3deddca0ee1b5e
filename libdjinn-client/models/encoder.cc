// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/models/encoder.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "libdjinn-client/models/keys.h"
#include "libdjinn-client/models/vocabulary.h"
#include "libdjinn-client/models/weights.h"
#include "libdjinn-client/run_builder.h"

namespace djinn::client {
namespace {

bool hides_something(const EncoderBatch& batch) {
  return std::ranges::any_of(batch.mask, [](int64_t one) { return one == 0; });
}

Status check(const EncoderBatch& batch, const BertConfig& config) {
  const size_t cells = size_t{batch.rows} * batch.tokens;
  const auto fits = [cells](std::span<const int64_t> list) {
    return list.empty() || list.size() == cells;
  };
  if (cells == 0 || batch.rows > kEncoderRowsMax || batch.tokens > config.positions ||
      batch.ids.size() != cells || !fits(batch.mask) || !fits(batch.types)) {
    return Error{ErrorCode::kShapeMismatch,
                 "ids, mask and types must be [rows, tokens], with 1 to 256 rows of 1 to " +
                     std::to_string(config.positions) + " tokens."};
  }
  for (const int64_t id : batch.ids) DJINN_CHECK(check_token("Token", id, config.vocabulary));
  for (const int64_t one : batch.mask) {
    if (one == 0 || one == 1) continue;
    return Error{ErrorCode::kOutOfRange, "A mask has 1 for a token and 0 for padding, and " +
                                             std::to_string(one) + " is neither."};
  }
  for (const int64_t type : batch.types) {
    if (type >= 0 && type < config.token_types) continue;
    return Error{ErrorCode::kOutOfRange, "The model has " + std::to_string(config.token_types) +
                                             " types of tokens, from 0, and " +
                                             std::to_string(type) + " is none of them."};
  }
  return {};
}

// Makes bool [rows, 1, tokens, tokens]: each token of a row sees the row's tokens that the mask
// keeps.
std::vector<std::byte> square_mask(const EncoderBatch& batch) {
  std::vector<std::byte> out;
  out.reserve(size_t{batch.rows} * batch.tokens * batch.tokens);
  for (uint32_t row = 0; row < batch.rows; ++row) {
    for (uint32_t query = 0; query < batch.tokens; ++query) {
      for (uint32_t key = 0; key < batch.tokens; ++key) {
        out.push_back(std::byte{batch.mask[size_t{row} * batch.tokens + key] != 0});
      }
    }
  }
  return out;
}

// Gives the bits of 1.0. Those of 0.0 are zero in every dtype.
uint32_t one_of(DType dtype) {
  if (dtype == DType::kFloat16) return 0x3c00;
  return dtype == DType::kBFloat16 ? 0x3f80 : 0x3f800000;
}

// Makes the mask as numbers 1 and 0 of the model's dtype.
std::vector<std::byte> weights(const EncoderBatch& batch, DType dtype) {
  const uint32_t width = size_of(dtype);
  const uint32_t one = one_of(dtype);
  std::vector<std::byte> out(batch.mask.size() * width);
  for (size_t i = 0; i < batch.mask.size(); ++i) {
    if (batch.mask[i] != 0) std::memcpy(out.data() + i * width, &one, width);  // little-endian
  }
  return out;
}

}  // namespace

Result<std::unique_ptr<Encoder>> Encoder::open(Client& client, const std::string& directory,
                                               const ModelOptions& options) {
  DJINN_CHECK(check_options(options));
  DJINN_TRY(const ModelDirectory files, open_model_directory(directory));
  DJINN_TRY(const std::string type, files.config.text_or("model_type", ""));
  if (type != "bert") {
    return Error{ErrorCode::kUnsupported,
                 "The encoder opens models of type bert, and this one is of type '" + type + "'."};
  }
  DJINN_TRY(std::vector<std::string> unknown, check_keys(Builder::kBert, files.config));
  std::vector<int> fds;
  for (const Fd& fd : files.files) fds.push_back(fd.get());
  const auto plan = plan_of(nullptr, options.matrices);
  DJINN_TRY(OpenedModel model,
            client.open_model({files.label, fds, files.paths}, plan ? &*plan : nullptr));
  DJINN_TRY(const srg::Numerics numerics, numerics_of(client, model, options));
  DJINN_TRY(BertConfig config, BertConfig::from(files.config, model.manifest));
  DJINN_CHECK(check_layers(config.layers, config.prefix + "encoder.layer.", model.manifest));
  DJINN_TRY(const srg::Graph plain, build_bert(config, false, kEncoderRowsMax));
  DJINN_CHECK(check_weights(plain, model.manifest));
  std::unique_ptr<Encoder> made(new Encoder(client, std::move(model), std::move(config), numerics));
  made->unknown_keys_ = std::move(unknown);
  return made;
}

Result<const Encoder::Program*> Encoder::program(bool masked) {
  std::optional<Program>& slot = masked ? masked_ : plain_;
  if (!slot) {
    DJINN_TRY(srg::Graph graph, build_bert(config_, masked, kEncoderRowsMax));
    graph.numerics = numerics_;
    DJINN_TRY(const auto defined, client_.define_program(graph, model_.id));
    slot = Program{defined.program, std::move(graph)};
  }
  return &*slot;
}

Result<Encoded> Encoder::encode(const EncoderBatch& batch, bool want_hidden) {
  DJINN_CHECK(check(batch, config_));
  const bool masked = hides_something(batch);
  DJINN_TRY(const Program* const chosen, program(masked));
  RunBuilder run(client_, chosen->graph);
  run.symbol("batch", batch.rows);
  run.symbol("tokens", batch.tokens);
  const std::vector<int64_t> zeros(batch.types.empty() ? batch.ids.size() : 0);
  DJINN_CHECK(run.input("input_ids", std::as_bytes(batch.ids)));
  DJINN_CHECK(run.input(
      "token_type_ids",
      std::as_bytes(batch.types.empty() ? std::span<const int64_t>(zeros) : batch.types)));
  if (masked) {
    DJINN_CHECK(run.input("attention_mask", square_mask(batch)));
    DJINN_CHECK(run.input("token_weights", weights(batch, config_.dtype)));
  }
  const uint64_t row_bytes = static_cast<uint64_t>(config_.hidden) * size_of(config_.dtype);
  const uint64_t hidden_bytes = want_hidden ? row_bytes * batch.rows * batch.tokens : 0;
  const uint64_t embedding_bytes = row_bytes * batch.rows;
  if (want_hidden) DJINN_CHECK(run.output(0, hidden_bytes));
  DJINN_CHECK(run.output(1, embedding_bytes));
  DJINN_CHECK(run.run(chosen->id));
  Encoded out;
  out.dtype = config_.dtype;
  out.hidden = run.take_output(0);
  out.embedding = run.take_output(1);
  if (out.hidden.size() != hidden_bytes || out.embedding.size() != embedding_bytes) {
    return ipc::output_cannot_be();
  }
  return out;
}

}  // namespace djinn::client
