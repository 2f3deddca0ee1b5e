// SPDX-License-Identifier: Apache-2.0

// Each level that this machine has, against the formula in double, and against itself: with heads
// beside, and with padding before.
#include "kernel/exec/kernels/attend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <tuple>
#include <vector>

#include "kernel/exec/kernels/kernels.h"
#include "kernel/exec/kernels/matrix_for_tests.h"

namespace djinn::kernels {
namespace {

struct Attention {
  Attention(Element kind, int64_t heads, int64_t keys, int64_t width)
      : query(kind, heads, width),
        key(kind, keys, width),
        value(kind, keys, width),
        seen(static_cast<size_t>(keys), 1) {
    std::mt19937 random(static_cast<uint32_t>(heads * 7 + keys * 3 + width));
    for (Matrix* one : {&query, &key, &value}) one->fill(random);
  }

  // Of some heads, over the keys from first_key on.
  Matrix run(IsaLevel level, int64_t head, int64_t heads, bool masked, int64_t first_key = 0) {
    Matrix out(query.element, heads, query.columns);
    Attend call;
    call.query = query.at(head, 0);
    call.query_stride = query.stride();
    call.key = key.at(first_key, 0);
    call.key_stride = key.stride();
    call.value = value.at(first_key, 0);
    call.value_stride = value.stride();
    call.mask = masked ? seen.data() + first_key : nullptr;
    call.mask_stride = 1;
    call.out = out.at(0, 0);
    call.out_stride = out.stride();
    call.heads = heads;
    call.keys = key.rows - first_key;
    call.width = query.columns;
    call.scale = scale;
    kernels_of(level).attend.attend[static_cast<size_t>(query.element)](call);
    return out;
  }

  std::vector<double> exact(int64_t head) {
    std::vector<double> weights(static_cast<size_t>(key.rows), 0);
    double all = 0;
    for (int64_t j = 0; j < key.rows; ++j) {
      double score = 0;
      for (int64_t k = 0; k < key.columns; ++k) {
        score += double(query.get(head, k)) * key.get(j, k);
      }
      if (seen[static_cast<size_t>(j)] != 0) {
        all += weights[static_cast<size_t>(j)] = std::exp(score * scale);
      }
    }
    std::vector<double> mixed(static_cast<size_t>(value.columns), 0);
    for (int64_t k = 0; k < value.columns; ++k) {
      for (int64_t j = 0; j < key.rows; ++j) {
        mixed[static_cast<size_t>(k)] += weights[static_cast<size_t>(j)] / all * value.get(j, k);
      }
    }
    return mixed;
  }

