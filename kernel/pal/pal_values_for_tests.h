// SPDX-License-Identifier: Apache-2.0

// What tests of pals compare: the code of an answer, and bytes that are not like each other.
#pragma once

#include <cstddef>
#include <vector>

#include "kernel/base/result.h"

namespace djinn::pal {

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
