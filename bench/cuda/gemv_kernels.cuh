// SPDX-License-Identifier: Apache-2.0
//
// Products of one to eight rows with up to three bf16 weights, as a decode step needs them; an RMS
// norm of the rows may be part of it. Two kernels with the same arguments:
//
//   gemv_fma   a warp takes kR rows of a weight at a time, and kU × 16 bytes of each a turn
//   gemv_mma   a block takes 16 rows of a weight at a time, its warps share their length, and the
//              tensor cores multiply: for several rows of x the other one is short of arithmetic
//
// invariant: the first weights are under way before the kernel waits for the one before it, for
//            they do not depend on it, and x does
// invariant: sums are fp32; x that is normed is rounded to bf16 once
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace gemv {

inline constexpr int kInputsMax = 8;
inline constexpr int kWeightsMax = 3;
inline constexpr int kThreadsMax = 512;
inline constexpr int kVector = 8;  // bf16 in 16 bytes
inline constexpr int kTile = 16;   // rows of a weight that a block of gemv_mma takes
inline constexpr int kStep = 4;    // vectors of a row that its warp takes with one load
inline constexpr float kEpsilon = 1e-6f;

/// Where the rows of x are read from: memory, by way of the L1, or shared memory, plain or normed.
enum class Source { kDirect, kStaged, kNormed };

/// Weights are [rows, 8 × vectors], x is [inputs, 8 × vectors], y is [inputs, total].
struct Problem {
  const uint4* weights[kWeightsMax];
  int rows[kWeightsMax];  // multiples of kTile
  int total;              // of all weights
  int vectors;            // in a row, a multiple of kStep
  int inputs;
  const uint4* x;
  const uint4* norm;  // [8 × vectors]
  __nv_bfloat16* y;
  float* precise;  // like y, before it is rounded; or null
};

/// Vectors from one staged row of x to the next: 64 bytes more, so that rows lie in other banks.
__host__ __device__ inline int pitch_of(int vectors) {
  return vectors + kStep;
}

__device__ inline uint4 load_streaming(const uint4* address) {
  uint4 value;
  asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address));
  return value;
}

__device__ inline void let_the_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ inline void wait_for_the_one_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// sum[16 × 8] += a[16 × 16] × b[16 × 8], bf16, spread over a warp as PTX' m16n8k16 says.
__device__ inline void mma(float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                           uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#endif
}

__device__ inline void unpack(uint4 vector, float (&values)[kVector]) {
  const uint32_t pairs[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[2 * i] = __uint_as_float(pairs[i] << 16);
    values[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
  }
}

__device__ inline uint32_t pack(float low, float high) {
  const uint32_t bits_of_low = __bfloat16_as_ushort(__float2bfloat16_rn(low));
  const uint32_t bits_of_high = __bfloat16_as_ushort(__float2bfloat16_rn(high));
  return bits_of_low | bits_of_high << 16;
}

__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}

__device__ inline const uint4* row_of(const Problem& problem, int row) {
  const uint4* weight = problem.weights[0];
#pragma unroll
  for (int i = 0; i + 1 < kWeightsMax; ++i) {
    if (row < problem.rows[i]) break;
    row -= problem.rows[i];
    weight = problem.weights[i + 1];
  }
  return weight + static_cast<size_t>(row) * problem.vectors;
}

__device__ inline void store(const Problem& problem, int input, int row, float value) {
  const size_t at = static_cast<size_t>(input) * problem.total + row;
  problem.y[at] = __float2bfloat16_rn(value);
  if (problem.precise != nullptr) problem.precise[at] = value;
}

/// 1 / sqrt(mean of squares) of each row of x, in each thread of the block.
__device__ inline void scales_of(const Problem& problem, float (&scales)[kInputsMax]) {
  __shared__ float sums[kThreadsMax / 32][kInputsMax];
#pragma unroll
  for (int m = 0; m < kInputsMax; ++m) {
    float sum = 0;
    if (m < problem.inputs) {
      for (int v = threadIdx.x; v < problem.vectors; v += blockDim.x) {
        float values[kVector];
        unpack(problem.x[m * problem.vectors + v], values);
        for (int i = 0; i < kVector; ++i) sum += values[i] * values[i];
      }
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32][m] = sum;
  }
  __syncthreads();
#pragma unroll
  for (int m = 0; m < kInputsMax; ++m) {
    float sum = 0;
    for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) sum += sums[warp][m];
    scales[m] = rsqrtf(sum / (problem.vectors * kVector) + kEpsilon);
  }
}

