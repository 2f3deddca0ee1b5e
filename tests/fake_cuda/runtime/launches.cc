// SPDX-License-Identifier: Apache-2.0

// Launches, and the registration of kernels that precedes main(). A launch is recorded and, but for
// our own kernels, not run; all ways to launch give the same line.

#include <fmt/format.h>

#include "tests/fake_cuda/runtime/call.h"
#include "tests/fake_cuda/runtime/own_kernels.h"
#include "tests/fake_cuda/runtime/streams.h"

namespace djinn::fake_runtime {
namespace {

constexpr unsigned kThreadsPerBlockMost = 1024;

struct Shape {
  dim3 grid;
  dim3 block;
  size_t shared = 0;
  cudaStream_t stream = nullptr;
};

thread_local Shape pushed;

bool is_possible(const Shape& shape) {
  const uint64_t blocks = uint64_t{shape.grid.x} * shape.grid.y * shape.grid.z;
  const uint64_t threads = uint64_t{shape.block.x} * shape.block.y * shape.block.z;
  return blocks != 0 && threads != 0 && threads <= kThreadsPerBlockMost;
}

cudaError_t start_own(const void* kernel, const Shape& shape, void** arguments) {
  const emulator::Launch launch{{shape.grid.x, shape.grid.y, shape.grid.z},
                                {shape.block.x, shape.block.y, shape.block.z},
                                shape.shared};
  return enqueue(shape.stream, work_of_own(kernel, launch, arguments));
}

cudaError_t launch(std::string_view function, const void* kernel, const Shape& shape,
                   void** arguments = nullptr) {
  Call call(function);
  call.show("kernel", kernel);
  call.show("grid", shape.grid);
  call.show("block", shape.block);
  call.show("shared", shape.shared);
  call.show("stream", shape.stream);
  return call.run([&] {
    if (!world().kernels.contains(kernel)) return cudaErrorInvalidDeviceFunction;
    if (!is_possible(shape)) return cudaErrorInvalidConfiguration;
    if (arguments != nullptr && is_own(kernel)) return start_own(kernel, shape, arguments);
    return enqueue(shape.stream);
  });
}

}  // namespace
}  // namespace djinn::fake_runtime

using djinn::fake_runtime::launch;
using djinn::fake_runtime::pushed;
using djinn::fake_runtime::world;

extern "C" cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void**,
                                        size_t shared, cudaStream_t stream) {
  return launch("cudaLaunchKernel", kernel, {grid, block, shared, stream});
}

extern "C" cudaError_t cudaLaunchCooperativeKernel(const void* kernel, dim3 grid, dim3 block,
                                                   void**, size_t shared, cudaStream_t stream) {
  return launch("cudaLaunchCooperativeKernel", kernel, {grid, block, shared, stream});
}

extern "C" cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel,
                                           void** arguments) {
  return launch("cudaLaunchKernelExC", kernel,
                {config->gridDim, config->blockDim, config->dynamicSmemBytes, config->stream},
                arguments);
}

// What nvcc makes of <<<>>> calls these.

extern "C" cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void**,
                                          size_t shared, cudaStream_t stream) {
  return launch("cudaLaunchKernel", kernel, {grid, block, shared, stream});
}

extern "C" cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* stub) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(stub));
  return cudaSuccess;
}

extern "C" unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared,
                                                CUstream_st* stream) {
  pushed = {grid, block, shared, stream};
  return 0;
}

extern "C" cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared,
                                                  void* stream) {
  *grid = pushed.grid;
  *block = pushed.block;
  *shared = pushed.shared;
  *static_cast<cudaStream_t*>(stream) = pushed.stream;
  return cudaSuccess;
}

extern "C" void** __cudaRegisterFatBinary(void* binary) {
  return static_cast<void**>(binary);
}

extern "C" void __cudaRegisterFatBinaryEnd(void**) {}

extern "C" void __cudaUnregisterFatBinary(void**) {}

extern "C" char __cudaInitModule(void**) {
  return 1;
}

extern "C" void __cudaRegisterFunction(void**, const char* stub, char*, const char* name, int,
                                       uint3*, uint3*, dim3*, dim3*, int*) {
  const std::lock_guard lock(world().mutex);
  world().kernels.emplace(stub, name);
}

extern "C" void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
