// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/cuda/own_kernels.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "kernel/base/assert.h"

namespace djinn::exec {
namespace {

// Of the process: its kernels are found as they are launched first.
class Image {
 public:
  explicit Image(cudaLibrary_t library) : library_(library) {}

  cudaKernel_t find(const std::string& name) {
    const std::lock_guard lock(mutex_);
    const auto known = kernels_.find(name);
    if (known != kernels_.end()) return known->second;
    cudaKernel_t kernel = nullptr;
    C10_CUDA_CHECK(::cudaLibraryGetKernel(&kernel, library_, name.c_str()));
    kernels_.emplace(name, kernel);
    return kernel;
  }

 private:
  cudaLibrary_t library_;
  std::mutex mutex_;
  std::map<std::string, cudaKernel_t> kernels_;
};

// It is never destroyed: CUDA may be gone first at exit.
Image* image = nullptr;

}  // namespace

Status load_own_kernels(std::span<const std::byte> code) {
  DJINN_ASSERT(image == nullptr);
  cudaLibrary_t library = nullptr;
  const cudaError_t error =
      ::cudaLibraryLoadData(&library, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
  if (error != cudaSuccess) {
    return Error{ErrorCode::kUnsupported,
                 fmt::format("The GPU does not take the image of djinn's kernels: {}.",
                             ::cudaGetErrorString(error))};
  }
  image = new Image(library);
  return {};
}

bool are_own_kernels_loaded() {
  return image != nullptr;
}

void launch(const Result<cuda::Launch>& launch, const void* call) {
  TORCH_CHECK(launch.ok(),
              "A kernel of djinn's was given what it cannot compute: ", launch.error().message);
  DJINN_ASSERT(image != nullptr);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(launch->grid_x, launch->grid_y, launch->grid_z);
  config.blockDim = dim3(launch->threads);
  config.dynamicSmemBytes = launch->shared_bytes;
  config.stream = c10::cuda::getCurrentCUDAStream();
  void* arguments[] = {const_cast<void*>(call)};
  C10_CUDA_CHECK(::cudaLaunchKernelExC(&config, image->find(launch->kernel), arguments));
}

void launch_attend(const cuda::Attend& call, cuda::Element element) {
  const Result<cuda::AttendLaunches> launches = cuda::launches_of(call, element);
  TORCH_CHECK(launches.ok(),
              "A kernel of djinn's was given what it cannot compute: ", launches.error().message);
  launch(launches->split, &call);
  launch(launches->combine, &call);
}

uint32_t multiprocessors() {
  static const int count = [] {
    int found = 0;
    C10_CUDA_CHECK(::cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, 0));
    return found;
  }();
  return static_cast<uint32_t>(count);
}

}  // namespace djinn::exec
