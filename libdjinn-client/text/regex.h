// SPDX-License-Identifier: Apache-2.0

// Regex: a regular expression of Oniguruma, the engine of `tokenizers`, in the same syntax.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernel/base/result.h"

struct re_pattern_buffer;

namespace djinn::text {

// Bytes [begin, end) of a text.
struct Range {
  size_t begin;
  size_t end;
};

// Longer patterns are none that split text into words; 1 KiB is long for one.
inline constexpr size_t kPatternBytesMax = size_t{64} << 10;
// How often one search may go back and try otherwise. Oniguruma's own limit, of one match.
inline constexpr unsigned long kRetriesMax = 10'000'000;
// And all searches of a text, those that need few left out of the count: some seconds. A long text
// may have some for each byte, which is what patterns of published files need at most.
inline constexpr unsigned long kRetriesOfTextMax = 4 * kRetriesMax;
inline constexpr unsigned long kRetriesOfByteMax = 8;

class Regex {
 public:
  // Errors: kMalformed for what is no regular expression, and for one that is too long.
  static Result<Regex> compile(std::string_view pattern);

  // All matches from left to right, empty ones too, but none right behind the one before it.
  // text: UTF-8. Errors: kLimitExceeded where it would try too long. Any thread.
  Result<std::vector<Range>> find_all(std::string_view text) const;

 private:
  struct Freed {
    void operator()(re_pattern_buffer* regex) const;
  };
  std::unique_ptr<re_pattern_buffer, Freed> regex_;
};

}  // namespace djinn::text
