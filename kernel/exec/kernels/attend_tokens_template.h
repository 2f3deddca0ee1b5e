// SPDX-License-Identifier: Apache-2.0

// The attention of many tokens of a level (vectors.h).
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernel/exec/kernels/attend_template.h"
#include "kernel/exec/kernels/vectors.h"

namespace djinn::kernels {
namespace {

constexpr int kVectorsAtOnce = 2;  // of tokens, or of an output
constexpr int kRowsAtOnce = Level::kRegisters >= 32 ? 8 : 4;
static_assert(kAttendTokens % (kVectorsAtOnce * kLanes) == 0);
static_assert(kAttendColumns % (kVectorsAtOnce * kLanes) == 0 && kAttendColumns % kRowsAtOnce == 0);
static_assert(kAttendKeys % kRowsAtOnce == 0);

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

// Rows of floats.
struct Rows {
  const float* first;
  int64_t stride;
};

// Of one head. A vector has the scores of one key with as many tokens, which have their queries
// side by side for that. All scores of a token are there before their greatest is looked for, and
// its weights are summed key by key: so where its keys begin in the buffer changes nothing.
template <typename T>
class TokensAttention {
 public:
  explicit TokensAttention(const Attend& call)
      : call_(call),
        width_(in_attend_columns(call.width)),
        copies_(call.scratch),
        scores_(copies_ + kAttendKeys * width_),
        queries_(scores_ + in_attend_columns(call.keys) * kAttendTokens),
        mixed_(queries_ + width_ * kAttendTokens) {}

  void run() {
    for (first_ = 0; first_ < call_.queries; first_ += kAttendTokens) {
      tokens_ = smaller(call_.queries - first_, kAttendTokens);
      for (int64_t k = 0; k < call_.width; k += kLanes) take_queries(k);
      take_sinks();
      for (int64_t j = 0; j < call_.keys; j += kAttendKeys) score_some(j);
      if (call_.mask != nullptr) hide();
      if (call_.bias != nullptr) add_biases();
      for (int64_t t = 0; t < tokens_; t += kVectorsAtOnce * kLanes) weigh(t);
      memset(mixed_, 0, static_cast<size_t>(kAttendTokens * width_) * sizeof(float));
      for (int64_t j = 0; j < call_.keys; j += kAttendKeys) {
        call_.values_are_finite ? mix_some<false>(j) : mix_some<true>(j);
      }
      for (int64_t t = 0; t < tokens_; ++t) put(t);
    }
  }

 private:
  [[nodiscard]] const T* row(const void* rows, int64_t stride, int64_t j) const {
    return static_cast<const T*>(rows) + j * stride;
  }

  // count of them from j on, at most kAttendKeys, where they lie if that serves as it is; else
  // copies with zeros behind the last element.
  Rows in_floats(const void* rows, int64_t stride, int64_t j, int64_t count, bool serves) {
    if constexpr (sizeof(T) == sizeof(float)) {
      if (serves) return {row(rows, stride, j), stride};
    }
    for (int64_t i = 0; i < count; ++i) {
      const T* const from = row(rows, stride, j + i);
      for (int64_t k = 0; k < width_; k += kLanes) {
        const int64_t left = call_.width - k;
        Level::store_floats(copies_ + i * width_ + k,
                            left > 0 ? load_part(from + k, left) : Level::zero());
      }
    }
    return {copies_, width_};
  }

  // kLanes elements of each query, from k on; those of tokens behind the last are zeros.
  void take_queries(int64_t k) {
    for (int64_t t = 0; t < kAttendTokens; t += kLanes) {
      Vector rows[kLanes];
      DJINN_UNROLL
      for (int i = 0; i < kLanes; ++i) {
        rows[i] =
            t + i < tokens_ ? load_query<T>(call_, first_ + t + i, k) * call_.scale : Level::zero();
      }
      turn(rows);
      for (int i = 0; i < kLanes; ++i) {
        Level::store_floats(queries_ + (k + i) * kAttendTokens + t, rows[i]);
      }
    }
  }

