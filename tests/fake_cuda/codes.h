// SPDX-License-Identifier: Apache-2.0

// What the fake driver answers: the driver's codes with their names, and those that stay.
#pragma once

#include <optional>
#include <string_view>

#include "kernel/pal/cuda/driver_api.h"

namespace djinn::fake_cuda {

using pal::cuda::Code;

inline constexpr Code kAlreadyRegistered = Code{712};  // HOST_MEMORY_ALREADY_REGISTERED
inline constexpr Code kNotRegistered = Code{713};      // HOST_MEMORY_NOT_REGISTERED

struct CodeInfo {
  Code code;
  const char* name;  // "CUDA_ERROR_OUT_OF_MEMORY"
  const char* text;  // "out of memory"
  bool sticky;       // the context answers nothing else for ever
};

// Null for a code that the fake does not know.
[[nodiscard]] const CodeInfo* find_code(Code code);
// By its name without CUDA_ERROR_.
[[nodiscard]] const CodeInfo* find_code(std::string_view name);

}  // namespace djinn::fake_cuda
