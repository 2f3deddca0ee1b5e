// SPDX-License-Identifier: Apache-2.0
#include "bench/cuda/gpu.h"

#include <algorithm>
#include <array>
#include <stdexcept>

#include "bench/cuda/kernels.h"

namespace djinn::bench::cuda {
namespace {

constexpr uint64_t kChunkBytes = 16u << 20;
constexpr uint64_t kGiB = 1u << 30;

uint32_t word_of(uint64_t index, uint32_t seed) {
  return static_cast<uint32_t>(index * 2'654'435'761u) ^ seed;
}

driver::DriverApi loaded() {
  auto api = driver::load_driver();
  if (!api) throw std::runtime_error(api.error().message);
  return *api;
}

}  // namespace

Gpu::Gpu() : api_(loaded()) {
  must("cuInit", api_.init(0));
  must("cuDeviceGet", api_.device_get(&device_, 0));
}

void Gpu::must(const char* call, driver::Code code) const {
  if (code != driver::Code::kSuccess)
    throw std::runtime_error(std::string(call) + ": " + driver::describe(api_, code));
}

std::string Gpu::name() const {
  std::array<char, 100> name{};
  must("cuDeviceGetName",
       api_.device_get_name(name.data(), static_cast<int>(name.size()), device_));
  return name.data();
}

driver::AllocationProperties Gpu::properties() const {
  driver::AllocationProperties properties;
  properties.location.id = device_;
  return properties;
}

size_t Gpu::granularity() const {
  size_t bytes = 0;
  const driver::AllocationProperties wanted = properties();
  must("cuMemGetAllocationGranularity",
       api_.mem_get_allocation_granularity(&bytes, &wanted, driver::Granularity::kMinimum));
  return bytes;
}

void Gpu::make_context() {
  if (context_ == nullptr)
    must("cuDevicePrimaryCtxRetain", api_.primary_ctx_retain(&context_, device_));
  must("cuCtxSetCurrent", api_.ctx_set_current(context_));
}

void Gpu::release_context() {
  must("cuDevicePrimaryCtxRelease", api_.primary_ctx_release(device_));
  context_ = nullptr;
}

size_t Gpu::free_bytes() const {
  size_t free = 0;
  size_t total = 0;
  must("cuMemGetInfo", api_.mem_get_info(&free, &total));
  return free;
}

size_t Gpu::create(uint64_t bytes) {
  Held held{.bytes = bytes};
  const driver::AllocationProperties wanted = properties();
  must("cuMemCreate", api_.mem_create(&held.allocation, bytes, &wanted, 0));
  held_.emplace(next_, held);
  return next_++;
}

size_t Gpu::import(int fd, uint64_t bytes) {
  Held held{.bytes = bytes};
  void* const handle = reinterpret_cast<void*>(static_cast<intptr_t>(fd));
  must("cuMemImportFromShareableHandle",
       api_.mem_import(&held.allocation, handle, driver::HandleType::kPosixFileDescriptor));
  held_.emplace(next_, held);
  return next_++;
}

Fd Gpu::export_allocation(size_t index) const {
  int fd = -1;
  must("cuMemExportToShareableHandle",
       api_.mem_export(&fd, held_.at(index).allocation, driver::HandleType::kPosixFileDescriptor,
                       0));
  return Fd(fd);
}

void Gpu::map(size_t index, driver::AccessFlags access) {
  Held& held = held_.at(index);
  driver::DevicePtr address = 0;
  must("cuMemAddressReserve", api_.mem_address_reserve(&address, held.bytes, 0, 0, 0));
  if (const driver::Code code = api_.mem_map(address, held.bytes, 0, held.allocation, 0);
      code != driver::Code::kSuccess) {
    (void)api_.mem_address_free(address, held.bytes);
    must("cuMemMap", code);
  }
  held.address = address;
  const driver::AccessDescription description{properties().location, access};
  must("cuMemSetAccess", api_.mem_set_access(address, held.bytes, &description, 1));
}

void Gpu::unmap(size_t index) {
  Held& held = held_.at(index);
  if (held.address == 0) return;
  must("cuMemUnmap", api_.mem_unmap(held.address, held.bytes));
  must("cuMemAddressFree", api_.mem_address_free(held.address, held.bytes));
  held.address = 0;
}

void Gpu::drop(size_t index) {
  unmap(index);
  must("cuMemRelease", api_.mem_release(held_.at(index).allocation));
  held_.erase(index);
}

void Gpu::fill(size_t index, uint32_t seed) {
  const Held& held = held_.at(index);
  std::vector<uint32_t> words(std::min(held.bytes, kChunkBytes) / sizeof(uint32_t));
  for (uint64_t at = 0; at < held.bytes; at += words.size() * sizeof(uint32_t)) {
    for (size_t i = 0; i < words.size(); ++i) words[i] = word_of(at / sizeof(uint32_t) + i, seed);
    const uint64_t bytes = std::min(held.bytes - at, words.size() * sizeof(uint32_t));
    must("cuMemcpyHtoD", api_.memcpy_htod(held.address + at, words.data(), bytes));
  }
}

template <typename F>
uint64_t Gpu::count_words(size_t index, F differs) const {
  const Held& held = held_.at(index);
  std::vector<uint32_t> words(std::min(held.bytes, kChunkBytes) / sizeof(uint32_t));
  uint64_t count = 0;
  for (uint64_t at = 0; at < held.bytes; at += words.size() * sizeof(uint32_t)) {
    const uint64_t bytes = std::min(held.bytes - at, words.size() * sizeof(uint32_t));
    must("cuMemcpyDtoH", api_.memcpy_dtoh(words.data(), held.address + at, bytes));
    for (size_t i = 0; i < bytes / sizeof(uint32_t); ++i)
      if (differs(at / sizeof(uint32_t) + i, words[i])) ++count;
  }
  return count;
}

uint64_t Gpu::words_unlike(size_t index, uint32_t seed) const {
  return count_words(index, [seed](uint64_t i, uint32_t word) { return word != word_of(i, seed); });
}

uint64_t Gpu::words_not_zero(size_t index) const {
  return count_words(index, [](uint64_t, uint32_t word) { return word != 0; });
}

size_t Gpu::write_all(bool keep) {
  const size_t gib = free_bytes() / 10 * 9 / kGiB;
  std::vector<size_t> written;
  for (size_t i = 0; i < gib; ++i) {
    written.push_back(create(kGiB));
    map(written.back(), driver::AccessFlags::kReadWrite);
    must("cuMemsetD8", api_.memset_d8(address(written.back()), 0xa5, kGiB));
  }
  wait();
  if (!keep)
    for (const size_t index : written) drop(index);
  return gib;
}

uint64_t Gpu::words_not_zero_in_new(size_t gib) {
  std::vector<size_t> made;
  uint64_t count = 0;
  // All are held at once, so that no two are the same memory.
  for (size_t i = 0; i < gib; ++i) {
    made.push_back(create(kGiB));
    map(made.back(), driver::AccessFlags::kReadWrite);
    count += words_not_zero(made.back());
  }
  for (const size_t index : made) drop(index);
  return count;
}

uint32_t Gpu::sample(size_t index) const {
  const Held& held = held_.at(index);
  uint32_t word = 0;
  must("cuMemcpyDtoH", api_.memcpy_dtoh(&word, held.address + held.bytes / 2, sizeof(word)));
  return word;
}

void Gpu::load_kernels() {
  if (scribble_ != nullptr) return;
  driver::Module module = nullptr;
  must("cuModuleLoadData", api_.module_load_data(&module, kKernels));
  must("cuModuleGetFunction", api_.module_get_function(&scribble_, module, "scribble"));
}

void Gpu::scribble(driver::DevicePtr address, uint64_t words, uint64_t rounds) {
  load_kernels();
  void* arguments[] = {&address, &words, &rounds};
  must("cuLaunchKernel",
       api_.launch_kernel(scribble_, 64, 1, 1, 256, 1, 1, 0, nullptr, arguments, nullptr));
}

void Gpu::wait() const {
  must("cuCtxSynchronize", api_.ctx_synchronize());
}

}  // namespace djinn::bench::cuda
