// SPDX-License-Identifier: Apache-2.0

// The attention of many tokens of a level (vectors.h).
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernel/exec/kernels/attend_template.h"
#include "kernel/exec/kernels/vectors.h"

namespace djinn::kernels {
namespace {

constexpr int kVectorsAtOnce = 2;    // of tokens, or of an output
constexpr int64_t kKeysMixed = 128;  // as many values, and weights, as stay in the first cache
constexpr int kRowsAtOnce = Level::kRegisters >= 32 ? 8 : 4;
static_assert(kAttendTokens % (kVectorsAtOnce * kLanes) == 0);
static_assert(kAttendColumns % (kVectorsAtOnce * kLanes) == 0 && kAttendColumns % kRowsAtOnce == 0);

// Sums of as many products of an element of a row and vectors.
struct Sums {
  Vector of[kRowsAtOnce][kVectorsAtOnce];

  Sums() {
    DJINN_UNROLL
    for (auto& row : of) {
      DJINN_UNROLL
      for (Vector& sum : row) sum = Level::zero();
    }
  }
  Sums(const float* from, int64_t stride) {
    DJINN_UNROLL
    for (int r = 0; r < kRowsAtOnce; ++r) {
      DJINN_UNROLL
      for (int v = 0; v < kVectorsAtOnce; ++v) {
        of[r][v] = Level::load_floats(from + r * stride + v * kLanes);
      }
    }
  }
  void store(float* to, int64_t stride) const {
    DJINN_UNROLL
    for (int r = 0; r < kRowsAtOnce; ++r) {
      DJINN_UNROLL
      for (int v = 0; v < kVectorsAtOnce; ++v) {
        Level::store_floats(to + r * stride + v * kLanes, of[r][v]);
      }
    }
  }
};

// Of one head. A vector has the scores of one key with as many tokens, which have their queries
// side by side for that. All scores of a token are there before their greatest is looked for, and
// its weights are summed key by key: so where its keys begin in the buffer changes nothing.
template <typename T>
class TokensAttention {
 public:
  explicit TokensAttention(const AttendTokens& call)
      : call_(call),
        all_keys_(in_columns(call.keys)),
        width_(in_columns(call.width)),
        keys_(call.scratch),
        values_(keys_ + all_keys_ * width_),
        scores_(values_ + all_keys_ * width_),
        queries_(scores_ + all_keys_ * kAttendTokens),
        mixed_(queries_ + width_ * kAttendTokens) {}

  void run() {
    copy(static_cast<const T*>(call_.key), call_.key_stride, keys_);
    const bool all_are_finite =
        copy(static_cast<const T*>(call_.value), call_.value_stride, values_);
    for (first_ = 0; first_ < call_.tokens; first_ += kAttendTokens) {
      tokens_ = smaller(call_.tokens - first_, kAttendTokens);
      for (int64_t k = 0; k < call_.width; k += kLanes) take_queries(k);
      for (int64_t t = 0; t < tokens_; t += kVectorsAtOnce * kLanes) {
        for (int64_t j = 0; j < call_.keys; j += kRowsAtOnce) score(j, t);
      }
      if (call_.mask != nullptr) hide();
      for (int64_t t = 0; t < tokens_; t += kVectorsAtOnce * kLanes) weigh(t);
      memset(mixed_, 0, static_cast<size_t>(kAttendTokens * width_) * sizeof(float));
      for (int64_t j = 0; j < call_.keys; j += kKeysMixed) {
        const int64_t end = smaller(j + kKeysMixed, call_.keys);
        all_are_finite ? mix<false>(j, end) : mix<true>(j, end);
      }
      for (int64_t t = 0; t < tokens_; ++t) put(t);
    }
  }

 private:
  static constexpr int64_t in_columns(int64_t count) {
    return (count + kAttendColumns - 1) / kAttendColumns * kAttendColumns;
  }

  // Of each key; behind the last element are zeros. Tells whether all are finite.
  bool copy(const T* from, int64_t stride, float* to) {
    Vector differences = Level::zero();  // of a number from itself: zero, or no number
    for (int64_t j = 0; j < call_.keys; ++j) {
      for (int64_t k = 0; k < width_; k += kLanes) {
        const int64_t left = call_.width - k;
        const Vector part = left > 0 ? load_part(from + j * stride + k, left) : Level::zero();
        Level::store_floats(to + j * width_ + k, part);
        differences = Level::add(differences, part - part);
      }
    }
    return Level::sum(differences) == 0;
  }

