// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/text/tokenizer.h"

#include <utility>

#include "libdjinn-client/text/added_tokens.h"
#include "libdjinn-client/text/decoder.h"
#include "libdjinn-client/text/model.h"
#include "libdjinn-client/text/normalizer.h"
#include "libdjinn-client/text/post_processor.h"
#include "libdjinn-client/text/pre_tokenizer.h"
#include "libdjinn-client/text/tokenizer_file.h"
#include "libdjinn-client/text/unicode.h"

namespace djinn::text {

struct Tokenizer::Parts {
  std::unique_ptr<Normalizer> normalizer;       // null: none
  std::unique_ptr<PreTokenizer> pre_tokenizer;  // null: none
  std::unique_ptr<Model> model;
  AddedTokens added;
  Frame frame;
  Decoder decoder;

  // What of a text is left to the model, and added tokens between.
  Result<Pieces> pieces_of(std::string_view text) const {
    Pieces pieces;
    size_t bytes = 0;
    Retries retries;
    for (Piece& piece : added.find_raw({std::string(text), -1, true})) {
      if (piece.token >= 0) {
        pieces.push_back(std::move(piece));
        continue;
      }
      if (normalizer) DJINN_CHECK(normalizer->normalize(piece, retries));
      bytes += piece.text.size();
      if (bytes > kPiecesBytesMax) return too_much("the normalizer");
      for (Piece& part : added.find_normalized(piece)) pieces.push_back(std::move(part));
      if (pieces.size() > kPiecesMax) return too_much("the added tokens");
    }
    if (pre_tokenizer) DJINN_CHECK(pre_tokenizer->split(pieces, retries));
    return pieces;
  }

  [[nodiscard]] std::optional<std::string_view> text_of(int32_t id, SpecialTokens special) const {
    auto text = added.text_of(id);
    if (!text) text = model->words().text_of(id);
    const bool is_left_out = special == SpecialTokens::kWithout && text && added.is_special(*text);
    return is_left_out ? std::nullopt : text;
  }
};

struct Tokenizer::Stream::State {
  std::shared_ptr<const Parts> parts;
  SpecialTokens special;
  Decoder::Text text;
};

Tokenizer::Tokenizer(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer::Stream::Stream(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::Stream::Stream(Stream&&) noexcept = default;
Tokenizer::Stream& Tokenizer::Stream::operator=(Stream&&) noexcept = default;
Tokenizer::Stream::~Stream() = default;

Result<Tokenizer> Tokenizer::read(std::string_view json) {
  DJINN_TRY(auto file, read_tokenizer_file(json));
  Settings settings(file.settings, "file");
  for (const char* const key : {"version", "truncation", "padding", "model"}) {
    settings.pass_over(key);
  }
  auto parts = std::make_shared<Parts>();
  if (const Json& normalizer = settings.any("normalizer"); !normalizer.is_null()) {
    DJINN_TRY(parts->normalizer, make_normalizer(normalizer));
  }
  if (const Json& pre_tokenizer = settings.any("pre_tokenizer"); !pre_tokenizer.is_null()) {
    DJINN_TRY(parts->pre_tokenizer, make_pre_tokenizer(pre_tokenizer));
  }
  DJINN_TRY(parts->model, make_model(file));
  DJINN_TRY(parts->added, AddedTokens::make(settings.any("added_tokens"), *parts->model,
                                            parts->normalizer.get()));
  DJINN_TRY(parts->frame, make_frame(settings.any("post_processor")));
  DJINN_TRY(parts->decoder, Decoder::make(settings.any("decoder")));
  DJINN_CHECK(settings.finish());
  return Tokenizer(std::move(parts));
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, SpecialTokens special) const {
  if (text.size() > kTextBytesMax) {
    return Error{ErrorCode::kLimitExceeded,
                 "A text may have " + std::to_string(kTextBytesMax) + " bytes. Give it in parts."};
  }
  if (const size_t valid = valid_bytes(text); valid != text.size()) {
    return Error{ErrorCode::kInvalidArgument,
                 "The text is not UTF-8 at byte " + std::to_string(valid) +
                     ". Text in another encoding has to be made UTF-8 first."};
  }
  DJINN_TRY(const auto pieces, parts_->pieces_of(text));
  std::vector<int32_t> tokens;
  if (special == SpecialTokens::kWith) tokens = parts_->frame.before;
  for (const Piece& piece : pieces) {
    if (piece.token >= 0) {
      tokens.push_back(piece.token);
    } else if (!piece.text.empty()) {
      DJINN_CHECK(parts_->model->add_tokens(piece.text, tokens));
    }
  }
  if (special == SpecialTokens::kWith) {
    const std::vector<int32_t>& behind = parts_->frame.behind;
    tokens.insert(tokens.end(), behind.begin(), behind.end());
  }
  return tokens;
}

std::string Tokenizer::decode(std::span<const int32_t> tokens, SpecialTokens special) const {
  Stream whole = stream(special);
  std::string text;
  for (const int32_t token : tokens) text += whole.next(token);
  return text + whole.finish();
}

Tokenizer::Stream Tokenizer::stream(SpecialTokens special) const {
  return Stream(std::make_unique<Stream::State>(parts_, special, parts_->decoder.begin()));
}

std::string Tokenizer::Stream::next(int32_t token) {
  const auto text = state_->parts->text_of(token, state_->special);
  return text ? state_->text.next(std::string(*text)) : std::string();
}

std::string Tokenizer::Stream::finish() {
  return state_->text.finish();
}

}  // namespace djinn::text
