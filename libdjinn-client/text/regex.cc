// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/text/regex.h"

#include <oniguruma.h>

#include <algorithm>
#include <mutex>

#include "libdjinn-client/text/unicode.h"

namespace djinn::text {
namespace {

// What a search keeps for going back; 8 million entries are some hundred MB.
constexpr unsigned int kStackMax = 8'000'000;

const OnigUChar* bytes_of(std::string_view text) {
  return reinterpret_cast<const OnigUChar*>(text.data());
}

std::string told(int code) {
  OnigUChar text[ONIG_MAX_ERROR_MESSAGE_LEN];
  const int bytes = onig_error_code_to_str(text, code);
  return {reinterpret_cast<const char*>(text), static_cast<size_t>(std::max(bytes, 0))};
}

void initialize() {
  static std::once_flag once;
  std::call_once(once, [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    onig_initialize(encodings, 1);
  });
}

// What one search may take.
class Bounds {
 public:
  Bounds() : param_(onig_new_match_param()) {
    if (param_ == nullptr) throw std::bad_alloc();
    onig_initialize_match_param(param_);
    onig_set_retry_limit_in_match_of_match_param(param_, kRetriesMax);
    onig_set_retry_limit_in_search_of_match_param(param_, kRetriesMax);
    onig_set_match_stack_limit_size_of_match_param(param_, kStackMax);
  }
  ~Bounds() { onig_free_match_param(param_); }
  Bounds(const Bounds&) = delete;
  Bounds& operator=(const Bounds&) = delete;

  [[nodiscard]] OnigMatchParam* get() const { return param_; }

 private:
  OnigMatchParam* param_;
};

struct Region {
  Region() = default;
  ~Region() { onig_region_free(&found, 0); }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  OnigRegion found = {};
};

}  // namespace

void Regex::Freed::operator()(re_pattern_buffer* regex) const {
  onig_free(regex);
}

Result<Regex> Regex::compile(std::string_view pattern) {
  initialize();
  if (pattern.size() > kPatternBytesMax) {
    return Error{ErrorCode::kMalformed, "A regular expression of " +
                                            std::to_string(pattern.size()) +
                                            " bytes is longer than any that is used."};
  }
  Regex made;
  OnigRegex regex = nullptr;
  const int code = onig_new(&regex, bytes_of(pattern), bytes_of(pattern) + pattern.size(),
                            ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, ONIG_SYNTAX_DEFAULT, nullptr);
  if (code != ONIG_NORMAL) {
    return Error{ErrorCode::kMalformed, "'" + std::string(pattern.substr(0, 60)) +
                                            "' is no regular expression: " + told(code) + "."};
  }
  made.regex_.reset(regex);
  return made;
}

Result<std::vector<Range>> Regex::find_all(std::string_view text) const {
  std::string known;
  if (std::ranges::any_of(text,
                          [](char byte) { return static_cast<unsigned char>(byte) >= 0xe0; })) {
    known = text;
    if (replace_younger(known)) text = known;
  }
  std::vector<Range> matches;
  const Bounds bounds;
  Region region;
  const OnigUChar* const begin = bytes_of(text);
  const OnigUChar* const end = begin + text.size();
  for (size_t from = 0; from <= text.size();) {
    const int at = onig_search_with_param(regex_.get(), begin, end, begin + from, end,
                                          &region.found, ONIG_OPTION_NONE, bounds.get());
    if (at == ONIG_MISMATCH) break;
    if (at < 0) {
      return Error{
          ErrorCode::kLimitExceeded,
          "The tokenizer's regular expression finds no end in this text: " + told(at) + "."};
    }
    const Range match{static_cast<size_t>(region.found.beg[0]),
                      static_cast<size_t>(region.found.end[0])};
    if (match.begin == match.end && !matches.empty() && matches.back().end == match.end) {
      from += from < text.size() ? character_at(text, from).bytes : 1;
      continue;
    }
    matches.push_back(match);
    from = match.end;
  }
  return matches;
}

}  // namespace djinn::text