  // kLanes elements of each query, from k on; those of tokens behind the last are zeros.
  void take_queries(int64_t k) {
    for (int64_t t = 0; t < kAttendTokens; t += kLanes) {
      Vector rows[kLanes];
      DJINN_UNROLL
      for (int i = 0; i < kLanes; ++i) {
        const T* const query =
            static_cast<const T*>(call_.query) + (first_ + t + i) * call_.query_stride;
        rows[i] =
            t + i < tokens_ ? load_part(query + k, call_.width - k) * call_.scale : Level::zero();
      }
      turn(rows);
      for (int i = 0; i < kLanes; ++i) {
        Level::store_floats(queries_ + (k + i) * kAttendTokens + t, rows[i]);
      }
    }
  }

  // Rows become columns: by as many perfect shuffles as it takes to bring each lane there.
  static void turn(Vector (&rows)[kLanes]) {
    Ints low, high;
    for (int i = 0; i < kLanes; ++i) {
      low[i] = i / 2 + i % 2 * kLanes;
      high[i] = low[i] + kLanes / 2;
    }
    DJINN_UNROLL
    for (int turns = 1; turns < kLanes; turns *= 2) {
      Vector shuffled[kLanes];
      DJINN_UNROLL
      for (int i = 0; i < kLanes / 2; ++i) {
        shuffled[2 * i] = __builtin_shuffle(rows[i], rows[i + kLanes / 2], low);
        shuffled[2 * i + 1] = __builtin_shuffle(rows[i], rows[i + kLanes / 2], high);
      }
      DJINN_UNROLL
      for (int i = 0; i < kLanes; ++i) rows[i] = shuffled[i];
    }
  }

  // Of keys behind the last are whatever was there: nobody reads them.
  void score(int64_t j, int64_t t) {
    Sums sums;
    const float *const key = keys_ + j * width_, *query = queries_ + t;
    for (int64_t k = 0; k < call_.width; ++k, query += kAttendTokens) {
      Vector queries[kVectorsAtOnce];
      load(queries, query);
      DJINN_UNROLL
      for (int r = 0; r < kRowsAtOnce; ++r) add(sums.of[r], key[r * width_ + k], queries);
    }
    sums.store(scores_ + j * kAttendTokens + t, kAttendTokens);
  }

  static void load(Vector (&vectors)[kVectorsAtOnce], const float* from) {
    DJINN_UNROLL
    for (int v = 0; v < kVectorsAtOnce; ++v) {
      vectors[v] = Level::load_floats(from + v * kLanes);
      Level::hold(vectors[v]);
    }
  }

  static void add(Vector (&sums)[kVectorsAtOnce], float factor,
                  const Vector (&vectors)[kVectorsAtOnce]) {
    const Vector factors = Level::broadcast(factor);
    DJINN_UNROLL
    for (int v = 0; v < kVectorsAtOnce; ++v) sums[v] = Level::fma(factors, vectors[v], sums[v]);
  }

  [[nodiscard]] bool is_seen(int64_t t, int64_t j) const {
    return t >= tokens_ || call_.mask[(first_ + t) * call_.mask_stride + j] != 0;
  }

  void hide() {
    constexpr int64_t kBytes = sizeof(uint64_t);
    for (int64_t t = 0; t < tokens_; ++t) {
      const uint8_t* const mask = call_.mask + (first_ + t) * call_.mask_stride;
      for (int64_t j = 0; j < call_.keys; j += kBytes) {
        const int64_t count = smaller(call_.keys - j, kBytes);
        if (count == kBytes && !has_zero(mask + j)) continue;
        for (int64_t i = j; i < j + count; ++i) {
          if (mask[i] == 0) scores_[i * kAttendTokens + t] = -__builtin_inff();
        }
      }
    }
  }

  // Of eight bytes.
  static bool has_zero(const uint8_t* bytes) {
    constexpr uint64_t kOnes = 0x0101010101010101;
    uint64_t all;
    memcpy(&all, bytes, sizeof all);
    return ((all - kOnes) & ~all & (kOnes << 7)) != 0;
  }

