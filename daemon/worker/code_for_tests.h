// SPDX-License-Identifier: Apache-2.0

// code_of: how a call ended.
#pragma once

#include <optional>

#include "kernel/base/outcome.h"

namespace djinn::worker {

// Of a Status or Result: kOk, or the error's.
template <typename T>
ErrorCode code_of(const Result<T>& result) {
  return result.ok() ? ErrorCode::kOk : result.error().code;
}

// Of an Outcome likewise, and kPending: that has no code.
inline constexpr std::optional<ErrorCode> kPending;
template <typename T>
std::optional<ErrorCode> code_of(const Outcome<T>& outcome) {
  if (outcome.is_pending()) return kPending;
  return outcome.ok() ? ErrorCode::kOk : outcome.error().code;
}

}  // namespace djinn::worker
