// SPDX-License-Identifier: Apache-2.0

// Each level that this machine has, against the formula in double, and against itself: with queries
// beside, and with padding before. Heads of a token and tokens of a head have one contract.
#include "kernel/exec/kernels/attend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "kernel/exec/kernels/kernels.h"
#include "kernel/exec/kernels/matrix_for_tests.h"

namespace djinn::kernels {
namespace {

enum class Queries { kHeads, kTokens };
constexpr float kLeast = std::numeric_limits<float>::lowest();

struct Attention {
  Attention(Element kind, Queries form, int64_t queries, int64_t keys, int64_t width,
            bool has_wide_queries = false)
      : are_heads(form == Queries::kHeads),
        query(has_wide_queries ? Element::kFloat32 : kind, queries, width),
        key(kind, keys, width),
        value(kind, keys, width),
        mask(static_cast<size_t>(queries * keys), 1),
        bias(static_cast<size_t>(queries * keys), 0),
        scratch(static_cast<size_t>(attend_scratch(keys, width))) {
    std::mt19937 random(static_cast<uint32_t>(queries * 7 + keys * 3 + width));
    for (Matrix* one : {&query, &key, &value}) one->fill(random);
  }

  // Heads see what the first of them does.
  [[nodiscard]] size_t at(int64_t q, int64_t j) const {
    return static_cast<size_t>((are_heads ? 0 : q) * key.rows + j);
  }
  void see(int64_t q, int64_t j, bool is_seen) { mask[at(q, j)] = is_seen ? 1 : 0; }

  // A token sees the keys up to its own, which is one of the last.
  void see_what_was_before() {
    for (int64_t q = 0; q < query.rows; ++q) {
      for (int64_t j = 0; j < key.rows; ++j) {
        see(q, j, are_heads ? j % 3 != 0 || j + 1 == key.rows : j <= key.rows - query.rows + q);
      }
    }
  }

  void fill_biases() {
    std::mt19937 random(11);
    std::normal_distribution<float> normal(0, 2);
    for (float& one : bias) one = normal(random);
  }
  // As the mask does, by biases.
  void hide_by_biases() {
    for (size_t i = 0; i < mask.size(); ++i) {
      if (mask[i] == 0) bias[i] = -INFINITY;
    }
    std::ranges::fill(mask, uint8_t{1});
  }

  void fill_sinks() {
    std::mt19937 random(13);
    std::normal_distribution<float> normal(0, 3);
    sinks.resize(static_cast<size_t>(query.rows));
    for (float& one : sinks) one = normal(random);
  }

  // Of some queries, over the keys from first_key on.
  Matrix run(IsaLevel level, int64_t first, int64_t count, int64_t first_key = 0) {
    Matrix out(value.element, count, value.columns);
    Attend call;
    call.query = query.at(first, 0);
    call.query_stride = query.stride();
    call.query_is_float32 = query.element == Element::kFloat32;
    call.key = key.at(first_key, 0);
    call.key_stride = key.stride();
    call.value = value.at(first_key, 0);
    call.value_stride = value.stride();
    call.mask = mask.data() + at(first, first_key);
    call.mask_stride = are_heads ? 0 : key.rows;
    call.mask_step = 1;
    call.bias = bias.data() + at(first, first_key);
    call.bias_stride = are_heads ? 0 : key.rows;
    call.sinks = sinks.empty() ? nullptr : sinks.data() + first;
    call.sink_stride = 1;
    call.out = out.at(0, 0);
    call.out_stride = out.stride();
    call.queries = count;
    call.keys = key.rows - first_key;
    call.width = value.columns;
    call.scale = scale;
    call.scratch = scratch.data();
    const AttendKernels& kernels = kernels_of(level).attend;
    const auto element = static_cast<size_t>(value.element);
    call.values_are_finite = kernels.are_finite[element](call);
    (are_heads ? kernels.heads : kernels.tokens)[element](call);
    return out;
  }
  Matrix run(IsaLevel level) { return run(level, 0, query.rows); }

  std::vector<double> exact(int64_t q) {
    std::vector<double> weights(static_cast<size_t>(key.rows), 0);
    double all = sinks.empty() ? 0 : std::exp(double(sinks[static_cast<size_t>(q)]));
    for (int64_t j = 0; j < key.rows; ++j) {
      double score = 0;
      for (int64_t k = 0; k < key.columns; ++k) {
        score += double(query.get(q, k)) * key.get(j, k);
      }
      if (mask[at(q, j)] == 0) continue;
      all += weights[static_cast<size_t>(j)] = std::exp(score * scale + double(bias[at(q, j)]));
    }
    std::vector<double> mixed(static_cast<size_t>(value.columns), 0);
    for (int64_t k = 0; k < value.columns; ++k) {
      for (int64_t j = 0; j < key.rows; ++j) {
        mixed[static_cast<size_t>(k)] += weights[static_cast<size_t>(j)] / all * value.get(j, k);
      }
    }
    return mixed;
  }