__device__ inline uint4 normed(uint4 x, uint4 norm, float scale) {
  float values[kVector];
  float factors[kVector];
  unpack(x, values);
  unpack(norm, factors);
  for (int i = 0; i < kVector; ++i) values[i] *= scale * factors[i];
  return make_uint4(pack(values[0], values[1]), pack(values[2], values[3]),
                    pack(values[4], values[5]), pack(values[6], values[7]));
}

/// Waits for the kernel before, and brings x to where the kernel reads it.
template <Source kSource>
__device__ void prepare_x(const Problem& problem, uint4* staged) {
  wait_for_the_one_before();
  if constexpr (kSource != Source::kDirect) {
    float scales[kInputsMax];
    if constexpr (kSource == Source::kNormed) scales_of(problem, scales);
#pragma unroll
    for (int m = 0; m < kInputsMax; ++m) {
      if (m >= problem.inputs) break;
      for (int v = threadIdx.x; v < problem.vectors; v += blockDim.x) {
        uint4 x = problem.x[m * problem.vectors + v];
        if constexpr (kSource == Source::kNormed) x = normed(x, problem.norm[v], scales[m]);
        staged[m * pitch_of(problem.vectors) + v] = x;
      }
    }
    __syncthreads();
  }
}

template <int kM, int kR, int kU>
struct Fma {
  uint4 loaded[kR][kU];
  float sums[kR][kM];

  __device__ void clear() {
    for (int r = 0; r < kR; ++r) {
      for (int m = 0; m < kM; ++m) sums[r][m] = 0;
    }
  }

  __device__ void load(const uint4* row, int vectors, int first) {
#pragma unroll
    for (int u = 0; u < kU; ++u) {
      const int at = first + 32 * u;
#pragma unroll
      for (int r = 0; r < kR; ++r) {
        loaded[r][u] = make_uint4(0, 0, 0, 0);
        if (at < vectors)
          loaded[r][u] = load_streaming(row + static_cast<size_t>(r) * vectors + at);
      }
    }
  }

  __device__ void multiply(const uint4* x, int pitch, int vectors, int first) {
#pragma unroll
    for (int u = 0; u < kU; ++u) {
      const int at = min(first + 32 * u, vectors - 1);  // beyond it the weights are zero
      float weights[kR][kVector];
#pragma unroll
      for (int r = 0; r < kR; ++r) unpack(loaded[r][u], weights[r]);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        float values[kVector];
        unpack(x[m * pitch + at], values);
#pragma unroll
        for (int r = 0; r < kR; ++r) {
#pragma unroll
          for (int i = 0; i < kVector; ++i) sums[r][m] += weights[r][i] * values[i];
        }
      }
    }
  }

  __device__ void finish(const Problem& problem, int row) {
#pragma unroll
    for (int r = 0; r < kR; ++r) {
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        const float sum = warp_sum(sums[r][m]);
        if (threadIdx.x % 32 == (r * kM + m) % 32) store(problem, m, row + r, sum);
      }
    }
    clear();
  }
};

/// problem.inputs is kM. Eight rows of sums need the registers of half as many threads.
template <int kM, int kR, int kU, Source kSource>
__global__ void __launch_bounds__(kM == kInputsMax ? kThreadsMax / 2 : kThreadsMax)
    gemv_fma(Problem problem) {
  extern __shared__ uint4 staged[];
  const int lane = threadIdx.x % 32;
  const int vectors = problem.vectors;
  const int groups = problem.total / kR;
  const int stride = gridDim.x * (blockDim.x / 32);
  int group = (threadIdx.x / 32) * gridDim.x + blockIdx.x;
  int first = lane;
  Fma<kM, kR, kU> work;
  work.clear();
  let_the_next_begin();
  if (group < groups) work.load(row_of(problem, group * kR), vectors, first);
  prepare_x<kSource>(problem, staged);
  const uint4* const x = kSource == Source::kDirect ? problem.x : staged;
  const int pitch = kSource == Source::kDirect ? vectors : pitch_of(vectors);
  while (group < groups) {
    work.multiply(x, pitch, vectors, first);
    const int row = group * kR;
    first += 32 * kU;
    const bool ends = first - lane >= vectors;
    if (ends) {
      first = lane;
      group += stride;
    }
    if (group < groups) work.load(row_of(problem, group * kR), vectors, first);
    if (ends) work.finish(problem, row);
  }
}

