// SPDX-License-Identifier: Apache-2.0

// Gpu: the first CUDA device as a probe uses it: allocations by their number, mapped in full or
// not at all. What the driver refuses is thrown in its words: a probe asks for much that may be
// refused, and the refusal is what it wanted to know.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernel/base/fd.h"
#include "kernel/pal/cuda/driver_api.h"

namespace djinn::bench::cuda {

namespace driver = pal::cuda;

class Gpu {
 public:
  // Loads the driver and initialises it; makes no context. Throws std::runtime_error without one.
  Gpu();

  [[nodiscard]] const driver::DriverApi& api() const { return api_; }
  [[nodiscard]] std::string name() const;
  [[nodiscard]] size_t granularity() const;
  // Throws std::runtime_error unless it is kSuccess.
  void must(const char* call, driver::Code code) const;

  // Retains the device's primary context and makes it current.
  void make_context();
  void release_context();
  [[nodiscard]] size_t free_bytes() const;

  size_t create(uint64_t bytes);
  // Takes the descriptor's allocation; the descriptor stays the caller's.
  size_t import(int fd, uint64_t bytes);
  [[nodiscard]] Fd export_allocation(size_t index) const;
  // Maps the whole allocation at an address of its own.
  void map(size_t index, driver::AccessFlags access);
  void unmap(size_t index);
  // Unmaps and releases it.
  void drop(size_t index);
  [[nodiscard]] driver::DevicePtr address(size_t index) const { return held_.at(index).address; }

  // Fills the mapped allocation with words that follow from the seed, and counts those that differ.
  void fill(size_t index, uint32_t seed);
  [[nodiscard]] uint64_t words_unlike(size_t index, uint32_t seed) const;
  [[nodiscard]] uint64_t words_not_zero(size_t index) const;
  // Writes to nine tenths of what is free, a GiB an allocation; gives it back unless it is to be
  // kept. Gives the number of GiB.
  size_t write_all(bool keep);
  // How many words of as many new allocations of a GiB are not zero.
  [[nodiscard]] uint64_t words_not_zero_in_new(size_t gib);
  // One word in the middle of it.
  [[nodiscard]] uint32_t sample(size_t index) const;

  // Loads the kernels of kernels.h, if they are not.
  void load_kernels();
  // Writes the round's number to each of the words, for so many rounds; 0: for ever. Does not wait.
  void scribble(driver::DevicePtr address, uint64_t words, uint64_t rounds);
  void wait() const;

  [[nodiscard]] driver::AllocationProperties properties() const;

 private:
  struct Held {
    driver::Allocation allocation = 0;
    uint64_t bytes = 0;
    driver::DevicePtr address = 0;  // 0: not mapped
  };
  template <typename F>
  uint64_t count_words(size_t index, F differs) const;

  driver::DriverApi api_;
  driver::Device device_ = 0;
  driver::Context context_ = nullptr;
  driver::Function scribble_ = nullptr;
  std::map<size_t, Held> held_;
  size_t next_ = 0;
};

}  // namespace djinn::bench::cuda
