// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/text/regex.h"

#include <oniguruma.h>

#include <algorithm>
#include <mutex>

#include "libdjinn-client/text/settings.h"
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

// What the searches of one piece may take. Oniguruma does not tell how often one went back, so each
// begins with few tries, and has more where they do not do; these are counted.
class Bounds {
 public:
  Bounds(size_t bytes, Retries& retries) : param_(onig_new_match_param()), retries_(retries) {
    retries_.begin(bytes);
    if (param_ == nullptr) throw std::bad_alloc();
    onig_initialize_match_param(param_);
    onig_set_match_stack_limit_size_of_match_param(param_, kStackMax);
  }
  ~Bounds() { onig_free_match_param(param_); }
  Bounds(const Bounds&) = delete;
  Bounds& operator=(const Bounds&) = delete;

  // What search(param) gives with as many tries as it needs.
  template <typename Search>
  int within(const Search& search) {
    constexpr unsigned long kFew = 256;
    for (unsigned long tries = kFew;; tries = std::min(tries * 8, kRetriesMax)) {
      onig_set_retry_limit_in_match_of_match_param(param_, tries);
      onig_set_retry_limit_in_search_of_match_param(param_, tries);
      const int at = search(param_);
      const bool needs_more =
          at == ONIGERR_RETRY_LIMIT_IN_MATCH_OVER || at == ONIGERR_RETRY_LIMIT_IN_SEARCH_OVER;
      if (!needs_more || tries == kRetriesMax) return at;
      if (!retries_.take(tries)) return at;
    }
  }

 private:
  OnigMatchParam* param_;
  Retries& retries_;
};

size_t count_of(std::string_view text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

// What has no bound in Oniguruma: groups that call one another compile, and run, for ever, and an
// absent part is searched for without being counted. Told by their letters alone, wherever they
// stand: a pattern that only looks as if it had them is not worth a parser of our own.
Status check_bounded(std::string_view pattern) {
  DJINN_CHECK(check_bytes(pattern, kPatternBytesMax, "a regular expression"));
  for (const std::string_view part : {"\\g<", "\\g'", "(?~"}) {
    if (count_of(pattern, part) > 0) {
      return not_known("'" + std::string(part) + "' in a regular expression");
    }
  }
  const size_t looks_behind = count_of(pattern, "(?<=") + count_of(pattern, "(?<!");
  if (looks_behind <= kLookBehindsMax) return {};
  return Error{ErrorCode::kLimitExceeded,
               "A regular expression of tokenizer.json looks behind " +
                   std::to_string(looks_behind) + " times, '" + shown(pattern) + "', and may " +
                   std::to_string(kLookBehindsMax) +
                   " times. Another library has to make tokens of text for this model."};
}

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
  DJINN_CHECK(check_bounded(pattern));
  Regex made;
  OnigRegex regex = nullptr;
  const int code = onig_new(&regex, bytes_of(pattern), bytes_of(pattern) + pattern.size(),
                            ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, ONIG_SYNTAX_DEFAULT, nullptr);
  if (code != ONIG_NORMAL) {
    return malformed("'" + shown(pattern) + "' is no regular expression: " + told(code));
  }
  made.regex_.reset(regex);
  return made;
}

Result<std::vector<Range>> Regex::find_all(std::string_view text, Retries& retries) const {
  std::string known;
  if (std::ranges::any_of(text,
                          [](char byte) { return static_cast<unsigned char>(byte) >= 0xe0; })) {
    known = text;
    if (replace_younger(known)) text = known;
  }
  std::vector<Range> matches;
  Bounds bounds(text.size(), retries);
  Region region;
  const OnigUChar* const begin = bytes_of(text);
  const OnigUChar* const end = begin + text.size();
  for (size_t from = 0; from <= text.size();) {
    const int at = bounds.within([&](OnigMatchParam* param) {
      return onig_search_with_param(regex_.get(), begin, end, begin + from, end, &region.found,
                                    ONIG_OPTION_NONE, param);
    });
    if (at == ONIG_MISMATCH) break;
    if (at < 0) {
      return Error{ErrorCode::kLimitExceeded,
                   "The tokenizer's regular expression finds no end in this text: " + told(at) +
                       ". Give the text in shorter parts."};
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