  Matrix query, key, value;
  std::vector<uint8_t> seen;  // by key
  float scale = 0.125f;
};

class AttendTest : public ::testing::TestWithParam<Element> {};

TEST_P(AttendTest, is_the_mean_of_the_values_weighted_by_the_softmax) {
  for (const auto& [heads, keys, width] :
       {std::tuple{1, 1, 64}, {7, 130, 64}, {12, 65, 80}, {3, 200, 7}, {2, 63, 256}}) {
    for (const bool masked : {false, true}) {
      Attention it(GetParam(), heads, keys, width);
      if (masked) {
        for (size_t j = 0; j + 1 < it.seen.size(); ++j) it.seen[j] = j % 3 != 0;
      }
      for (const IsaLevel level : levels()) {
        Matrix out = it.run(level, 0, heads, masked);
        for (int64_t h = 0; h < heads; ++h) {
          const std::vector<double> exact = it.exact(h);
          for (int64_t k = 0; k < width; ++k) {
            const double wanted = exact[static_cast<size_t>(k)];
            ASSERT_NEAR(out.get(h, k), wanted, std::abs(wanted) * ulp_of(GetParam()) + 3e-6)
                << name_of(level) << ", head " << h << " of " << heads << ", " << keys << " keys";
          }
          EXPECT_EQ(out.get(h, width), 0.0f);
        }
      }
    }
  }
}

// The row contract.
TEST_P(AttendTest, a_head_is_the_same_alone_and_padding_before_the_keys_changes_nothing) {
  constexpr int64_t kHeads = 11, kKeys = 150, kPadding = 37;
  Attention it(GetParam(), kHeads, kKeys, 64);
  for (size_t j = 0; j < kPadding; ++j) it.seen[j] = 0;
  for (const IsaLevel level : levels()) {
    Matrix together = it.run(level, 0, kHeads, true);
    EXPECT_EQ(it.run(level, 0, kHeads, false, kPadding).bytes, together.bytes) << name_of(level);
    for (int64_t h = 0; h < kHeads; ++h) {
      Matrix alone = it.run(level, h, 1, true);
      EXPECT_EQ(std::memcmp(alone.at(0, 0), together.at(h, 0), 64 * bytes_of(GetParam())), 0)
          << name_of(level) << ", head " << h;
    }
  }
}

TEST_P(AttendTest, who_sees_no_key_gets_zeros_and_what_is_not_seen_may_be_no_number) {
  Attention it(GetParam(), 9, 70, 64);
  for (const size_t j : {3, 69}) it.seen[j] = 0;
  for (const IsaLevel level : levels()) {
    const Matrix before = it.run(level, 0, 9, true);
    for (const int64_t j : {3, 69}) {
      for (int64_t k = 0; k < 64; ++k) store(GetParam(), it.value.at(j, k), NAN);
    }
    EXPECT_EQ(it.run(level, 0, 9, true).bytes, before.bytes) << name_of(level);
  }
  std::ranges::fill(it.seen, 0);
  for (const IsaLevel level : levels()) {
    Matrix none = it.run(level, 0, 9, true);
    for (int64_t k = 0; k < 64; ++k) EXPECT_EQ(none.get(8, k), 0.0f) << name_of(level);
  }
}

// As clients' bytes may be, whatever dtype they are said to have.
TEST_P(AttendTest, a_key_is_seen_where_its_byte_is_not_zero) {
  Attention it(GetParam(), 3, 100, 16);
  for (size_t j = 0; j < it.seen.size(); ++j) it.seen[j] = j % 5 != 0;
  const std::vector<uint8_t> plain = it.seen;
  for (const IsaLevel level : levels()) {
    it.seen = plain;
    const Matrix wanted = it.run(level, 0, 3, true);
    for (size_t j = 0; j < it.seen.size(); ++j) {
      if (it.seen[j] != 0) it.seen[j] = static_cast<uint8_t>(2 + j * 2);
    }
    EXPECT_EQ(it.run(level, 0, 3, true).bytes, wanted.bytes) << name_of(level);
  }
}

TEST_P(AttendTest, scores_of_any_size_are_weighed) {
  Attention it(GetParam(), 2, 100, 16);
  it.scale = 300;
  for (const IsaLevel level : levels()) {
    Matrix out = it.run(level, 0, 2, false);
    for (int64_t k = 0; k < 16; ++k) EXPECT_TRUE(std::isfinite(out.get(1, k))) << name_of(level);
  }
}

TEST_P(AttendTest, keys_of_an_infinite_score_are_as_if_they_were_not_seen) {
  constexpr int64_t kInfinite = 70;  // more than a block
  Attention it(GetParam(), 2, 100, 16), seen(GetParam(), 2, 100, 16);
  std::fill_n(seen.seen.begin(), kInfinite, uint8_t{0});
  for (int64_t h = 0; h < 2; ++h) {
    for (Attention* one : {&it, &seen}) store(GetParam(), one->query.at(h, 0), 2);
  }
  for (int64_t j = 0; j < kInfinite; ++j) store(GetParam(), it.key.at(j, 0), -INFINITY);
  for (const IsaLevel level : levels()) {
    Matrix out = it.run(level, 0, 2, false), wanted = seen.run(level, 0, 2, true);
    for (int64_t k = 0; k < 16; ++k) {
      EXPECT_NEAR(out.get(1, k), wanted.get(1, k), 4 * ulp_of(GetParam())) << name_of(level);
    }
  }
  for (int64_t j = kInfinite; j < 100; ++j) store(GetParam(), it.key.at(j, 0), -INFINITY);
  for (const IsaLevel level : levels()) {
    Matrix none = it.run(level, 0, 2, false);
    for (int64_t k = 0; k < 16; ++k) EXPECT_EQ(none.get(1, k), 0.0f) << name_of(level);
  }
}

// --- many tokens

struct TokensAttention : Attention {
  TokensAttention(Element kind, int64_t tokens, int64_t keys, int64_t width)
      : Attention(kind, tokens, keys, width),
        mask(static_cast<size_t>(tokens * keys), 1),
        scratch(static_cast<size_t>(attend_scratch(keys, width))) {}

  // A token sees the keys up to its own, which is one of the last.
  void see_what_was_before() {
    for (int64_t i = 0; i < query.rows; ++i) {
      for (int64_t j = 0; j < key.rows; ++j) see(i, j, j <= key.rows - query.rows + i);
    }
  }
  void see(int64_t token, int64_t j, bool is_seen) {
    mask[static_cast<size_t>(token * key.rows + j)] = is_seen ? 1 : 0;
  }

  // Of some tokens, over the keys from first_key on.
  Matrix run(IsaLevel level, int64_t token, int64_t tokens, int64_t first_key = 0) {
    Matrix out(query.element, tokens, query.columns);
    AttendTokens call;
    call.query = query.at(token, 0);
    call.query_stride = query.stride();
    call.key = key.at(first_key, 0);
    call.key_stride = key.stride();
    call.value = value.at(first_key, 0);
    call.value_stride = value.stride();
    call.mask = mask.data() + token * key.rows + first_key;
    call.mask_stride = key.rows;
    call.out = out.at(0, 0);
    call.out_stride = out.stride();
    call.tokens = tokens;
    call.keys = key.rows - first_key;
    call.width = query.columns;
    call.scale = scale;
    call.scratch = scratch.data();
    kernels_of(level).attend.tokens[static_cast<size_t>(query.element)](call);
    return out;
  }

