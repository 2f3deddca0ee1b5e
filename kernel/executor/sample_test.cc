// SPDX-License-Identifier: Apache-2.0

#include "kernel/executor/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace djinn::exec {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

int32_t sampled(std::vector<float> logits, const SamplingRule& rule, uint64_t offset = 0,
                std::vector<int32_t> history = {}) {
  const auto token = sample(logits, history, rule, offset);
  EXPECT_TRUE(token);
  return token ? *token : -1;
}

// Which tokens ever come out in many draws.
std::map<int32_t, int> drawn(const std::vector<float>& logits, SamplingRule rule) {
  rule.greedy = false;
  std::map<int32_t, int> counts;
  for (uint64_t offset = 0; offset < 4000; ++offset) ++counts[sampled(logits, rule, offset)];
  return counts;
}

std::vector<int32_t> support(const std::vector<float>& logits, const SamplingRule& rule) {
  std::vector<int32_t> tokens;
  for (const auto& [token, count] : drawn(logits, rule)) tokens.push_back(token);
  return tokens;
}

// Known answers of Random123's kat_vectors.
TEST(Philox, gives_the_known_answers_of_its_authors) {
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32_10({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, uniform_stays_below_one_and_depends_on_seed_and_offset) {
  double sum = 0;
  for (uint64_t offset = 0; offset < 10000; ++offset) {
    const float value = philox_uniform(7, offset);
    ASSERT_GE(value, 0.0f);
    ASSERT_LT(value, 1.0f);
    sum += value;
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.02);
  EXPECT_NE(philox_uniform(7, 0), philox_uniform(8, 0));
  EXPECT_NE(philox_uniform(7, 0), philox_uniform(7, uint64_t{1} << 32));
}

TEST(Sample, greedy_takes_the_lowest_of_equals) {
  EXPECT_EQ(sampled({1, 3, 3, 2}, {}), 1);
  EXPECT_EQ(sampled({-kInfinity, -5, -kInfinity}, {}), 1);
}

TEST(Sample, greedy_is_argmax_of_what_is_no_number) {
  EXPECT_EQ(sampled({NAN, NAN, NAN}, {}), 0);
  EXPECT_EQ(sampled({5, kInfinity, NAN, NAN}, {}), 2);  // NaN is above all, and the first counts
  EXPECT_EQ(sampled({-kInfinity, NAN}, {}), 1);
  EXPECT_EQ(sampled({-kInfinity, -kInfinity}, {}), 0);
  SamplingRule rule;
  rule.repetition_penalty = 2.0f;
  EXPECT_EQ(sampled({1, NAN, NAN}, rule, 0, {1}), 1);
}

TEST(Sample, greedy_heeds_the_repetition_penalty_once_per_token) {
  SamplingRule rule;
  rule.repetition_penalty = 2.0f;
  EXPECT_EQ(sampled({4, 3}, rule, 0, {0}), 1);
  EXPECT_EQ(sampled({4, 1.5}, rule, 0, {0, 0, 0}), 0);  // 2 and not 0.5
  EXPECT_EQ(sampled({-1, -1.5}, rule, 0, {0}), 1);      // a negative logit is multiplied
  EXPECT_EQ(sampled({4, 3}, rule, 0, {-1, 2, 99}), 0);  // strangers are no index
}

TEST(Sample, the_same_seed_and_offset_give_the_same_token) {
  SamplingRule rule;
  rule.greedy = false;
  rule.seed = 42;
  const std::vector<float> logits{0.1f, 0.2f, 0.3f, 0.4f, 0.5f};
  for (uint64_t offset = 0; offset < 50; ++offset) {
    EXPECT_EQ(sampled(logits, rule, offset), sampled(logits, rule, offset));
  }
}

TEST(Sample, draws_in_proportion_to_the_probabilities) {
  const auto counts = drawn({std::log(1.0f), std::log(2.0f), std::log(5.0f)}, {});
  EXPECT_NEAR(counts.at(0) / 4000.0, 0.125, 0.03);
  EXPECT_NEAR(counts.at(1) / 4000.0, 0.25, 0.03);
  EXPECT_NEAR(counts.at(2) / 4000.0, 0.625, 0.03);
}

TEST(Sample, temperature_sharpens) {
  SamplingRule rule;
  rule.temperature = 0.05f;
  EXPECT_EQ(support({0, 1, 0.5}, rule), (std::vector<int32_t>{1}));
}

TEST(Sample, top_k_keeps_ties_with_the_last) {
  SamplingRule rule;
  rule.top_k = 2;
  EXPECT_EQ(support({3, 2, 2, 1}, rule), (std::vector<int32_t>{0, 1, 2}));
  rule.top_k = 1;
  EXPECT_EQ(support({3, 2, 2, 1}, rule), (std::vector<int32_t>{0}));
  rule.top_k = 99;
  EXPECT_EQ(support({3, 2, 2, 1}, rule), (std::vector<int32_t>{0, 1, 2, 3}));
}

TEST(Sample, top_p_keeps_the_smallest_set_that_reaches_it) {
  const std::vector<float> logits{std::log(0.5f), std::log(0.3f), std::log(0.15f), std::log(0.05f)};
  SamplingRule rule;
  rule.top_p = 0.7f;
  EXPECT_EQ(support(logits, rule), (std::vector<int32_t>{0, 1}));
  rule.top_p = 0.9f;
  EXPECT_EQ(support(logits, rule), (std::vector<int32_t>{0, 1, 2}));
  rule.top_p = 1e-6f;
  EXPECT_EQ(support(logits, rule), (std::vector<int32_t>{0}));
}

// The tokens that the rule leaves.
std::vector<int32_t> left(std::vector<float> logits, const SamplingRule& rule) {
  EXPECT_TRUE(sample(logits, {}, rule, 0));
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isfinite(logits[i])) tokens.push_back(static_cast<int32_t>(i));
  }
  return tokens;
}

