// SPDX-License-Identifier: Apache-2.0

// The kernel of a Draw (draw.h): djinn_draw, a block for each row. It goes over the row's logits
// once for the likeliest; where one is drawn, once for its likelihoods and once for the token, and
// four times each for top-k and top-p: their ends are found a byte of the logits' order at a time.
#include "kernel/exec/cuda/kernels/device.cuh"
#include "kernel/exec/cuda/kernels/draw.h"

namespace djinn::cuda {
namespace {

constexpr int kDrawWarps = kDrawThreads / kWarp;
constexpr int kBins = 256;
constexpr unsigned kOrderOfInfinity = 0xff800000u;
constexpr unsigned kOrderOfMinusInfinity = 0x007fffffu;
constexpr unsigned kOrderOfNan = 0xffffffffu;
constexpr float kLikelihoodUnit = 1099511627776.0f;  // 2^40

using Count = unsigned long long;  // as atomicAdd() names it

// How much shared memory a block has: of tokens, a bit each.
struct DrawShared {
  Count bins[kBins];
  Count of_warps[kDrawWarps];
  unsigned seen[kDrawTokensMax / 32];  // to the last one of the vocabulary
};

static_assert(sizeof(DrawShared) == draw_shared_bytes(kDrawTokensMax));
static_assert(draw_shared_bytes(kDrawTokensMax) <= 48 * 1024);

// An integer that orders as the float does, with both zeros as one and NaN above all.
__device__ inline unsigned order_of(float value) {
  if (value != value) return kOrderOfNan;
  const unsigned bits = __float_as_uint(value + 0.0f);
  return bits ^ (bits >> 31 != 0 ? 0xffffffffu : 0x80000000u);
}

__device__ inline Count shuffled(Count value, int lanes) {
  return __shfl_xor_sync(kAllLanes, value, lanes);
}

// The upper 24 bits of the first word of the block at (seed, offset).
__device__ inline unsigned uniform_at(Count seed, Count offset) {
  unsigned c0 = static_cast<unsigned>(offset), c1 = static_cast<unsigned>(offset >> 32);
  unsigned c2 = 0, c3 = 0;
  unsigned key0 = static_cast<unsigned>(seed), key1 = static_cast<unsigned>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const Count a = Count{0xD2511F53u} * c0;
    const Count b = Count{0xCD9E8D57u} * c2;
    c0 = static_cast<unsigned>(b >> 32) ^ c1 ^ key0;
    c1 = static_cast<unsigned>(b);
    c2 = static_cast<unsigned>(a >> 32) ^ c3 ^ key1;
    c3 = static_cast<unsigned>(a);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c0 >> 8;
}

class Drawing {
 public:
  __device__ Drawing(const Draw& call, int64_t row)
      : call_(call),
        row_(row),
        rule_(call.rules[row]),
        length_(call.lengths[row]),
        logits_(call.logits + row * call.logits_stride),
        shared_(*reinterpret_cast<DrawShared*>(dynamic_shared)) {}

  __device__ int32_t token() {
    if (rule_.repetition_penalty != 1) mark_history();
    const Count best = likeliest();
    const unsigned order = static_cast<unsigned>(best >> 32);
    if (rule_.greedy != 0) return static_cast<int32_t>(~static_cast<unsigned>(best));
    if (order >= kOrderOfInfinity || order <= kOrderOfMinusInfinity) return kNoToken;
    greatest_ = logit(static_cast<int32_t>(~static_cast<unsigned>(best)));
    if (rule_.top_k != 0 && rule_.top_k < static_cast<unsigned>(call_.tokens)) keep_top_k();
    if (rule_.top_p < 1) keep_top_p();
    least_likely_ = rule_.min_p;
    return draw();
  }

 private:
  // Each token of the history once, whatever often it is there.
  __device__ void mark_history() {
    for (int32_t i = threadIdx.x; i < (call_.tokens + 31) / 32; i += kDrawThreads) {
      shared_.seen[i] = 0;
    }
    __syncthreads();
    const int32_t* const history = call_.history + row_ * call_.history_stride;
    for (int64_t i = threadIdx.x; i < length_; i += kDrawThreads) {
      const int32_t token = history[i];
      if (token >= 0 && token < call_.tokens) {
        atomicOr(&shared_.seen[token / 32], 1u << token % 32);
      }
    }
    __syncthreads();
  }

  __device__ float logit(int32_t token) const {
    float value = logits_[token];
    const float penalty = rule_.repetition_penalty;
    if (penalty != 1 && (shared_.seen[token / 32] >> token % 32 & 1) != 0) {
      value = value < 0 ? value * penalty : value / penalty;
    }
    return rule_.greedy != 0 || rule_.temperature == 1 ? value : value / rule_.temperature;
  }

  // 0 for one that top-k, top-p or min-p removed.
  __device__ Count likelihood(int32_t token) const {
    const float value = logit(token);
    if (order_of(value) < least_order_) return 0;
    const float likelihood = expf(value - greatest_);
    return likelihood < least_likely_ ? 0 : static_cast<Count>(likelihood * kLikelihoodUnit);
  }

