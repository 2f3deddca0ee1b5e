// SPDX-License-Identifier: Apache-2.0

// What a launch of one of our own kernels does.
#pragma once

#include <functional>

#include "tests/fake_cuda/emulator/emulator.h"

namespace djinn::fake_runtime {

// Whether it is one of kernel/exec/cuda/kernels, as cudaLibraryGetKernel() gave it.
[[nodiscard]] bool is_own(const void* kernel);
// What a launch of it with this one argument does, as often as it is called. Where the kernel or
// the launch is wrong that is written to the standard error, and the context has failed.
// Precondition: it is our own.
[[nodiscard]] std::function<void()> work_of_own(const void* kernel, const emulator::Launch& launch,
                                                void** arguments);

}  // namespace djinn::fake_runtime
