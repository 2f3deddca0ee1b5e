// SPDX-License-Identifier: Apache-2.0

// The attention of a level (vectors.h).
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernel/exec/kernels/attend.h"
#include "kernel/exec/kernels/vectors.h"

namespace djinn::kernels {
namespace {

constexpr int kHeadsAtOnce = 8;
constexpr int kKeysAtOnce = 64;
constexpr int kChunk = 4;  // vectors of an output that are in registers
static_assert(kKeysAtOnce == 64 && kKeysAtOnce % kLanes == 0 &&
              kHeadWidthMax % (kChunk * kLanes) == 0);

// Of a query that starts with that element, as many as fill a vector, or `left`.
template <typename T>
inline Vector load_query(const Attend& call, int64_t query, int64_t k) {
  const int64_t from = query * call.query_stride + k, left = call.width - k;
  if (call.query_is_float32) return load_part(static_cast<const float*>(call.query) + from, left);
  return load_part(static_cast<const T*>(call.query) + from, left);
}

[[nodiscard]] inline bool sees(const Attend& call, int64_t key) {
  if (call.mask != nullptr && call.mask[key * call.mask_step] == 0) return false;
  return call.bias == nullptr || call.bias[key] != -__builtin_inff();
}

// Some heads, over the keys from the first that they see.
template <typename T>
class HeadsAttention {
 public:
  HeadsAttention(const Attend& call, int64_t head, int64_t first)
      : call_(call),
        head_(head),
        heads_(static_cast<int>(smaller(call.queries - head, kHeadsAtOnce))),
        first_(first) {}

  void run() {
    take_queries();
    for (int64_t begin = first_; begin < call_.keys; begin += kKeysAtOnce) {
      const int count = static_cast<int>(smaller(call_.keys - begin, kKeysAtOnce));
      score(begin, count);
      if (call_.bias != nullptr) add_biases(call_.bias + begin, count);
      for (int h = 0; h < heads_; ++h) weigh(h, in_vectors(count));
      for (int h = 0; h < heads_; ++h) mix(h, begin, count);
    }
    for (int h = 0; h < heads_; ++h) put(h);
  }

 private:
  void take_queries() {
    const size_t mixed = static_cast<size_t>(call_.width + kChunk * kLanes - 1) / (kChunk * kLanes);
    for (int h = 0; h < heads_; ++h) {
      memset(sums_[h], 0, mixed * kChunk * sizeof(Vector));
      for (int64_t k = 0; k < call_.width; k += kLanes) {
        Level::store_floats(queries_[h] + k, load_query<T>(call_, head_ + h, k) * call_.scale);
      }
      greatest_[h] = -__builtin_inff();
      weights_of_[h] = Level::zero();
      if (call_.sinks != nullptr) take_sink(h);
    }
  }

  // It is met before all keys, and weighs 1 while it is the greatest.
  void take_sink(int h) {
    constexpr float kWeight = 1;
    greatest_[h] = call_.sinks[(head_ + h) * call_.sink_stride];
    weights_of_[h] = load_part(&kWeight, 1);
  }

  // As many scores as fill whole vectors: those behind the last key are -inf.
  static int in_vectors(int count) { return (count + kLanes - 1) / kLanes * kLanes; }

  void score(int64_t begin, int count) {
    const int all = in_vectors(count);
    seen_ = 0;
    for (int j = 0; j < count; ++j) seen_ |= uint64_t{sees(call_, begin + j)} << j;
    for (int j = 0; j < all; j += kLanes) {
      constexpr uint64_t kAll = (uint64_t{1} << kLanes) - 1;
      if ((seen_ >> j & kAll) == kAll) {
        for (int h = 0; h < heads_; ++h) score_keys(h, key_at(begin + j), j);
        continue;
      }
      for (int i = j; i < j + kLanes; ++i) {
        if ((seen_ >> i & 1) != 0) {
          score_key(key_at(begin + i), i);
        } else {
          for (int h = 0; h < heads_; ++h) scores_[h][i] = -__builtin_inff();
        }
      }
    }
  }

  [[nodiscard]] const T* key_at(int64_t j) const {
    return static_cast<const T*>(call_.key) + j * call_.key_stride;
  }

  // As many of one head as a vector has lanes, with the bits of each alone: one after the other
  // they would wait for their sums.
  void score_keys(int h, const T* keys, int j) {
    Vector products[kLanes];
    DJINN_UNROLL
    for (Vector& product : products) product = Level::zero();
    for (int64_t k = 0; k < call_.width; k += kLanes) {
      const Vector query = Level::load_floats(queries_[h] + k);
      DJINN_UNROLL
      for (int i = 0; i < kLanes; ++i) {
        const Vector part = load_part(keys + i * call_.key_stride + k, call_.width - k);
        products[i] = Level::fma(query, part, products[i]);
      }
    }
    Level::store_floats(scores_[h] + j, Level::sums(products));
  }