  // Where there are none, and of tokens behind the last, as if each were -inf.
  void take_sinks() {
    for (int64_t t = 0; t < kAttendTokens; ++t) {
      const bool has_one = call_.sinks != nullptr && t < tokens_;
      sinks_[t] = has_one ? call_.sinks[(first_ + t) * call_.sink_stride] : -__builtin_inff();
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

  // Of the keys from j on. Scores of keys behind the last are of whatever is in the copies.
  void score_some(int64_t j) {
    const int64_t count = smaller(call_.keys - j, kAttendKeys);
    const Rows keys = in_floats(call_.key, call_.key_stride, j, count, count % kRowsAtOnce == 0);
    for (int64_t t = 0; t < tokens_; t += kVectorsAtOnce * kLanes) {
      for (int64_t i = 0; i < count; i += kRowsAtOnce) {
        score({keys.first + i * keys.stride, keys.stride}, t,
              scores_ + (j + i) * kAttendTokens + t);
      }
    }
  }

  void score(const Rows& keys, int64_t t, float* scores) {
    Sums sums;
    const float* query = queries_ + t;
    for (int64_t k = 0; k < call_.width; ++k, query += kAttendTokens) {
      Vector queries[kVectorsAtOnce];
      load(queries, query);
      DJINN_UNROLL
      for (int r = 0; r < kRowsAtOnce; ++r)
        add(sums.of[r], keys.first[r * keys.stride + k], queries);
    }
    sums.store(scores, kAttendTokens);
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
    if (t >= tokens_) return true;
    if (call_.mask != nullptr && mask_of(t)[j] == 0) return false;
    return call_.bias == nullptr || bias_of(t)[j] != -__builtin_inff();
  }
  [[nodiscard]] const uint8_t* mask_of(int64_t t) const {
    return call_.mask + (first_ + t) * call_.mask_stride;
  }
  [[nodiscard]] const float* bias_of(int64_t t) const {
    return call_.bias + (first_ + t) * call_.bias_stride;
  }

  void hide() {
    constexpr int64_t kBytes = sizeof(uint64_t);
    for (int64_t t = 0; t < tokens_; ++t) {
      const uint8_t* const mask = mask_of(t);
      for (int64_t j = 0; j < call_.keys; j += kBytes) {
        const int64_t count = smaller(call_.keys - j, kBytes);
        if (count == kBytes && !has_zero(mask + j)) continue;
        for (int64_t i = j; i < j + count; ++i) {
          if (mask[i] == 0) scores_[i * kAttendTokens + t] = -__builtin_inff();
        }
      }
    }
  }

  // Those of kLanes keys and as many tokens are turned, as the queries were.
  void add_biases() {
    for (int64_t j = 0; j < call_.keys; j += kLanes) {
      const int64_t keys = smaller(call_.keys - j, kLanes);
      for (int64_t t = 0; t < tokens_; t += kLanes) {
        Vector rows[kLanes];
        DJINN_UNROLL
        for (int i = 0; i < kLanes; ++i) {
          rows[i] = t + i < tokens_ ? load_part(bias_of(t + i) + j, keys) : Level::zero();
        }
        turn(rows);
        for (int64_t i = 0; i < keys; ++i) {
          float* const scores = scores_ + (j + i) * kAttendTokens + t;
          Level::store_floats(scores, Level::add(Level::load_floats(scores), rows[i]));
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
    for (int v = 0; v < kVectorsAtOnce; ++v) greatest[v] = sink_of(t, v);
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
      sums[v] = call_.sinks == nullptr ? Level::zero() : exp_of(sink_of(t, v) - greatest[v]);
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

  [[nodiscard]] Vector sink_of(int64_t t, int v) const {
    return Level::load_floats(sinks_ + t + v * kLanes);
  }

  // Of the keys from j on. kSkips: a value that is no number counts for those that see its key
  // alone.
  template <bool kSkips>
  void mix_some(int64_t j) {
    const int64_t count = smaller(call_.keys - j, kAttendKeys);
    const bool is_whole = call_.width % (kVectorsAtOnce * kLanes) == 0;
    const Rows values = in_floats(call_.value, call_.value_stride, j, count, is_whole);
    for (int64_t k = 0; k < call_.width; k += kVectorsAtOnce * kLanes) {
      for (int64_t t = 0; t < tokens_; t += kRowsAtOnce) mix<kSkips>(values, t, k, j, j + count);
    }
  }

  template <bool kSkips>
  void mix(const Rows& rows, int64_t t, int64_t k, int64_t begin, int64_t end) {
    float* const mixed = mixed_ + t * width_ + k;
    Sums sums(mixed, width_);
    const float *weight = scores_ + begin * kAttendTokens + t, *value = rows.first + k;
    for (int64_t j = begin; j < end; ++j, weight += kAttendTokens, value += rows.stride) {
      Vector values[kVectorsAtOnce];
      load(values, value);
      DJINN_UNROLL
      for (int r = 0; r < kRowsAtOnce; ++r) {
        if (kSkips && !is_seen(t + r, j)) continue;
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

  const Attend& call_;
  const int64_t width_;   // in whole columns
  float* const copies_;   // [kAttendKeys, width_]: of keys, then of values
  float* const scores_;   // [keys in whole columns, kAttendTokens], then their weights
  float* const queries_;  // [width_, kAttendTokens]
  float* const mixed_;    // [kAttendTokens, width_]
  alignas(64) float sums_[kAttendTokens];  // of weights
  alignas(64) float sinks_[kAttendTokens];
  int64_t first_ = 0;   // of the tokens that are computed now
  int64_t tokens_ = 0;  // how many
};

template <typename T>
void attend_tokens(const Attend& call) {
  TokensAttention<T>(call).run();
}

template <typename T>
bool are_values_finite(const Attend& call) {
  Vector differences = Level::zero();  // of a number from itself: zero, or no number
  for (int64_t j = 0; j < call.keys; ++j) {
    const T* const value = static_cast<const T*>(call.value) + j * call.value_stride;
    for (int64_t k = 0; k < call.width; k += kLanes) {
      const Vector part = load_part(value + k, call.width - k);
      differences = Level::add(differences, part - part);
    }
  }
  return Level::sum(differences) == 0;
}

constexpr AttendKernels kAttendOfThisLevel = {
    {&attend<float>, &attend<BFloat16>, &attend<Float16>},
    {&attend_tokens<float>, &attend_tokens<BFloat16>, &attend_tokens<Float16>},
    {&are_values_finite<float>, &are_values_finite<BFloat16>, &are_values_finite<Float16>}};

}  // namespace
}  // namespace djinn::kernels
