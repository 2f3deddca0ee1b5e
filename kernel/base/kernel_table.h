// SPDX-License-Identifier: Apache-2.0

// KernelTable: who computes which products with matrices of weights on this host, our own kernels
// or the library's (MKL, oneDNN), and what was measured of both.
//
//   product    of one dtype, and of one way in which the weights lie; of many rows, a prompt's or
//   an
//              encoder's. Few rows, a token step's, are always our own kernels': no library gives a
//              row the same bits beside others.
//   standard   the choice by vendor and level of instructions, where nothing was measured
//
// A choice decides bits. So a process has one table, which it was given, or measured before it
// computed anything, and all workers of a host are given the same one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernel/base/isa_level.h"
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
  bool takes_own = false;
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

// Without a measured rate.
[[nodiscard]] KernelTable standard_kernels(IsaLevel level, bool amd);

// Whether our own kernels are taken where the standard says so, and these were the rates: the
// standard holds unless the other is a quarter faster, so that who measures anew on a busy host
// hardly ever gets other bits.
[[nodiscard]] bool takes_own(uint32_t own_mflops, uint32_t library_mflops, bool standard);

// One line of numbers, which kernel_table_of() reads.
[[nodiscard]] std::string text_of(const KernelTable& table);
// Errors: kMalformed where the text is no table, or where a choice in it does not follow from the
// rates beside it and the standard.
[[nodiscard]] Result<KernelTable> kernel_table_of(std::string_view text,
                                                  const KernelTable& standard);

}  // namespace djinn
