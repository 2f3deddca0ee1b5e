// SPDX-License-Identifier: Apache-2.0

// Model: what makes tokens of a word, as models of `tokenizers` do.
#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "libdjinn-client/text/tokenizer_file.h"
#include "libdjinn-client/text/words.h"

namespace djinn::text {

class Model {
 public:
  explicit Model(Words words) : words_(std::move(words)) {}
  virtual ~Model() = default;
  // Appends the tokens of a word. Errors: kUnsupported for a word that the vocabulary does not
  // have, where the file names no token for such. Any thread.
  virtual Status add_tokens(std::string_view word, std::vector<int32_t>& tokens) const = 0;

  // Its vocabulary, without tokens that are added.
  [[nodiscard]] const Words& words() const { return words_; }

 private:
  Words words_;
};

// kUnsupported: the vocabulary does not have this part of a text, and no token for such.
Error no_unknown_token(std::string_view part);

// Takes the file's words, scores and merges. Errors: kUnsupported for a model that is not known,
// kMalformed.
Result<std::unique_ptr<Model>> make_model(TokenizerFile& file);

}  // namespace djinn::text
