// SPDX-License-Identifier: Apache-2.0

// Memory of the device is the host's, so copies are done, and at once.

#include <fmt/format.h>
#include <string.h>

#include <algorithm>

#include "effects.h"
#include "tests/fake_cuda/runtime/streams.h"

namespace djinn::fake_runtime {
namespace {

cudaError_t allocate(Place place, void** address, size_t bytes) {
  *address = nullptr;
  if (const cudaError_t refused = refuse_in_capture(); refused != cudaSuccess) return refused;
  if (bytes == 0) return cudaSuccess;
  *address = world().allocate(place, bytes);
  if (*address == nullptr) return cudaErrorMemoryAllocation;
  note("is", name_of(*address));
  return cudaSuccess;
}

cudaError_t release(Place place, void* address) {
  if (const cudaError_t refused = refuse_in_capture(); refused != cudaSuccess) return refused;
  const bool done = address == nullptr || world().release(place, address);
  return done ? cudaSuccess : cudaErrorInvalidValue;
}

bool is_pageable(const void* memory) {
  size_t offset = 0;
  return world().find_block(memory, offset) == nullptr && !find_mapped(memory);
}

// A graph would read, or write, what is there when it is launched.
cudaError_t refuse_pageable(cudaStream_t handle, const void* to, const void* from) {
  Stream* const stream = world().find<Stream>(handle);
  const bool is_captured = stream != nullptr && stream->capture != nullptr;
  if (!is_captured || !(is_pageable(to) || is_pageable(from))) return cudaSuccess;
  stream->capture->is_broken = true;
  return cudaErrorStreamCaptureUnsupported;
}

// The synchronous calls use the legacy stream, and wait.
template <typename Work>
cudaError_t at_once(Work work) {
  const cudaError_t refused = refuse_in_capture();
  return refused == cudaSuccess ? enqueue(nullptr, work) : refused;
}

}  // namespace

namespace effect {

cudaError_t cudaMalloc(void** address, size_t bytes) {
  return allocate(Place::kDevice, address, bytes);
}

cudaError_t cudaFree(void* address) {
  return release(Place::kDevice, address);
}

cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned) {
  return allocate(Place::kPinned, address, bytes);
}

cudaError_t cudaFreeHost(void* address) {
  return release(Place::kPinned, address);
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = world().bytes_left();
  *total = world().options.memory_bytes;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  size_t offset = 0;
  const Block* const block = world().find_block(address, offset);
  *attributes = {};
  attributes->type = cudaMemoryTypeUnregistered;
  const bool is_mapped = block == nullptr && find_mapped(address);
  if (block == nullptr && !is_mapped) return cudaSuccess;
  const bool is_device = is_mapped || block->place == Place::kDevice;
  attributes->type = is_device ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
  attributes->devicePointer = const_cast<void*>(address);
  if (!is_device) attributes->hostPointer = const_cast<void*>(address);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  if (const cudaError_t refused = refuse_pageable(stream, to, from); refused != cudaSuccess)
    return refused;
  return enqueue(stream, [=] { ::memmove(to, from, bytes); });
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return at_once([=] { ::memmove(to, from, bytes); });
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind, cudaStream_t stream) {
  if (const cudaError_t refused = refuse_pageable(stream, to, from); refused != cudaSuccess)
    return refused;
  return enqueue(stream, [=] {
    for (size_t row = 0; row < height; ++row)
      ::memmove(static_cast<char*>(to) + row * to_pitch,
                static_cast<const char*>(from) + row * from_pitch, width);
  });
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return enqueue(stream, [=] { ::memset(to, value, bytes); });
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return at_once([=] { ::memset(to, value, bytes); });
}

}  // namespace effect
}  // namespace djinn::fake_runtime
