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

// 2 KiB are long for one, or for all of a file. Of so many bytes there are patterns that take half
// a second and 100 MB to compile, as many classes of all letters in which no case counts.
inline constexpr size_t kPatternBytesMax = size_t{8} << 10;
// Each that is inside of another one doubles the time of compiling. Published files have none.
inline constexpr size_t kLookBehindsMax = 8;
// How often one search may go back and try otherwise. Oniguruma's own limit, of one match.
inline constexpr unsigned long kRetriesMax = 10'000'000;
// And all searches of a text, those that need few left out of the count: some seconds. A long text
// may have some for each byte and pattern, which is what those of published files need at most.
inline constexpr unsigned long kRetriesOfTextMax = 4 * kRetriesMax;
inline constexpr unsigned long kRetriesOfByteMax = 8;

// How often the searches of one text may still go back, by whichever patterns and in whichever of
// its pieces.
class Retries {
 public:
  void begin(size_t searched_bytes) {
    left_ += static_cast<long>(kRetriesOfByteMax * searched_bytes);
  }
  // False: there are none left.
  bool take(unsigned long count) {
    left_ -= static_cast<long>(count);
    return left_ >= 0;
  }

 private:
  long left_ = kRetriesOfTextMax;
};

class Regex {
 public:
  // Errors: kMalformed for what is no regular expression; kLimitExceeded for one that is too long,
  // or looks behind too often; kUnsupported for what compiles or searches without end.
  static Result<Regex> compile(std::string_view pattern);

  // All matches from left to right, empty ones too, but none right behind the one before it.
  // text: UTF-8. Errors: kLimitExceeded where it would try too long. Any thread.
  Result<std::vector<Range>> find_all(std::string_view text, Retries& retries) const;

 private:
  struct Freed {
    void operator()(re_pattern_buffer* regex) const;
  };
  std::unique_ptr<re_pattern_buffer, Freed> regex_;
};

}  // namespace djinn::text
