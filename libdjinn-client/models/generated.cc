// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/models/generated.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kernel/base/assert.h"

namespace djinn::client {

std::optional<uint32_t> Generated::failed_row() const {
  const auto found = std::ranges::find_if(errors, [](const auto& one) { return one.has_value(); });
  if (found == errors.end()) return std::nullopt;
  return static_cast<uint32_t>(found - errors.begin());
}

Error Generated::failure() const {
  const auto row = failed_row();
  DJINN_ASSERT(row);
  const Error& error = *errors[*row];
  return {error.code, "Row " + std::to_string(*row + 1) + " of " + std::to_string(tokens.size()) +
                          ": " + error.message};
}

Error not_begun(std::string_view why) {
  return {ErrorCode::kCancelled, "It was not begun, for " + std::string(why) + "."};
}

bool RowsMade::hear(const TokenEvent& event) {
  has_said_ = true;
  std::vector<int32_t>& row = made_.tokens[event.row];
  if (event.index < row.size()) return false;
  row.push_back(event.token);
  return true;
}

void RowsMade::fail(uint32_t row, Error error) {
  if (!first_) first_ = error;
  made_.errors.resize(made_.tokens.size());
  made_.errors[row] = std::move(error);
}

Result<Generated> RowsMade::take() && {
  if (first_ && !has_said_) return *std::move(first_);
  return std::move(made_);
}

}  // namespace djinn::client
