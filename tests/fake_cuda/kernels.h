// SPDX-License-Identifier: Apache-2.0

// Kernels that the fake driver knows by name, emulated on a stream's thread. A kernel reaches
// memory through Memory alone, so that what it may not touch ends it as on a device.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "tests/fake_cuda/memory.h"

namespace djinn::fake_cuda {

struct Kernel {
  std::string_view name;
  size_t arguments = 0;  // each a uint64_t
  Code (*run)(Memory& memory, std::span<const uint64_t> arguments) = nullptr;
};

// Null where there is none.
[[nodiscard]] const Kernel* find_kernel(std::string_view name);

}  // namespace djinn::fake_cuda
