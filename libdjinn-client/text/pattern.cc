// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/text/pattern.h"

#include <algorithm>

#include "kernel/base/assert.h"
#include "libdjinn-client/text/unicode.h"

namespace djinn::text {
namespace {

struct Part {
  Range range;
  bool is_match;
};

// Matches and the gaps between them.
std::vector<Part> parts_of(size_t size, const std::vector<Range>& matches, bool invert) {
  std::vector<Part> parts;
  size_t end = 0;
  for (const Range& match : matches) {
    if (match.begin != end) parts.push_back({{end, match.begin}, invert});
    parts.push_back({match, !invert});
    end = match.end;
  }
  if (end != size) parts.push_back({{end, size}, invert});
  return parts;
}

std::vector<Range> removed(const std::vector<Part>& parts) {
  std::vector<Range> kept;
  for (const Part& part : parts) {
    if (!part.is_match) kept.push_back(part.range);
  }
  return kept;
}

// Joins a part with the one before it where joins says so of (is_match, was_match).
template <typename Joins>
std::vector<Range> joined(const std::vector<Part>& parts, const Joins& joins) {
  std::vector<Range> kept;
  bool was_match = false;
  for (const Part& part : parts) {
    if (joins(part.is_match, was_match) && !kept.empty()) {
      kept.back().end = part.range.end;
    } else {
      kept.push_back(part.range);
    }
    was_match = part.is_match;
  }
  return kept;
}

std::vector<Range> merged_with_next(const std::vector<Part>& parts) {
  std::vector<Range> kept;
  bool was_match = false;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    if (part->is_match && !was_match && !kept.empty()) {
      kept.back().begin = part->range.begin;
    } else {
      kept.push_back(part->range);
    }
    was_match = part->is_match;
  }
  std::ranges::reverse(kept);
  return kept;
}

std::vector<Range> kept_of(const std::vector<Part>& parts, Behavior behavior) {
  switch (behavior) {
    case Behavior::kRemoved:
      return removed(parts);
    case Behavior::kIsolated:
      return joined(parts, [](bool, bool) { return false; });
    case Behavior::kMergedWithPrevious:
      return joined(parts, [](bool is_match, bool was_match) { return is_match && !was_match; });
    case Behavior::kContiguous:
      return joined(parts, [](bool is_match, bool was_match) { return is_match == was_match; });
    case Behavior::kMergedWithNext:
      return merged_with_next(parts);
  }
  return {};
}

}  // namespace

Result<Pattern> Pattern::make(const Json& json, const std::string& part) {
  Settings settings(json, "pattern of the " + part);
  Pattern pattern;
  const auto literal = settings.text("String");
  const auto regex = settings.text("Regex");
  DJINN_CHECK(settings.finish());
  if (literal.has_value() == regex.has_value()) {
    return malformed("the pattern of its " + part + " is neither a text nor a regular expression");
  }
  if (literal && literal->empty()) return not_known("an empty pattern of its " + part);
  if (literal) {
    DJINN_CHECK(check_bytes(*literal, kAffixBytesMax, "a pattern"));
    pattern.literal_ = *literal;
  }
  if (regex) {
    DJINN_TRY(pattern.regex_, Regex::compile(*regex));
  }
  return pattern;
}

Result<std::vector<Range>> Pattern::find_all(std::string_view text, Retries& retries) const {
  if (regex_) return regex_->find_all(text, retries);
  return find_literal(text);
}

std::vector<Range> Pattern::find_literal(std::string_view text) const {
  DJINN_ASSERT(!is_regex());
  std::vector<Range> matches;
  for (size_t at = text.find(literal_); at != std::string_view::npos;
       at = text.find(literal_, at + literal_.size())) {
    matches.push_back({at, at + literal_.size()});
  }
  return matches;
}

Result<Behavior> behavior_named(const std::string& name, const std::string& part) {
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  return not_known("the behavior '" + shown(name) + "' of its " + part);
}

void split(const Piece& piece, const std::vector<Range>& matches, Behavior behavior, bool invert,
           Pieces& out) {
  for (const Range& range : kept_of(parts_of(piece.text.size(), matches, invert), behavior)) {
    if (range.begin == range.end) continue;
    out.push_back({piece.text.substr(range.begin, range.end - range.begin), -1,
                   piece.at_start && range.begin == 0});
  }
}

std::vector<Range> matches_of(std::string_view text, bool (*is_one)(uint32_t point)) {
  std::vector<Range> matches;
  for (size_t at = 0; at < text.size();) {
    const Character one = character_at(text, at);
    if (is_one(one.point)) matches.push_back({at, at + one.bytes});
    at += one.bytes;
  }
  return matches;
}

}  // namespace djinn::text
