// SPDX-License-Identifier: Apache-2.0

// The kernels of an Attend (attend.h):
//
//   djinn_attend_ELEMENT_HEADS       a block for a split of the tokens that some heads of a row
//   see:
//                                    its queries, one, four or eight, share one key and value head
//   djinn_attend_combine_ELEMENT     a block for each head of each row
//
// In a split a thread has a token: it reads the token's key, all of it, and multiplies it with all
// queries. Then threads have 16 bytes of values each, side by side, and every so-manieth token. A
// grid is launched for the longest row that may be; blocks without tokens end at once.
#include "kernel/exec/cuda/kernels/attend.h"
#include "kernel/exec/cuda/kernels/device.cuh"

namespace djinn::cuda {
namespace {

constexpr int kAttendWarps = kAttendThreads / kWarp;

// What a row sees.
struct Seen {
  int64_t first;
  int64_t count;
};

__device__ inline Seen seen_by(const Attend& call, int64_t row) {
  const int64_t first = call.firsts == nullptr ? 0 : call.firsts[row];
  const int64_t count = int64_t{call.lengths[row]} + call.appended - first;
  return {first, count > 0 ? count : 0};
}

__device__ inline int64_t splits_of(int64_t tokens) {
  return (tokens + kSplitTokens - 1) / kSplitTokens;
}

__device__ inline float* part_of(const Attend& call, int64_t row, int64_t head, int64_t split) {
  return call.parts + ((row * call.heads + head) * call.splits + split) * (call.width + kPartExtra);
}

// Greatest of the block and, by `sums`, sum; in each thread. Both have a place for each warp.
__device__ inline float block_max(float value, float* places) {
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, lanes));
  }
  if (threadIdx.x % kWarp == 0) places[threadIdx.x / kWarp] = value;
  __syncthreads();
  float greatest = places[0];
#pragma unroll
  for (int warp = 1; warp < kAttendWarps; ++warp) greatest = fmaxf(greatest, places[warp]);
  return greatest;
}

__device__ inline float attend_block_sum(float value, float* places) {
  const float of_warp = warp_sum(value);
  if (threadIdx.x % kWarp == 0) places[threadIdx.x / kWarp] = of_warp;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kAttendWarps; ++warp) sum += places[warp];
  return sum;
}

// The shared memory of a block of kHeads queries, which lie behind it, [kHeads, width].
template <int kHeads>
struct AttendShared {
  float weights[kHeads][kSplitTokens];  // scores, and what becomes of them
  float maxima[kHeads][kAttendWarps];
  float sums[kHeads][kAttendWarps];
  float values[kAttendThreads * kVectorBytes / 2];  // of a head, by threads
};

static_assert(sizeof(AttendShared<kHeadsAtOnce>) == attend_shared_bytes(kHeadsAtOnce, 0));
static_assert(attend_shared_bytes(kHeadsAtOnce, kHeadWidthMax) <= 48 * 1024);

template <typename T, int kHeads>
class Split {
 public:
  __device__ Split(const Attend& call, int64_t row, int32_t first_head)
      : call_(call),
        row_(row),
        first_head_(first_head),
        shared_(*reinterpret_cast<AttendShared<kHeads>*>(dynamic_shared)),
        queries_(reinterpret_cast<float*>(&shared_ + 1)) {}

  // Heads beyond the group's compute the last one again.
  __device__ void read_queries(int32_t heads) {
    const T* const all = static_cast<const T*>(call_.query) + row_ * call_.query_stride;
    for (int32_t i = threadIdx.x; i < kHeads * call_.width; i += kAttendThreads) {
      const int32_t of = i / call_.width;
      const int32_t head = first_head_ + (of < heads ? of : heads - 1);
      queries_[i] = as_float(all[int64_t{head} * call_.width + i % call_.width]);
    }
    __syncthreads();
  }

  // Of the tokens [first, first + count) of the cache, of which there is one at least.
  __device__ void compute(const T* key, const T* value, int64_t first, int32_t count, int64_t split,
                          int32_t heads) {
    score(key + first * call_.width, first, count);
    weigh(split, heads);
    add_values(value + first * call_.width, count, split, heads);
  }

 private:
  static constexpr int kCount = kElementsAtOnce<T>;

  __device__ bool is_seen(int64_t token) const {
    return call_.masks == nullptr || call_.masks[row_][token * call_.mask_step] != 0;
  }

  __device__ void score(const T* key, int64_t first, int32_t count) {
    const int token = static_cast<int>(threadIdx.x);
    const bool is_scored = token < count && is_seen(first + token);
    float scores[kHeads] = {};
    if (is_scored) {
      const uint4* const vectors =
          reinterpret_cast<const uint4*>(key + int64_t{token} * call_.width);
      for (int32_t v = 0; v < call_.width / kCount; ++v) {
        float elements[kCount];
        unpack<T>(__ldcs(vectors + v), elements);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          const float* const query = queries_ + h * call_.width + v * kCount;
#pragma unroll
          for (int i = 0; i < kCount; ++i) scores[h] = fmaf(elements[i], query[i], scores[h]);
        }
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      shared_.weights[h][token] = is_scored ? scores[h] * call_.scale : -INFINITY;
    }
  }

