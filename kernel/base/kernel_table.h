// SPDX-License-Identifier: Apache-2.0

// KernelTable: what a host's processors and memory give products with matrices of weights, for
// people: our own kernels, which compute them in fast numerics, beside the library's (MKL, oneDNN).
//
//   product    of one dtype, and of one way in which the weights lie; of many rows, a prompt's, or
//              an encoder's
//
// It decides nothing: what a row gets must depend on no measurement. A host measures it once, and
// all its workers are given the same one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernel/base/result.h"

namespace djinn {

inline constexpr std::array<std::string_view, 3> kKernelDtypeNames{"float32", "bfloat16",
                                                                   "float16"};
inline constexpr size_t kKernelDtypes = kKernelDtypeNames.size();
// How the weights lie: the inputs of an output side by side, or the outputs of an input.
inline constexpr std::array<std::string_view, 2> kWeightLayoutNames{"[N, K]", "[K, N]"};
inline constexpr size_t kKernelProducts = kKernelDtypes * kWeightLayoutNames.size();

// dtype: an index of kKernelDtypeNames. Of the products of a table.
[[nodiscard]] constexpr size_t product_index(size_t dtype, bool inputs_dense) {
  return dtype * kWeightLayoutNames.size() + (inputs_dense ? 0 : 1);
}

struct ProductKernels {
  uint32_t own_mflops = 0;  // 10^6 operations a second, of all threads; 0: not measured
  uint32_t library_mflops = 0;
  friend bool operator==(const ProductKernels&, const ProductKernels&) = default;
};

struct KernelTable {
  // What all threads read of memory, 10^6 bytes a second, in a plain sum; 0: not measured.
  uint32_t read_mbs = 0;
  // What our own kernels read of weights in products of one row.
  std::array<uint32_t, kKernelDtypes> row_mbs{};
  std::array<ProductKernels, kKernelProducts> products{};
  friend bool operator==(const KernelTable&, const KernelTable&) = default;
};

// One line of numbers, which kernel_table_of() reads.
[[nodiscard]] std::string text_of(const KernelTable& table);
// Error: kMalformed.
[[nodiscard]] Result<KernelTable> kernel_table_of(std::string_view text);

}  // namespace djinn
