// SPDX-License-Identifier: Apache-2.0

// What kernels find under this name where the host's compiler takes them: words of CUDA C++ that
// mean nothing here, the indices of a thread, vectors, and where threads meet. The declarations are
// ours, with the meaning of NVIDIA's "CUDA C++ Programming Guide".
#pragma once

#include <math.h>

#include <bit>
#include <cstdint>
#include <source_location>
#include <type_traits>

#include "tests/fake_cuda/emulator/emulator.h"

#define __global__
#define __device__
#define __host__
#define __shared__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct uint3 {
  unsigned x, y, z;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

// Of the running thread.
extern uint3 threadIdx, blockIdx, blockDim, gridDim;

inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}

inline void __syncthreads(std::source_location where = std::source_location::current()) {
  djinn::emulator::meet_block(where);
}

inline void __syncwarp(std::source_location where = std::source_location::current()) {
  djinn::emulator::meet_warp(where);
}

template <typename T>
T emulated_shuffle(unsigned mask, T value, unsigned lane, std::source_location where) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  if (mask != ~0u) djinn::emulator::fail("a shuffle without all lanes is not emulated", where);
  const uint64_t got = djinn::emulator::exchange(std::bit_cast<Bits>(value), lane % 32, where);
  return std::bit_cast<T>(static_cast<Bits>(got));
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, unsigned lanes,
                  std::source_location where = std::source_location::current()) {
  return emulated_shuffle(mask, value, threadIdx.x % 32 ^ lanes, where);
}

template <typename T>
T __shfl_sync(unsigned mask, T value, unsigned lane,
              std::source_location where = std::source_location::current()) {
  return emulated_shuffle(mask, value, lane, where);
}

// A load that the caches keep for nobody, of a whole vector.
template <typename T>
T __ldcs(const T* address, std::source_location where = std::source_location::current()) {
  if (std::bit_cast<uintptr_t>(address) % sizeof(T) != 0)
    djinn::emulator::fail("a vector is loaded from an address that is no multiple of its size",
                          where);
  return *address;
}

inline float __uint_as_float(unsigned bits) {
  return std::bit_cast<float>(bits);
}
inline unsigned __float_as_uint(float value) {
  return std::bit_cast<unsigned>(value);
}
inline float rsqrtf(float value) {
  return 1 / sqrtf(value);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}

// No other thread runs meanwhile.
template <typename T>
T atomicAdd(T* address, T value) {
  const T before = *address;
  *address = before + value;
  return before;
}
template <typename T>
T atomicOr(T* address, T value) {
  const T before = *address;
  *address = before | value;
  return before;
}