  std::vector<double> exact_of_token(int64_t token) {
    const auto from = mask.begin() + token * key.rows;
    seen.assign(from, from + key.rows);
    return exact(token);
  }

  std::vector<uint8_t> mask;  // by token, then by key
  std::vector<float> scratch;
};

TEST_P(AttendTest, of_many_tokens_is_the_same_mean) {
  for (const auto& [tokens, keys, width] :
       {std::tuple{33, 33, 64}, {128, 128, 32}, {65, 200, 80}, {3, 40, 7}, {40, 41, 256}}) {
    TokensAttention it(GetParam(), tokens, keys, width);
    it.see_what_was_before();
    for (const IsaLevel level : levels()) {
      Matrix out = it.run(level, 0, tokens);
      for (int64_t i = 0; i < tokens; ++i) {
        const std::vector<double> exact = it.exact_of_token(i);
        for (int64_t k = 0; k < width; ++k) {
          const double wanted = exact[static_cast<size_t>(k)];
          ASSERT_NEAR(out.get(i, k), wanted, std::abs(wanted) * ulp_of(GetParam()) + 5e-6)
              << name_of(level) << ", token " << i << " of " << tokens << ", " << keys << " keys";
        }
        EXPECT_EQ(out.get(i, width), 0.0f);
      }
    }
  }
}

// The row contract.
TEST_P(AttendTest, a_token_is_the_same_alone_and_padding_before_the_keys_changes_nothing) {
  constexpr int64_t kTokens = 37, kKeys = 150, kPadding = 29;
  TokensAttention it(GetParam(), kTokens, kKeys, 48);
  it.see_what_was_before();
  for (int64_t i = 0; i < kTokens; ++i) {
    for (int64_t j = 0; j < kPadding; ++j) it.see(i, j, false);
  }
  for (const IsaLevel level : levels()) {
    Matrix together = it.run(level, 0, kTokens);
    EXPECT_EQ(it.run(level, 0, kTokens, kPadding).bytes, together.bytes) << name_of(level);
    for (int64_t i = 0; i < kTokens; ++i) {
      Matrix alone = it.run(level, i, 1);
      EXPECT_EQ(std::memcmp(alone.at(0, 0), together.at(i, 0), 48 * bytes_of(GetParam())), 0)
          << name_of(level) << ", token " << i;
    }
  }
}

TEST_P(AttendTest, of_many_tokens_each_has_the_values_that_it_sees_alone) {
  constexpr int64_t kTokens = 40, kKeys = 70;
  TokensAttention it(GetParam(), kTokens, kKeys, 16);
  it.see_what_was_before();
  for (int64_t j = 0; j < kKeys; ++j) it.see(5, j, false);
  for (const IsaLevel level : levels()) {
    TokensAttention strange = it;
    Matrix before = it.run(level, 0, kTokens);
    for (int64_t k = 0; k < 16; ++k) {
      EXPECT_EQ(before.get(5, k), 0.0f) << name_of(level);
      for (Matrix* one : {&strange.key, &strange.value}) {
        store(GetParam(), one->at(kKeys - 1, k), NAN);
      }
    }
    for (uint8_t& one : strange.mask) one *= 6;  // as clients' bytes may be
    Matrix after = strange.run(level, 0, kTokens);
    EXPECT_TRUE(std::isnan(after.get(kTokens - 1, 0))) << name_of(level);
    EXPECT_EQ(
        std::memcmp(before.at(0, 0), after.at(0, 0),
                    static_cast<size_t>((kTokens - 1) * before.stride()) * bytes_of(GetParam())),
        0)
        << name_of(level) << ", those that do not see the last key";
  }
}

TEST_P(AttendTest, of_many_tokens_scores_of_any_size_are_weighed) {
  TokensAttention it(GetParam(), 50, 100, 16);
  it.scale = 300;
  for (int64_t j = 0; j < 70; ++j) store(GetParam(), it.key.at(j, 0), -INFINITY);
  store(GetParam(), it.query.at(1, 0), 2);
  for (const IsaLevel level : levels()) {
    Matrix out = it.run(level, 0, 50);
    for (int64_t k = 0; k < 16; ++k) EXPECT_TRUE(std::isfinite(out.get(1, k))) << name_of(level);
  }
}

INSTANTIATE_TEST_SUITE_P(Elements, AttendTest, ::testing::ValuesIn(kAllElements),
                         [](const auto& one) { return name_of(one.param); });

}  // namespace
}  // namespace djinn::kernels
