// SPDX-License-Identifier: Apache-2.0

// Our own kernels (kernels/launches.h) on the device of this process: their image, and launches of
// what is in it, on the stream that LibTorch computes on.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "kernel/base/result.h"
#include "kernel/exec/cuda/kernels/launches.h"
#include "kernel/exec/torch_headers.h"

namespace djinn::exec {

// Once a process, after LibTorch has opened the device. image: of NVIDIA's compiler
// (kernels.fatbin); it may go when this returns. Errors: kUnsupported where CUDA does not take it.
Status load_own_kernels(std::span<const std::byte> image);
[[nodiscard]] bool are_own_kernels_loaded();

// The three below throw what LibTorch's own launches throw: an operator's error.
//
// Precondition: the image is loaded.
void launch(const Result<cuda::Launch>& launch, const void* call);
template <typename Call, typename... Rest>
void launch_kernel(const Call& call, const Rest&... rest) {
  launch(cuda::launch_of(call, rest...), &call);
}
void launch_attend(const cuda::Attend& call, cuda::Element element);

[[nodiscard]] uint32_t multiprocessors();

}  // namespace djinn::exec
