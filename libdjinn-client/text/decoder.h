// SPDX-License-Identifier: Apache-2.0

// Decoder: how texts of tokens become one text, as decoders of `tokenizers` do it. They look at all
// tokens at once; here tokens come one by one, and each stage gives what nothing can change any
// more, so that all that was given is what they would have made of all.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "libdjinn-client/text/settings.h"

namespace djinn::text {

// One of a chain, with the state of one text.
class DecoderStage {
 public:
  virtual ~DecoderStage() = default;
  // Appends texts that are done.
  virtual void take(std::string token, std::vector<std::string>& done) = 0;
  // There are no more tokens.
  virtual void finish(std::vector<std::string>& done) = 0;
};

class Decoder {
 public:
  using MakeStage = std::function<std::unique_ptr<DecoderStage>()>;

  // json: the file's decoder, or null. Errors: kUnsupported for one that is not known, kMalformed.
  static Result<Decoder> make(const Json& json);

  // The text of one sequence of tokens.
  class Text {
   public:
    // What the token adds, as far as it is whole characters.
    std::string next(std::string token);
    // What had to wait.
    std::string finish();

   private:
    friend class Decoder;
    std::string pass(std::vector<std::string> tokens, bool is_last);

    std::vector<std::unique_ptr<DecoderStage>> stages_;
  };
  [[nodiscard]] Text begin() const;

 private:
  std::vector<MakeStage> stages_;
};

}  // namespace djinn::text
