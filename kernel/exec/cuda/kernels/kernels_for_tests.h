// SPDX-License-Identifier: Apache-2.0

// What the tests of kernels share: arrays of elements as a device has them, and launches on the
// emulator, in both of its orders.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "kernel/base/half.h"
#include "kernel/exec/cuda/kernels/launches.h"
#include "tests/fake_cuda/emulator/emulator.h"

namespace djinn::cuda {

inline constexpr Element kAllElements[] = {Element::kFloat32, Element::kBFloat16,
                                           Element::kFloat16};
// Those of an A100, an H200, an L40S, a B200 and an RTX PRO 6000, and of none.
inline constexpr uint32_t kMultiprocessors[] = {108, 132, 142, 148, 188, 1};
inline constexpr emulator::Order kOrders[] = {emulator::Order::kAscending,
                                              emulator::Order::kDescending};

inline std::string name_of(Element element) {
  static constexpr const char* kNames[kElements] = {"float32", "bfloat16", "float16"};
  return kNames[static_cast<size_t>(element)];
}

// Half of how far apart a number and its neighbour are, of its size, at most.
inline double ulp_of(Element element) {
  if (element == Element::kFloat32) return std::ldexp(1.0, -24);
  return std::ldexp(1.0, element == Element::kBFloat16 ? -8 : -11) * 1.001;
}

// Rows of elements at a multiple of 16 bytes, each NaN until it is written, and so is what lies
// between them.
class Array {
 public:
  Array(Element element, int64_t rows, int64_t columns, int64_t gap = 16)
      : element_(element),
        rows_(rows),
        columns_(columns),
        stride_(columns + gap),
        bytes_(static_cast<size_t>(rows * stride_ * bytes_of(element)), std::byte{0xff}) {}

  void fill(std::mt19937& random, float scale = 1) {
    std::normal_distribution<float> normal(0, scale);
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < columns_; ++c) set(r, c, normal(random));
    }
  }
  void set(int64_t r, int64_t c, float value) {
    std::byte* const to = at(r, c);
    switch (element_) {
      case Element::kFloat32:
        return put(to, value);
      case Element::kBFloat16:
        return put(to, static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
      case Element::kFloat16:
        return put(to, static_cast<_Float16>(value));
    }
  }
  [[nodiscard]] double get(int64_t r, int64_t c) const {
    const std::byte* const from = at(r, c);
    switch (element_) {
      case Element::kFloat32:
        return got<float>(from);
      case Element::kBFloat16:
        return as_float(got<BFloat16>(from));
      case Element::kFloat16:
        return as_float(got<Half>(from));
    }
    return 0;
  }

  [[nodiscard]] int64_t stride() const { return stride_; }
  [[nodiscard]] int64_t rows() const { return rows_; }
  [[nodiscard]] int64_t columns() const { return columns_; }
  [[nodiscard]] Element element() const { return element_; }
  std::byte* at(int64_t r, int64_t c) {
    return bytes_.data() + static_cast<size_t>((r * stride() + c) * bytes_of(element_));
  }
  [[nodiscard]] const std::byte* at(int64_t r, int64_t c) const {
    return const_cast<Array*>(this)->at(r, c);
  }
  // Of a row, and of what lies between it and the next.
  [[nodiscard]] std::vector<std::byte> row(int64_t r) const {
    return {at(r, 0), at(r, 0) + stride() * bytes_of(element_)};
  }
  friend bool operator==(const Array& a, const Array& b) { return a.bytes_ == b.bytes_; }

 private:
  template <typename T>
  static void put(std::byte* to, T value) {
    std::memcpy(to, &value, sizeof value);
  }
  template <typename T>
  static T got(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }

  Element element_;
  int64_t rows_, columns_, stride_;
  std::vector<std::byte> bytes_;  // the allocator gives multiples of 16
};

// Runs the launch, whose kernel is found by its name, as a driver finds it in an image.
template <typename Call>
void emulate(const Launch& launch, const Call& call, emulator::Order order) {
  auto* const kernel = std::bit_cast<void (*)(Call)>(::dlsym(RTLD_DEFAULT, launch.kernel.c_str()));
  ASSERT_NE(kernel, nullptr) << "there is no kernel " << launch.kernel;
  const emulator::Launch emulated{
      {launch.grid_x, launch.grid_y, launch.grid_z}, {launch.threads}, launch.shared_bytes, order};
  const Status done = emulator::emulate(emulated, [&] { kernel(call); });
  ASSERT_TRUE(done.ok()) << launch.kernel << ": " << done.error().message;
}

template <typename Call, typename... Rest>
void launch(const Call& call, emulator::Order order, const Rest&... rest) {
  const Result<Launch> found = launch_of(call, rest...);
  ASSERT_TRUE(found.ok()) << found.error().message;
  emulate(*found, call, order);
}

}  // namespace djinn::cuda
