// SPDX-License-Identifier: Apache-2.0

// Pattern: what a file gives as {"String": ...} or {"Regex": ...}, and what splitting by it does.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libdjinn-client/text/piece.h"
#include "libdjinn-client/text/regex.h"
#include "libdjinn-client/text/settings.h"

namespace djinn::text {

class Pattern {
 public:
  static Result<Pattern> make(const Json& json, const std::string& part);

  [[nodiscard]] bool is_regex() const { return regex_.has_value(); }
  // Empty where it is a regular expression.
  [[nodiscard]] const std::string& literal() const { return literal_; }
  // Errors: of Regex::find_all().
  Result<std::vector<Range>> find_all(std::string_view text, Retries& retries) const;
  // Precondition: it is no regular expression.
  [[nodiscard]] std::vector<Range> find_literal(std::string_view text) const;

 private:
  std::string literal_;
  std::optional<Regex> regex_;
};

// What becomes of the matches of a split.
enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Errors: kUnsupported.
Result<Behavior> behavior_named(const std::string& name, const std::string& part);

// Appends the parts of a piece; empty ones are left out. invert: the gaps are the matches.
void split(const Piece& piece, const std::vector<Range>& matches, Behavior behavior, bool invert,
           Pieces& out);

// Each such character by itself is a match.
std::vector<Range> matches_of(std::string_view text, bool (*is_one)(uint32_t point));

}  // namespace djinn::text
