// SPDX-License-Identifier: Apache-2.0

// Tokenizer: text to token ids and back, as the library `tokenizers` does by a tokenizer.json. What
// the file asks for and is not done to the letter here is an error when the file is read.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernel/base/result.h"

namespace djinn::text {

// A text of one-byte words takes 85 times its bytes of memory, one of English some ten times.
inline constexpr size_t kTextBytesMax = size_t{8} << 20;

enum class SpecialTokens { kWith, kWithout };

class Tokenizer {
 public:
  // json: a tokenizer.json. Its settings of truncation and padding are passed over, as transformers
  // does for one text. Errors: kMalformed, kUnsupported for what is not known, kLimitExceeded.
  static Result<Tokenizer> read(std::string_view json);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // With special tokens: those that the file puts before and behind a text. Errors:
  // kInvalidArgument for text that is not UTF-8; kLimitExceeded for too much, and where a regular
  // expression of the file finds no end; kUnsupported for characters that have no token. Any
  // thread.
  Result<std::vector<int32_t>> encode(std::string_view text, SpecialTokens special) const;

  // UTF-8. Ids that are no token's are passed over, and without special tokens, these. Any thread.
  [[nodiscard]] std::string decode(std::span<const int32_t> tokens, SpecialTokens special) const;

  // The same token by token, as a model says them: what next() and finish() gave is what decode()
  // gives of all. Each part has whole characters only. One thread.
  class Stream {
   public:
    Stream(Stream&&) noexcept;
    Stream& operator=(Stream&&) noexcept;
    ~Stream();
    std::string next(int32_t token);
    std::string finish();

   private:
    friend class Tokenizer;
    struct State;
    explicit Stream(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
  };
  // May outlive the tokenizer.
  [[nodiscard]] Stream stream(SpecialTokens special) const;

 private:
  struct Parts;
  explicit Tokenizer(std::shared_ptr<const Parts> parts);
  std::shared_ptr<const Parts> parts_;
};

}  // namespace djinn::text