  bool are_heads;
  Matrix query, key, value;
  std::vector<uint8_t> mask;  // by query, then by key
  std::vector<float> bias;
  std::vector<float> sinks;  // by query; or empty
  std::vector<float> scratch;
  float scale = 0.125f;
};

// The mean of the values, weighted by the softmax.
void expect_mean(Attention& it) {
  for (const IsaLevel level : levels()) {
    SCOPED_TRACE(std::string(name_of(level)) + ", " + std::to_string(it.key.rows) + " keys");
    Matrix out = it.run(level);
    for (int64_t q = 0; q < out.rows; ++q) {
      const std::vector<double> exact = it.exact(q);
      for (int64_t k = 0; k < out.columns; ++k) {
        const double wanted = exact[static_cast<size_t>(k)];
        ASSERT_NEAR(out.get(q, k), wanted, std::abs(wanted) * ulp_of(out.element) + 5e-6)
            << "query " << q << " of " << out.rows;
      }
      EXPECT_EQ(out.get(q, out.columns), 0.0f);
    }
  }
}

class AttendTest : public ::testing::TestWithParam<std::tuple<Element, Queries>> {
 protected:
  static Element element() { return std::get<0>(GetParam()); }
  static Attention attention(int64_t queries, int64_t keys, int64_t width, bool wide = false) {
    return {element(), std::get<1>(GetParam()), queries, keys, width, wide};
  }
  static bool is_same(Matrix& one, int64_t row, Matrix& other, int64_t other_row) {
    const size_t bytes = static_cast<size_t>(one.columns) * bytes_of(element());
    return std::memcmp(one.at(row, 0), other.at(other_row, 0), bytes) == 0;
  }
};

using Shape = std::tuple<int64_t, int64_t, int64_t>;  // queries, keys, width
constexpr Shape kShapes[] = {{1, 1, 64},     {7, 130, 64}, {12, 65, 80},  {3, 200, 7}, {2, 63, 256},
                             {128, 128, 32}, {33, 40, 64}, {65, 200, 80}, {40, 41, 16}};

TEST_P(AttendTest, is_the_mean_of_the_values_weighted_by_the_softmax) {
  for (const auto& [queries, keys, width] : kShapes) {
    Attention it = attention(queries, keys, width);
    expect_mean(it);
    it.see_what_was_before();
    expect_mean(it);
  }
}

TEST_P(AttendTest, what_is_added_to_scores_is_weighed) {
  for (const auto& [queries, keys, width] : kShapes) {
    Attention it = attention(queries, keys, width);
    it.fill_biases();
    expect_mean(it);
    it.see_what_was_before();
    it.hide_by_biases();
    expect_mean(it);
  }
}

TEST_P(AttendTest, a_sink_is_weighed_and_has_no_value) {
  for (const auto& [queries, keys, width] : kShapes) {
    Attention it = attention(queries, keys, width);
    it.fill_sinks();
    expect_mean(it);
    it.fill_biases();
    it.see_what_was_before();
    it.hide_by_biases();
    expect_mean(it);
  }
}

TEST_P(AttendTest, a_sink_beside_which_nothing_counts_leaves_zeros_and_an_infinite_one_is_none) {
  Attention it = attention(40, 70, 16);
  it.see_what_was_before();
  const Attention plain = it;
  it.sinks.assign(40, -INFINITY);
  it.sinks[7] = 1e30f;
  for (const IsaLevel level : levels()) {
    Matrix out = it.run(level), wanted = Attention(plain).run(level);
    for (int64_t q = 0; q < out.rows; ++q) {
      if (q == 7) continue;
      EXPECT_TRUE(is_same(out, q, wanted, q)) << name_of(level) << ", query " << q;
    }
    EXPECT_EQ(out.get(7, 0), 0.0f);
  }
}

TEST_P(AttendTest, queries_may_be_wider_than_keys) {
  for (const auto& [queries, keys, width] : {Shape{5, 70, 16}, {40, 70, 24}}) {
    Attention it = attention(queries, keys, width, true);
    expect_mean(it);
  }
}

// The row contract.
TEST_P(AttendTest, a_query_is_the_same_alone_and_padding_before_the_keys_changes_nothing) {
  constexpr int64_t kQueries = 37, kKeys = 150, kPadding = 29;
  for (const bool by_biases : {false, true}) {
    Attention it = attention(kQueries, kKeys, 48);
    it.see_what_was_before();
    for (int64_t q = 0; q < kQueries; ++q) {
      for (int64_t j = 0; j < kPadding; ++j) it.see(q, j, false);
    }
    it.fill_biases();
    it.fill_sinks();
    if (by_biases) it.hide_by_biases();
    for (const IsaLevel level : levels()) {
      Matrix together = it.run(level);
      EXPECT_EQ(it.run(level, 0, kQueries, kPadding).bytes, together.bytes) << name_of(level);
      for (int64_t q = 0; q < kQueries; ++q) {
        Matrix alone = it.run(level, q, 1);
        EXPECT_TRUE(is_same(alone, 0, together, q)) << name_of(level) << ", query " << q;
      }
    }
  }
}

TEST_P(AttendTest, who_sees_no_key_gets_zeros_and_what_is_not_seen_may_be_no_number) {
  constexpr int64_t kQueries = 40, kKeys = 70, kLast = kQueries - 1;
  for (const bool by_biases : {false, true}) {
    Attention it = attention(kQueries, kKeys, 16);
    for (int64_t q = 0; q < kQueries; ++q) {
      for (const int64_t j : {3, 69}) it.see(q, j, !it.are_heads && q == kLast);
    }
    for (int64_t j = 0; j < kKeys && !it.are_heads; ++j) it.see(5, j, false);
    if (by_biases) it.hide_by_biases();
    Attention strange = it, none = it;
    for (const int64_t j : {3, 69}) {
      for (int64_t k = 0; k < 16; ++k) store(element(), strange.value.at(j, k), NAN);
    }
    std::ranges::fill(none.mask, uint8_t{0});
    for (const IsaLevel level : levels()) {
      SCOPED_TRACE(name_of(level));
      Matrix before = it.run(level), after = strange.run(level), zeros = none.run(level);
      for (int64_t q = 0; q < kQueries; ++q) {
        const bool sees_them = !it.are_heads && q == kLast;
        EXPECT_EQ(std::isnan(after.get(q, 0)), sees_them);
        EXPECT_TRUE(sees_them || is_same(before, q, after, q)) << "query " << q;
        EXPECT_EQ(zeros.get(q, 0), 0.0f);
      }
      EXPECT_EQ(before.get(5, 0) == 0.0f, !it.are_heads);
    }
  }
}

// So that a softmax has it which was given the least number for each key.
TEST_P(AttendTest, keys_of_the_least_bias_weigh_alike_where_there_are_no_others) {
  for (const int64_t queries : {3, 40}) {
    Attention it = attention(queries, 100, 16), mean = attention(queries, 100, 16);
    std::ranges::fill(it.bias, kLeast);
    mean.scale = 0;
    for (const IsaLevel level : levels()) {
      EXPECT_EQ(it.run(level).bytes, mean.run(level).bytes) << name_of(level);
    }
    it.bias[it.at(1, 99)] = 0;
    mean.scale = it.scale;
    std::ranges::fill(mean.mask, uint8_t{0});
    mean.see(1, 99, true);
    for (const IsaLevel level : levels()) {
      Matrix out = it.run(level), wanted = mean.run(level);
      EXPECT_TRUE(is_same(out, 1, wanted, 1)) << name_of(level);
    }
  }
}

// As clients' bytes may be, whatever dtype they are said to have.
TEST_P(AttendTest, a_key_is_seen_where_its_byte_is_not_zero) {
  Attention it = attention(40, 100, 16);
  it.see_what_was_before();
  Attention strange = it;
  for (size_t i = 0; i < it.mask.size(); ++i) {
    if (it.mask[i] != 0) strange.mask[i] = static_cast<uint8_t>(2 + i * 2 % 254);
  }
  for (const IsaLevel level : levels()) {
    EXPECT_EQ(strange.run(level).bytes, it.run(level).bytes) << name_of(level);
  }
}

TEST_P(AttendTest, scores_of_any_size_are_weighed) {
  Attention it = attention(50, 100, 16);
  it.scale = 300;
  for (const IsaLevel level : levels()) {
    Matrix out = it.run(level);
    for (int64_t k = 0; k < 16; ++k) EXPECT_TRUE(std::isfinite(out.get(1, k))) << name_of(level);
  }
}

TEST_P(AttendTest, keys_of_an_infinite_score_are_as_if_they_were_not_seen) {
  constexpr int64_t kInfinite = 70;  // more than a block
  Attention it = attention(2, 100, 16), seen = attention(2, 100, 16);
  for (int64_t q = 0; q < 2; ++q) {
    for (int64_t j = 0; j < kInfinite; ++j) seen.see(q, j, false);
    for (Attention* one : {&it, &seen}) store(element(), one->query.at(q, 0), 2);
  }
  for (int64_t j = 0; j < kInfinite; ++j) store(element(), it.key.at(j, 0), -INFINITY);
  for (const IsaLevel level : levels()) {
    Matrix out = it.run(level), wanted = seen.run(level);
    for (int64_t k = 0; k < 16; ++k) {
      EXPECT_NEAR(out.get(1, k), wanted.get(1, k), 4 * ulp_of(element())) << name_of(level);
    }
  }
  for (int64_t j = kInfinite; j < 100; ++j) store(element(), it.key.at(j, 0), -INFINITY);
  for (const IsaLevel level : levels()) {
    Matrix none = it.run(level);
    for (int64_t k = 0; k < 16; ++k) EXPECT_EQ(none.get(1, k), 0.0f) << name_of(level);
  }
}

INSTANTIATE_TEST_SUITE_P(Elements, AttendTest,
                         ::testing::Combine(::testing::ValuesIn(kAllElements),
                                            ::testing::Values(Queries::kHeads, Queries::kTokens)),
                         [](const auto& one) {
                           const bool are_heads = std::get<1>(one.param) == Queries::kHeads;
                           return std::string(name_of(std::get<0>(one.param))) +
                                  (are_heads ? "_heads" : "_tokens");
                         });

}  // namespace
}  // namespace djinn::kernels
