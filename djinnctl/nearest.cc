// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/nearest.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace djinn::ctl {
namespace {

// Computes Levenshtein's distance, one row of the table for each letter of `one`.
size_t changes_between(std::string_view one, std::string_view other) {
  std::vector<size_t> row(other.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < one.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < other.size(); ++j) {
      const size_t exchanged = diagonal + (one[i] == other[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({exchanged, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string_view nearest(std::string_view word, std::span<const std::string> known) {
  std::string_view found;
  size_t least = word.size() / 2 + 1;
  for (const std::string& one : known) {
    const size_t changes = changes_between(word, one);
    if (changes >= least) continue;
    least = changes;
    found = one;
  }
  return found;
}

}  // namespace djinn::ctl