  // Scores become weights, whose sums are stored by token.
  void weigh(int64_t t) {
    const Vector least = Level::broadcast(-__builtin_inff());
    Vector greatest[kVectorsAtOnce], sums[kVectorsAtOnce];
    DJINN_UNROLL
    for (Vector& one : greatest) one = least;
    for (int64_t j = 0; j < call_.keys; ++j) {
      DJINN_UNROLL
      for (int v = 0; v < kVectorsAtOnce; ++v) {
        const Vector some = Level::load_floats(scores_ + j * kAttendTokens + t + v * kLanes);
        greatest[v] = some > greatest[v] ? some : greatest[v];
      }
    }
    DJINN_UNROLL
    for (int v = 0; v < kVectorsAtOnce; ++v) {
      // While all scores are -inf their weights are zeros, and no distance of two infinities.
      greatest[v] = greatest[v] == least ? Level::zero() : greatest[v];
      sums[v] = Level::zero();
    }
    for (int64_t j = 0; j < call_.keys; ++j) {
      DJINN_UNROLL
      for (int v = 0; v < kVectorsAtOnce; ++v) {
        float* const scores = scores_ + j * kAttendTokens + t + v * kLanes;
        const Vector weights = exp_of(Level::load_floats(scores) - greatest[v]);
        Level::store_floats(scores, weights);
        sums[v] = Level::add(sums[v], weights);
      }
    }
    DJINN_UNROLL
    for (int v = 0; v < kVectorsAtOnce; ++v) Level::store_floats(sums_ + t + v * kLanes, sums[v]);
  }

  // Of the keys from begin to end. kSkips: a value that is no number counts for those that see its
  // key alone.
  template <bool kSkips>
  void mix(int64_t begin, int64_t end) {
    for (int64_t k = 0; k < width_; k += kVectorsAtOnce * kLanes) {
      for (int64_t t = 0; t < tokens_; t += kRowsAtOnce) mix<kSkips>(t, k, begin, end);
    }
  }

  template <bool kSkips>
  void mix(int64_t t, int64_t k, int64_t begin, int64_t end) {
    float* const mixed = mixed_ + t * width_ + k;
    Sums sums(mixed, width_);
    const float *weight = scores_ + begin * kAttendTokens + t,
                *value = values_ + begin * width_ + k;
    for (int64_t j = begin; j < end; ++j, weight += kAttendTokens, value += width_) {
      Vector values[kVectorsAtOnce];
      load(values, value);
      DJINN_UNROLL
      for (int r = 0; r < kRowsAtOnce; ++r) {
        if (kSkips && call_.mask != nullptr && !is_seen(t + r, j)) continue;
        add(sums.of[r], weight[r], values);
      }
    }
    sums.store(mixed, width_);
  }

  void put(int64_t t) {
    T* const out = static_cast<T*>(call_.out) + (first_ + t) * call_.out_stride;
    const float sum = sums_[t] == 0 ? 1 : sums_[t];  // 0: it sees none, or all scores are -inf
    for (int64_t k = 0; k < call_.width; k += kLanes) {
      store_part(out + k, Level::load_floats(mixed_ + t * width_ + k) / sum, call_.width - k);
    }
  }

  const AttendTokens& call_;
  const int64_t all_keys_, width_;         // in whole columns
  float* const keys_;                      // [all_keys_, width_]
  float* const values_;                    // likewise
  float* const scores_;                    // [all_keys_, kAttendTokens], then their weights
  float* const queries_;                   // [width_, kAttendTokens]
  float* const mixed_;                     // [kAttendTokens, width_]
  alignas(64) float sums_[kAttendTokens];  // of weights
  int64_t first_ = 0;                      // of the tokens that are computed now
  int64_t tokens_ = 0;                     // how many
};

template <typename T>
void attend_tokens(const AttendTokens& call) {
  TokensAttention<T>(call).run();
}

constexpr AttendKernels kAttendOfThisLevel = {
    {&attend<float>, &attend<BFloat16>, &attend<Float16>},
    {&attend_tokens<float>, &attend_tokens<BFloat16>, &attend_tokens<Float16>}};

}  // namespace
}  // namespace djinn::kernels