  // The order of the greatest logit, and behind it the complement of its first token.
  __device__ Count likeliest() {
    Count best = 0;
    for (int32_t i = threadIdx.x; i < call_.tokens; i += kDrawThreads) {
      const Count at = Count{order_of(logit(i))} << 32 | ~static_cast<unsigned>(i);
      best = at > best ? at : best;
    }
#pragma unroll
    for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
      const Count other = shuffled(best, lanes);
      best = other > best ? other : best;
    }
    if (threadIdx.x % kWarp == 0) shared_.of_warps[threadIdx.x / kWarp] = best;
    __syncthreads();
    for (int warp = 0; warp < kDrawWarps; ++warp) {
      best = shared_.of_warps[warp] > best ? shared_.of_warps[warp] : best;
    }
    __syncthreads();
    return best;
  }

  __device__ Count block_sum(Count value) {
#pragma unroll
    for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) value += shuffled(value, lanes);
    if (threadIdx.x % kWarp == 0) shared_.of_warps[threadIdx.x / kWarp] = value;
    __syncthreads();
    Count sum = 0;
    for (int warp = 0; warp < kDrawWarps; ++warp) sum += shared_.of_warps[warp];
    __syncthreads();
    return sum;
  }

  // Adds what each token weighs to the bin of its order's next byte, of those whose upper bytes are
  // those of `prefix`.
  template <typename Weight>
  __device__ void fill_bins(unsigned prefix, int shift, Weight weight) {
    for (int32_t i = threadIdx.x; i < kBins; i += kDrawThreads) shared_.bins[i] = 0;
    __syncthreads();
    for (int32_t i = threadIdx.x; i < call_.tokens; i += kDrawThreads) {
      const unsigned order = order_of(logit(i));
      const bool is_in = shift == 24 || order >> (shift + 8) == prefix >> (shift + 8);
      const Count added = is_in ? weight(i) : 0;
      if (added != 0) atomicAdd(&shared_.bins[order >> shift & (kBins - 1)], added);
    }
    __syncthreads();
  }

  // The order of the top_k-th logit is the least that stays.
  __device__ void keep_top_k() {
    unsigned prefix = 0;
    Count wanted = rule_.top_k;
    for (int shift = 24; shift >= 0; shift -= 8) {
      fill_bins(prefix, shift, [](int32_t) { return Count{1}; });
      int bin = kBins - 1;
      while (bin > 0 && shared_.bins[bin] < wanted) wanted -= shared_.bins[bin--];
      prefix |= static_cast<unsigned>(bin) << shift;
      __syncthreads();
    }
    least_order_ = prefix;
  }

  // The least order that stays is the first, from below, up to which the sum is over 1 - top_p.
  __device__ void keep_top_p() {
    const Count total = total_likelihood();
    Count left =
        static_cast<Count>((1 - static_cast<double>(rule_.top_p)) * static_cast<double>(total));
    if (left >= total) left = total - 1;  // the likeliest stays
    unsigned prefix = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
      fill_bins(prefix, shift, [&](int32_t token) { return likelihood(token); });
      int bin = 0;
      while (bin < kBins - 1 && shared_.bins[bin] <= left) left -= shared_.bins[bin++];
      prefix |= static_cast<unsigned>(bin) << shift;
      __syncthreads();
    }
    least_order_ = prefix > least_order_ ? prefix : least_order_;
  }

  __device__ Count total_likelihood() {
    Count sum = 0;
    for (int32_t i = threadIdx.x; i < call_.tokens; i += kDrawThreads) sum += likelihood(i);
    return block_sum(sum);
  }

  // Thread t has the tokens [t, t + 1) * share, so that sums over threads are sums over tokens.
  __device__ int32_t draw() {
    const int32_t share = (call_.tokens + kDrawThreads - 1) / kDrawThreads;
    const int32_t begin = static_cast<int32_t>(threadIdx.x) * share;
    const int32_t end = begin + share < call_.tokens ? begin + share : call_.tokens;
    Count mine = 0;
    for (int32_t i = begin; i < end; ++i) mine += likelihood(i);
    const Count total = block_sum(mine);
    const Count target = __umul64hi(total, Count{uniform()} << 40);
    Count before = sum_of_those_before(mine);
    for (int32_t i = begin; i < end && before <= target; ++i) {
      before += likelihood(i);
      if (before > target) shared_.bins[0] = static_cast<Count>(i);
    }
    __syncthreads();
    return static_cast<int32_t>(shared_.bins[0]);
  }

  __device__ unsigned uniform() const {
    return uniform_at(rule_.seed, rule_.offset + static_cast<Count>(length_));
  }

  __device__ Count sum_of_those_before(Count value) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    Count sum = value;
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const Count other = __shfl_sync(kAllLanes, sum, lane >= distance ? lane - distance : lane);
      if (lane >= distance) sum += other;
    }
    if (lane == kWarp - 1) shared_.of_warps[threadIdx.x / kWarp] = sum;
    __syncthreads();
    Count before = sum - value;
    for (unsigned warp = 0; warp < threadIdx.x / kWarp; ++warp) before += shared_.of_warps[warp];
    return before;
  }

  const Draw& call_;
  int64_t row_;
  DrawRule rule_;
  int64_t length_;
  const float* logits_;
  DrawShared& shared_;
  float greatest_ = 0;
  unsigned least_order_ = 0;
  float least_likely_ = 0;
};

}  // namespace

extern "C" __global__ void __launch_bounds__(kDrawThreads, 1)
    djinn_draw(const __grid_constant__ Draw call) {
  let_the_next_begin();
  wait_for_the_one_before();
  const int32_t token = Drawing(call, blockIdx.x).token();
  if (threadIdx.x == 0) call.drawn[blockIdx.x] = token;
}

}  // namespace djinn::cuda
