// SPDX-License-Identifier: Apache-2.0

// The device: what an H200 says of itself, where PyTorch asks.

#include <string.h>

#include <algorithm>

#include "effects.h"
#include "tests/fake_cuda/codes.h"
#include "tests/fake_cuda/runtime/errors.h"
#include "tests/fake_cuda/runtime/world.h"

namespace djinn::fake_runtime {
namespace {

constexpr int kRuntimeVersion = 13'000;
constexpr int kMajor = 9;
constexpr int kMultiprocessors = 132;
constexpr int kThreadsPerMultiprocessor = 2048;
constexpr int kBlocksPerMultiprocessor = 32;
constexpr int kThreadsPerBlock = 1024;
constexpr int kSharedPerBlock = 48 << 10;
constexpr int kSharedPerBlockOptin = 227 << 10;
constexpr int kSharedPerMultiprocessor = 228 << 10;
constexpr int kRegisters = 65'536;

// As many as threads allow: what a kernel's registers and shared memory leave is not known here.
cudaError_t occupancy(int* blocks, int threads) {
  if (threads <= 0 || threads > kThreadsPerBlock) return cudaErrorInvalidValue;
  *blocks = std::min(kBlocksPerMultiprocessor, kThreadsPerMultiprocessor / threads);
  return cudaSuccess;
}

}  // namespace

namespace effect {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = world().options.devices;
  return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = world().options.driver_version;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kRuntimeVersion;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error();
  forget_last_error();
  return error;
}

cudaError_t cudaPeekAtLastError() {
  return last_error();
}

const char* cudaGetErrorName(cudaError_t error) {
  const auto* const info = fake_cuda::find_code(code_of(error));
  return info == nullptr ? "an error without a name here" : info->name;
}

const char* cudaGetErrorString(cudaError_t error) {
  const bool is_capture =
      error >= cudaErrorStreamCaptureUnsupported && error <= cudaErrorStreamCaptureWrongThread;
  if (is_capture) return "operation not permitted when stream is capturing";
  const auto* const info = fake_cuda::find_code(code_of(error));
  return info == nullptr ? "an error without a name here" : info->text;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* device, int) {
  *device = {};
  const std::string& name = world().options.name;
  ::memcpy(device->name, name.data(), std::min(name.size(), sizeof device->name - 1));
  ::memcpy(device->uuid.bytes, world().options.uuid.data(), sizeof device->uuid.bytes);
  device->major = kMajor;
  device->multiProcessorCount = kMultiprocessors;
  device->warpSize = 32;
  device->maxThreadsPerBlock = kThreadsPerBlock;
  device->maxThreadsPerMultiProcessor = kThreadsPerMultiprocessor;
  device->maxBlocksPerMultiProcessor = kBlocksPerMultiprocessor;
  device->sharedMemPerBlock = kSharedPerBlock;
  device->sharedMemPerBlockOptin = kSharedPerBlockOptin;
  device->sharedMemPerMultiprocessor = kSharedPerMultiprocessor;
  device->regsPerBlock = device->regsPerMultiprocessor = kRegisters;
  device->totalGlobalMem = world().options.memory_bytes;
  device->l2CacheSize = 60 << 20;
  device->textureAlignment = 512;
  device->unifiedAddressing = 1;
  for (int i = 0; i < 3; ++i) {
    device->maxThreadsDim[i] = i < 2 ? kThreadsPerBlock : 64;
    device->maxGridSize[i] = i == 0 ? 0x7FFFFFFF : 65'535;
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = kMajor;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = kMultiprocessors;
      break;
    case cudaDevAttrWarpSize:
      *value = 32;
      break;
    case cudaDevAttrMaxThreadsPerBlock:
      *value = kThreadsPerBlock;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = kThreadsPerMultiprocessor;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = kSharedPerBlock;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = kSharedPerBlockOptin;
      break;
    default:
      note("fake", "nobody has said what this attribute is");
      *value = 0;
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->maxThreadsPerBlock = kThreadsPerBlock;
  attributes->numRegs = 32;
  attributes->binaryVersion = attributes->ptxVersion = 10 * kMajor;
  attributes->maxDynamicSharedSizeBytes = kSharedPerBlockOptin;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int threads,
                                                          size_t) {
  return occupancy(blocks, threads);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*,
                                                                   int threads, size_t, unsigned) {
  return occupancy(blocks, threads);
}

// PyTorch takes the driver's functions so; it does without those of which it is told so.
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = nullptr;
  if (result != nullptr) *result = cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

}  // namespace effect
}  // namespace djinn::fake_runtime