/// The block's sums of a tile, of all its warps, added and stored.
__device__ inline void finish_tile(const Problem& problem, int row, const float (&sum)[4]) {
  __shared__ float sums[kThreadsMax / 32][kTile][kInputsMax];
  const int warp = threadIdx.x / 32;
  const int in_tile = threadIdx.x % 32 / 4;
  const int input = threadIdx.x % 4 * 2;
  sums[warp][in_tile][input] = sum[0];
  sums[warp][in_tile][input + 1] = sum[1];
  sums[warp][in_tile + 8][input] = sum[2];
  sums[warp][in_tile + 8][input + 1] = sum[3];
  __syncthreads();
  for (int i = threadIdx.x; i < kTile * kInputsMax; i += blockDim.x) {
    const int m = i / kTile;
    if (m >= problem.inputs) break;
    float total = 0;
    for (unsigned w = 0; w < blockDim.x / 32; ++w) total += sums[w][i % kTile][m];
    store(problem, m, row + i % kTile, total);
  }
  __syncthreads();
}

/// A lane has 8 elements of two rows of the weight, and of one row of x, at the same place: which
/// of them the tensor core takes for its first, second ... does not matter, if it is the same.
template <int kU, Source kSource>
__global__ void __launch_bounds__(kThreadsMax) gemv_mma(Problem problem) {
  extern __shared__ uint4 staged[];
  const int lane = threadIdx.x % 32;
  const int vectors = problem.vectors;
  const int tiles = problem.total / kTile;
  const int stride = kStep * kU * (blockDim.x / 32);  // vectors that the block takes a turn
  const int begin = kStep * kU * (threadIdx.x / 32) + lane % 4;
  const size_t half = static_cast<size_t>(8) * vectors;
  uint4 upper[kU];
  uint4 lower[kU];
  const auto load = [&](int tile, int first) {
    const uint4* const row = row_of(problem, tile * kTile) + (lane / 4) * vectors;
#pragma unroll
    for (int u = 0; u < kU; ++u) {
      const int at = first + kStep * u;
      upper[u] = lower[u] = make_uint4(0, 0, 0, 0);
      if (at < vectors) upper[u] = load_streaming(row + at);
      if (at < vectors) lower[u] = load_streaming(row + half + at);
    }
  };
  int tile = blockIdx.x;
  int first = begin;
  let_the_next_begin();
  if (tile < tiles) load(tile, first);
  prepare_x<kSource>(problem, staged);
  const uint4* const all_x = kSource == Source::kDirect ? problem.x : staged;
  const int pitch = kSource == Source::kDirect ? vectors : pitch_of(vectors);
  const bool has_input = lane / 4 < problem.inputs;
  const uint4* const x = all_x + (has_input ? lane / 4 * pitch : 0);
  float sum[4] = {0, 0, 0, 0};
  while (tile < tiles) {
#pragma unroll
    for (int u = 0; u < kU; ++u) {
      const int at = min(first + kStep * u, vectors - 1);
      const uint4 b = has_input ? x[at] : make_uint4(0, 0, 0, 0);
      mma(sum, upper[u].x, lower[u].x, upper[u].y, lower[u].y, b.x, b.y);
      mma(sum, upper[u].z, lower[u].z, upper[u].w, lower[u].w, b.z, b.w);
    }
    const int row = tile * kTile;
    first += stride;
    const bool ends = first - begin >= vectors;
    if (ends) {
      first = begin;
      tile += gridDim.x;
    }
    if (tile < tiles) load(tile, first);
    if (ends) {
      finish_tile(problem, row, sum);
      sum[0] = sum[1] = sum[2] = sum[3] = 0;
    }
  }
}

}  // namespace gemv
