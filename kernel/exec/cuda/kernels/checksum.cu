// SPDX-License-Identifier: Apache-2.0

// The kernel of ChecksumParts (checksum.h): djinn_checksum. A thread goes over every so-manieth
// vector by Horner's rule, in numbers that stay below 2^62; one reading of the memory, by 16 bytes
// a lane and past the caches, serves both keys.
#include "kernel/exec/cuda/kernels/checksum.h"
#include "kernel/exec/cuda/kernels/device.cuh"

namespace djinn::cuda {
namespace {

constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;
constexpr int kChecksumWarps = kChecksumThreads / kWarp;
using Wide = unsigned __int128;

// The same modulo kPrime: of a number below 2^122 one below 2^62, of one below 2^64 one below
// 2^61 + 8.
__device__ inline uint64_t reduced(Wide value) {
  return (static_cast<uint64_t>(value) & kPrime) + static_cast<uint64_t>(value >> 61);
}
__device__ inline uint64_t folded(uint64_t value) {
  return (value & kPrime) + (value >> 61);
}

// Of factors below 2^61 + 8, one below that.
__device__ inline uint64_t product(uint64_t a, uint64_t b) {
  return folded(reduced(Wide{a} * b));
}

__device__ inline uint64_t power(uint64_t base, int64_t exponent) {
  uint64_t result = 1;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 != 0) result = product(result, base);
    base = product(base, base);
  }
  return result;
}

__device__ inline uint64_t weight_of(uint4 vector, const ChecksumPowers& powers) {
  return reduced(Wide{powers.of_word[3]} * vector.x + Wide{powers.of_word[2]} * vector.y +
                 Wide{powers.of_word[1]} * vector.z + vector.w);
}

// In the first thread of the block.
__device__ inline uint64_t block_total(uint64_t value, uint64_t* of_warps) {
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    const uint64_t other =
        __shfl_xor_sync(kAllLanes, static_cast<unsigned long long>(value), lanes);
    value = folded(value + other);
  }
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  uint64_t total = 0;
  for (int warp = 0; warp < kChecksumWarps; ++warp) total = folded(total + of_warps[warp]);
  return total;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kChecksumThreads)
    djinn_checksum(const __grid_constant__ ChecksumParts call) {
  const uint4* const memory = static_cast<const uint4*>(call.memory);
  const int64_t stride = int64_t{gridDim.x} * kChecksumThreads;
  const int64_t begin = int64_t{blockIdx.x} * kChecksumThreads + threadIdx.x;
  let_the_next_begin();
  wait_for_the_one_before();
  uint64_t sums[kChecksumKeys] = {};
#pragma unroll 4
  for (int64_t at = begin; at < call.vectors; at += stride) {
    const uint4 vector = __ldcs(memory + at);
#pragma unroll
    for (int i = 0; i < kChecksumKeys; ++i) {
      const uint64_t moved = product(sums[i], call.powers[i].of_stride);
      sums[i] = folded(moved + weight_of(vector, call.powers[i]));
    }
  }
  // The vectors behind this thread's last one.
  const int64_t behind = begin < call.vectors ? (call.vectors - 1 - begin) % stride : 0;
  uint64_t* const of_warps = reinterpret_cast<uint64_t*>(dynamic_shared);
#pragma unroll
  for (int i = 0; i < kChecksumKeys; ++i) {
    const uint64_t mine = product(sums[i], power(call.powers[i].of_vector, behind));
    const uint64_t total = block_total(mine, of_warps + i * kChecksumWarps);
    if (threadIdx.x == 0) call.parts[int64_t{blockIdx.x} * kChecksumKeys + i] = total;
  }
}

}  // namespace djinn::cuda
