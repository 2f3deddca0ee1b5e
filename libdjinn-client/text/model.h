// SPDX-License-Identifier: Apache-2.0

// Model: what makes tokens of a word, as models of `tokenizers` do.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "libdjinn-client/text/tokenizer_file.h"

namespace djinn::text {

class Model {
 public:
  virtual ~Model() = default;
  // Appends the tokens of a word. Errors: kUnsupported for a word that the vocabulary does not
  // have, where the file names no token for such. Any thread.
  virtual Status add_tokens(std::string_view word, std::vector<int32_t>& tokens) const = 0;

  [[nodiscard]] virtual std::optional<int32_t> id_of(std::string_view text) const = 0;
  [[nodiscard]] virtual std::optional<std::string_view> text_of(int32_t id) const = 0;
  [[nodiscard]] virtual size_t size() const = 0;
};

// kUnsupported: the vocabulary does not have this part of a text, and no token for such.
Error no_unknown_token(std::string_view part);

// Takes the file's words, scores and merges. Errors: kUnsupported for a model that is not known,
// kMalformed.
Result<std::unique_ptr<Model>> make_model(TokenizerFile& file);

}  // namespace djinn::text