// As TopPLogitsWarper does it: all are sorted.
std::vector<int32_t> nucleus(const std::vector<float>& logits, double top_p) {
  const float top = *std::ranges::max_element(logits);
  std::vector<float> weights;
  double total = 0;
  for (const float logit : logits) {
    weights.push_back(std::exp(logit - top));
    total += weights.back();
  }
  for (float& weight : weights) weight = static_cast<float>(weight / total);
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int32_t token) { return logits[size_t(token)]; });
  double sum = 0;
  size_t removed = 0;
  for (; removed + 1 < order.size(); ++removed) {
    sum += weights[size_t(order[removed])];
    if (static_cast<float>(sum) > static_cast<float>(1.0 - top_p)) break;
  }
  order.erase(order.begin(), order.begin() + ptrdiff_t(removed));
  std::ranges::sort(order);
  return order;
}

TEST(Sample, top_p_keeps_what_a_sort_of_all_keeps) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 3000; ++round) {
    std::vector<float> logits(1 + random() % 400);
    const float spread = std::array{0.01f, 1.0f, 8.0f}[random() % 3];
    const bool coarse = random() % 2 == 0;  // then many are equal, and zeros have both signs
    for (float& logit : logits) {
      logit = spread * normal(random);
      if (coarse) logit = std::copysign(std::round(std::abs(logit)), logit);
    }
    SamplingRule rule;
    rule.greedy = false;
    rule.top_p = std::array{1e-6f, 0.1f, 0.5f, 0.9f, 0.95f, 0.999f}[random() % 6];
    ASSERT_EQ(left(logits, rule), nucleus(logits, std::stod(std::to_string(rule.top_p))))
        << "round " << round << ", " << logits.size() << " logits, top_p " << rule.top_p;
  }
}

TEST(Sample, min_p_removes_what_is_far_below_the_likeliest) {
  const std::vector<float> logits{std::log(0.6f), std::log(0.3f), std::log(0.1f)};
  SamplingRule rule;
  rule.min_p = 0.4f;
  EXPECT_EQ(support(logits, rule), (std::vector<int32_t>{0, 1}));
}

TEST(Sample, temperature_comes_before_top_p) {
  SamplingRule rule;
  rule.top_p = 0.8f;
  const std::vector<float> logits{2, 1, 0};  // 0.665, 0.245, 0.09
  EXPECT_EQ(support(logits, rule), (std::vector<int32_t>{0, 1}));
  rule.temperature = 10.0f;  // nearly even: all three are needed for 0.8
  EXPECT_EQ(support(logits, rule), (std::vector<int32_t>{0, 1, 2}));
}

TEST(Sample, refuses_rows_and_rules_that_mean_nothing) {
  const auto code = [](std::vector<float> logits, const SamplingRule& rule) {
    const auto token = sample(logits, {}, rule, 0);
    return token ? ErrorCode::kOk : token.error().code;
  };
  SamplingRule draw;
  draw.greedy = false;
  EXPECT_EQ(code({}, {}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({-kInfinity, -kInfinity}, draw), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({1, NAN}, draw), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({1, kInfinity}, draw), ErrorCode::kInvalidArgument);
  SamplingRule rule;
  rule.temperature = 0;
  EXPECT_EQ(code({1}, rule), ErrorCode::kInvalidArgument);
  rule = {};
  rule.top_p = 0;
  EXPECT_EQ(code({1}, rule), ErrorCode::kInvalidArgument);
  rule = {};
  rule.min_p = 1;
  EXPECT_EQ(code({1}, rule), ErrorCode::kInvalidArgument);
  rule = {};
  rule.repetition_penalty = NAN;
  EXPECT_EQ(code({1}, rule), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace djinn::exec