  // Scores become weights, the greatest 1, and each head's greatest score and sum are stored. Each
  // thread looks at its own token's alone.
  __device__ void weigh(int64_t split, int32_t heads) {
    const int token = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const float score = shared_.weights[h][token];
      const float greatest = block_max(score, shared_.maxima[h]);
      const float weight = score == -INFINITY ? 0 : expf(score - greatest);
      shared_.weights[h][token] = weight;
      const float sum = attend_block_sum(weight, shared_.sums[h]);
      if (token == 0 && h < heads) {
        float* const part = part_of(call_, row_, first_head_ + h, split) + call_.width;
        part[0] = greatest;
        part[1] = sum;
      }
    }
  }

  // A thread has vector t % vectors of the tokens t / vectors, and every so-manieth of them; what
  // is left of the threads has nothing.
  __device__ void add_values(const T* value, int32_t count, int64_t split, int32_t heads) {
    const int thread = static_cast<int>(threadIdx.x);
    const int vectors = call_.width / kCount;
    const int step = kAttendThreads / vectors;
    const int vector = thread % vectors;
    const int begin = thread / vectors;
    float sums[kHeads][kCount] = {};
    for (int token = begin; begin < step && token < count; token += step) {
      const uint4* const row = reinterpret_cast<const uint4*>(value + int64_t{token} * call_.width);
      float elements[kCount];
      unpack<T>(__ldcs(row + vector), elements);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float weight = shared_.weights[h][token];
#pragma unroll
        for (int i = 0; i < kCount; ++i) sums[h][i] = fmaf(weight, elements[i], sums[h][i]);
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kCount; ++i) shared_.values[thread * kCount + i] = sums[h][i];
      __syncthreads();
      if (h < heads) store(part_of(call_, row_, first_head_ + h, split), step);
    }
    __syncthreads();
  }

  // Thread t's vectors of values lie at kCount * t, so the sums of one step lie side by side.
  __device__ void store(float* part, int step) {
    for (int32_t d = threadIdx.x; d < call_.width; d += kAttendThreads) {
      float sum = 0;
      for (int i = 0; i < step; ++i) sum += shared_.values[i * call_.width + d];
      part[d] = sum;
    }
  }

  const Attend& call_;
  int64_t row_;
  int32_t first_head_;
  AttendShared<kHeads>& shared_;
  float* queries_;
};

template <typename T, int kHeads>
__device__ void attend(const Attend& call) {
  const int32_t group = call.heads / call.cache_heads;
  const int32_t turns = (group + kHeads - 1) / kHeads;  // blocks that one key and value head has
  const int32_t cache_head = static_cast<int32_t>(blockIdx.y) / turns;
  const int32_t in_group = static_cast<int32_t>(blockIdx.y) % turns * kHeads;
  const int32_t heads = group - in_group < kHeads ? group - in_group : kHeads;
  const int64_t row = blockIdx.z;
  let_the_next_begin();
  wait_for_the_one_before();
  const Seen seen = seen_by(call, row);
  if (int64_t{blockIdx.x} * kSplitTokens >= seen.count) return;
  const CacheRow& cache = call.cache[row];
  const T* const key = static_cast<const T*>(cache.key) + cache_head * cache.head_stride;
  const T* const value = static_cast<const T*>(cache.value) + cache_head * cache.head_stride;
  Split<T, kHeads> work(call, row, cache_head * group + in_group);
  work.read_queries(heads);
  for (int64_t split = blockIdx.x; split < splits_of(seen.count); split += gridDim.x) {
    const int64_t begin = split * kSplitTokens;
    const int64_t left = seen.count - begin;
    const int32_t count = static_cast<int32_t>(left < kSplitTokens ? left : kSplitTokens);
    work.compute(key, value, seen.first + begin, count, split, heads);
  }
}

template <typename T>
__device__ void combine(const Attend& call) {
  const int64_t head = blockIdx.x;
  const int64_t row = blockIdx.y;
  let_the_next_begin();
  wait_for_the_one_before();
  const int64_t splits = splits_of(seen_by(call, row).count);
  T* const out = static_cast<T*>(call.out) + row * call.out_stride + head * call.width;
  float greatest = -INFINITY;
  for (int64_t split = 0; split < splits; ++split) {
    greatest = fmaxf(greatest, part_of(call, row, head, split)[call.width]);
  }
  for (int32_t d = threadIdx.x; d < call.width; d += kAttendThreads) {
    float sum = 0;
    float weights = 0;
    for (int64_t split = 0; split < splits; ++split) {
      const float* const part = part_of(call, row, head, split);
      const float factor = part[call.width] == -INFINITY ? 0 : expf(part[call.width] - greatest);
      sum = fmaf(part[d], factor, sum);
      weights = fmaf(part[call.width + 1], factor, weights);
    }
    out[d] = rounded<T>(greatest == -INFINITY ? 0 : sum / weights);
  }
}

}  // namespace

#define DJINN_ATTEND(element, T, heads)                                       \
  extern "C" __global__ void __launch_bounds__(kAttendThreads, 3)             \
      djinn_attend_##element##_##heads(const __grid_constant__ Attend call) { \
    attend<T, heads>(call);                                                   \
  }
#define DJINN_ATTEND_OF_HEADS(element, T)                                   \
  DJINN_ATTEND(element, T, 1)                                               \
  DJINN_ATTEND(element, T, 4)                                               \
  DJINN_ATTEND(element, T, 8)                                               \
  extern "C" __global__ void __launch_bounds__(kAttendThreads, 3)           \
      djinn_attend_combine_##element(const __grid_constant__ Attend call) { \
    combine<T>(call);                                                       \
  }

DJINN_ATTEND_OF_HEADS(float32, float)
DJINN_ATTEND_OF_HEADS(bfloat16, __nv_bfloat16)
DJINN_ATTEND_OF_HEADS(float16, __half)

}  // namespace djinn::cuda