  void add_biases(const float* bias, int count) {
    for (int j = 0; j < count; j += kLanes) {
      const Vector some = load_part(bias + j, count - j);
      for (int h = 0; h < heads_; ++h) {
        float* const scores = scores_[h] + j;
        Level::store_floats(scores, Level::add(Level::load_floats(scores), some));
      }
    }
  }

  void score_key(const T* key, int j) {
    Vector products[kHeadsAtOnce];
    DJINN_UNROLL
    for (int h = 0; h < kHeadsAtOnce; ++h) products[h] = Level::zero();
    for (int64_t k = 0; k < call_.width; k += kLanes) {
      const Vector part = load_part(key + k, call_.width - k);
      for (int h = 0; h < heads_; ++h) {
        products[h] = Level::fma(Level::load_floats(queries_[h] + k), part, products[h]);
      }
    }
    for (int h = 0; h < heads_; ++h) scores_[h][j] = Level::sum(products[h]);
  }

  // Scores become weights, by the greatest that was met.
  void weigh(int h, int count) {
    float greatest = greatest_[h];
    for (int j = 0; j < count; ++j) greatest = scores_[h][j] > greatest ? scores_[h][j] : greatest;
    if (greatest != greatest_[h]) {
      scale_sums(h, exp_of(Level::broadcast(greatest_[h] - greatest)));
      greatest_[h] = greatest;
    }
    // While all scores are -inf their weights are zeros, and no distance of two infinities.
    if (greatest == -__builtin_inff()) greatest = 0;
    for (int j = 0; j < count; j += kLanes) {
      const Vector weights = exp_of(Level::load_floats(scores_[h] + j) - greatest);
      Level::store_floats(scores_[h] + j, weights);
      weights_of_[h] = Level::add(weights_of_[h], weights);
    }
  }

  void scale_sums(int h, Vector factor) {
    weights_of_[h] = weights_of_[h] * factor;
    for (int64_t k = 0; k < call_.width; k += kLanes) {
      Level::store_floats(sums_[h] + k, Level::load_floats(sums_[h] + k) * factor);
    }
  }

  void mix(int h, int64_t begin, int count) {
    for (int64_t k = 0; k < call_.width; k += kChunk * kLanes) {
      if (k + kChunk * kLanes <= call_.width) {
        mix_chunk<false>(h, k, begin, count);
      } else {
        mix_chunk<true>(h, k, begin, count);
      }
    }
  }

  template <bool kIsPart>
  void mix_chunk(int h, int64_t k, int64_t begin, int count) {
    const bool all_are_seen = seen_ == ~uint64_t{0} >> (kKeysAtOnce - count);
    Vector sums[kChunk];
    DJINN_UNROLL
    for (int c = 0; c < kChunk; ++c) sums[c] = Level::load_floats(sums_[h] + k + c * kLanes);
    for (int j = 0; j < count; ++j) {
      if (!all_are_seen && (seen_ >> j & 1) == 0) continue;
      const T* const value =
          static_cast<const T*>(call_.value) + (begin + j) * call_.value_stride + k;
      const Vector weight = Level::broadcast(scores_[h][j]);
      DJINN_UNROLL
      for (int c = 0; c < kChunk; ++c) {
        const int64_t left = call_.width - k - c * kLanes;
        if (kIsPart && left <= 0) break;
        const T* const at = value + c * kLanes;
        const Vector part = kIsPart ? load_part(at, left) : Dot<T>::to_vector(at);
        sums[c] = Level::fma(weight, part, sums[c]);
      }
    }
    DJINN_UNROLL
    for (int c = 0; c < kChunk; ++c) Level::store_floats(sums_[h] + k + c * kLanes, sums[c]);
  }

  void put(int h) {
    float all = Level::sum(weights_of_[h]);
    if (all == 0) all = 1;  // all scores are -inf
    T* const out = static_cast<T*>(call_.out) + (head_ + h) * call_.out_stride;
    for (int64_t k = 0; k < call_.width; k += kLanes) {
      store_part(out + k, Level::load_floats(sums_[h] + k) / all, call_.width - k);
    }
  }

  const Attend& call_;
  const int64_t head_;
  const int heads_;
  const int64_t first_;
  uint64_t seen_ = 0;  // of the block's keys, by bits
  float greatest_[kHeadsAtOnce];
  Vector weights_of_[kHeadsAtOnce];  // sums of weights, lane by lane
  alignas(64) float queries_[kHeadsAtOnce][kHeadWidthMax];
  alignas(64) float scores_[kHeadsAtOnce][kKeysAtOnce];
  alignas(64) float sums_[kHeadsAtOnce][kHeadWidthMax];
};

template <typename T>
void attend(const Attend& call) {
  int64_t first = 0;
  while (first < call.keys && !sees(call, first)) ++first;
  if (first < call.keys) {
    for (int64_t head = 0; head < call.queries; head += kHeadsAtOnce) {
      HeadsAttention<T>(call, head, first).run();
    }
    return;
  }
  for (int64_t head = 0; head < call.queries; ++head) {
    memset(static_cast<T*>(call.out) + head * call.out_stride, 0,
           static_cast<size_t>(call.width) * sizeof(T));
  }
}

}  // namespace
}  // namespace djinn::kernels
