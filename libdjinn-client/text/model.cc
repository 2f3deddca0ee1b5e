// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/text/model.h"

#include "libdjinn-client/text/bpe.h"
#include "libdjinn-client/text/unigram.h"
#include "libdjinn-client/text/word_models.h"

namespace djinn::text {
namespace {

Result<std::unique_ptr<Model>> make_model_named(Settings& settings, TokenizerFile& file) {
  const std::string type = settings.type();
  if (type == "BPE") return make_bpe(settings, file);
  if (type == "WordPiece") return make_word_piece(settings, file);
  if (type == "WordLevel") return make_word_level(settings, file);
  if (type == "Unigram") return make_unigram(settings, file);
  // Files of years ago do not say which they are.
  if (type.empty() && !file.merges.empty()) return make_bpe(settings, file);
  return not_known(settings.name());
}

}  // namespace

Error no_unknown_token(std::string_view part) {
  return {ErrorCode::kUnsupported,
          "The vocabulary does not have '" + shown(part) +
              "' of this text, and has no token for such. Give the text without it."};
}

Result<std::unique_ptr<Model>> make_model(TokenizerFile& file) {
  const auto found = file.settings.find("model");
  if (found == file.settings.end()) return malformed("it has no model");
  Settings settings(*found, "model");
  if (settings.type() == "Unigram" ? !file.words.empty() : !file.scores.empty()) {
    return malformed("its vocabulary is one of another model");
  }
  auto made = make_model_named(settings, file);
  if (made) DJINN_CHECK(settings.finish());
  return made;
}

}  // namespace djinn::text
