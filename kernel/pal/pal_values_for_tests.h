// SPDX-License-Identifier: Apache-2.0

// What tests of pals compare: whether a call succeeded and what it said if not, the code of its
// answer, and bytes that are not like each other.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <ostream>
#include <vector>

#include "kernel/base/result.h"

namespace djinn {

inline void PrintTo(ErrorCode code, std::ostream* out) {
  *out << name_of(code);
}

}  // namespace djinn

namespace djinn::pal {

template <typename T>
testing::AssertionResult succeeded(const Result<T>& result) {
  if (result.ok()) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << name_of(result.error().code) << ": " << result.error().message;
}

inline ErrorCode code_of(const Status& status) {
  return status ? ErrorCode::kOk : status.error().code;
}

template <typename T>
ErrorCode code_of(const Result<T>& result) {
  return result.ok() ? ErrorCode::kOk : result.error().code;
}

inline std::vector<std::byte> pattern(size_t bytes, unsigned seed = 1) {
  std::vector<std::byte> out(bytes);
  for (size_t i = 0; i < bytes; ++i)
    out[i] = static_cast<std::byte>((i * 31 + seed * 17) % 251 + 1);
  return out;
}

}  // namespace djinn::pal
