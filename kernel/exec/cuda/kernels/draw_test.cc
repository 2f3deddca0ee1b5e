// SPDX-License-Identifier: Apache-2.0

// The kernel of a Draw on the emulator, against the host's sampling (kernel/executor/sample.h).
#include "kernel/exec/cuda/kernels/draw.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernel/exec/cuda/kernels/kernels_for_tests.h"
#include "kernel/executor/sample.h"

namespace djinn::cuda {
namespace {

using emulator::Order;

exec::SamplingRule on_the_host(const DrawRule& rule) {
  return {rule.greedy != 0, rule.temperature,        rule.top_k, rule.top_p,
          rule.min_p,       rule.repetition_penalty, rule.seed};
}

class DrawRows {
 public:
  DrawRows(int64_t rows, int32_t tokens, uint32_t seed = 1)
      : logits_(Element::kFloat32, rows, tokens),
        rules_(static_cast<size_t>(rows)),
        lengths_(static_cast<size_t>(rows)),
        history_(static_cast<size_t>(rows * kHistory), -7) {
    std::mt19937 random(seed);
    logits_.fill(random, 3);
    for (size_t m = 0; m < rules_.size(); ++m) {
      rules_[m].seed = 77 + m;
      rules_[m].offset = (uint64_t{1} << 40) + m;
      lengths_[m] = static_cast<int32_t>(m) % kHistory;
      for (int32_t i = 0; i < lengths_[m]; ++i) {
        // One again and again, the likeliest, and one that no vocabulary has.
        history_[m * kHistory + static_cast<size_t>(i)] = i % 3 == 0 ? 4
                                                          : i % 3 == 1
                                                              ? likeliest(static_cast<int64_t>(m))
                                                              : tokens + 9;
      }
    }
  }

  [[nodiscard]] int32_t likeliest(int64_t row) const {
    int64_t best = 0;
    for (int64_t i = 1; i < logits_.columns(); ++i) {
      if (logits_.get(row, i) > logits_.get(row, best)) best = i;
    }
    return static_cast<int32_t>(best);
  }

  Draw call(std::vector<int32_t>& drawn) {
    Draw call;
    call.logits = reinterpret_cast<const float*>(logits_.at(0, 0));
    call.rules = rules_.data();
    call.history = history_.data();
    call.lengths = lengths_.data();
    call.drawn = drawn.data();
    call.logits_stride = logits_.stride();
    call.history_stride = kHistory;
    call.rows = static_cast<int32_t>(logits_.rows());
    call.tokens = static_cast<int32_t>(logits_.columns());
    return call;
  }
  std::vector<int32_t> run(Order order = Order::kAscending) {
    std::vector<int32_t> drawn(rules_.size(), -99);
    launch(call(drawn), order);
    return drawn;
  }

  // kNoToken where the host refuses.
  [[nodiscard]] int32_t of_host(size_t row) const {
    std::vector<float> logits;
    for (int64_t i = 0; i < logits_.columns(); ++i) {
      logits.push_back(static_cast<float>(logits_.get(static_cast<int64_t>(row), i)));
    }
    const std::span<const int32_t> history(history_.data() + row * kHistory,
                                           static_cast<size_t>(lengths_[row]));
    const Result<int32_t> token =
        exec::sample(logits, history, on_the_host(rules_[row]),
                     rules_[row].offset + static_cast<uint64_t>(lengths_[row]));
    return token.ok() ? *token : kNoToken;
  }
  void expect_as_the_host(const std::string& what) {
    const std::vector<int32_t> drawn = run();
    EXPECT_EQ(run(Order::kDescending), drawn) << what;
    for (size_t m = 0; m < drawn.size(); ++m) {
      EXPECT_EQ(drawn[m], of_host(m)) << what << ", row " << m;
    }
  }
  void each_rule(const std::function<void(DrawRule&)>& change) {
    for (DrawRule& rule : rules_) change(rule);
  }

  static constexpr int32_t kHistory = 11;
  Array logits_;
  std::vector<DrawRule> rules_;
  std::vector<int32_t> lengths_, history_;
};

TEST(DrawTest, greedy_is_the_first_of_the_greatest) {
  for (const int32_t tokens : {1, 31, 1024, 5000}) {
    DrawRows rows(3, tokens);
    rows.logits_.set(1, tokens / 3, 50);
    rows.logits_.set(1, tokens - 1, 50);
    rows.expect_as_the_host(std::to_string(tokens) + " tokens");
  }
}

TEST(DrawTest, greedy_takes_a_number_that_is_none_and_the_first_of_both_zeros) {
  DrawRows rows(3, 100);
  rows.logits_.set(0, 60, NAN);
  rows.logits_.set(0, 61, -NAN);
  for (int64_t i = 0; i < 100; ++i) rows.logits_.set(1, i, i < 20 ? -1.0f : i < 30 ? -0.0f : 0.0f);
  for (int64_t i = 0; i < 100; ++i) rows.logits_.set(2, i, -INFINITY);
  EXPECT_EQ(rows.run(), (std::vector<int32_t>{60, 20, 0}));
}

TEST(DrawTest, what_is_drawn_is_what_the_host_draws) {
  const std::pair<const char*, std::function<void(DrawRule&)>> kRules[] = {
      {"plain", [](DrawRule&) {}},
      {"temperature", [](DrawRule& rule) { rule.temperature = 0.7f; }},
      {"top-k", [](DrawRule& rule) { rule.top_k = 20; }},
      {"top-k of one", [](DrawRule& rule) { rule.top_k = 1; }},
      {"top-k of all", [](DrawRule& rule) { rule.top_k = 1 << 20; }},
      {"top-p", [](DrawRule& rule) { rule.top_p = 0.9f; }},
      {"top-p of one", [](DrawRule& rule) { rule.top_p = 1e-9f; }},
      {"min-p", [](DrawRule& rule) { rule.min_p = 0.05f; }},
      {"penalty", [](DrawRule& rule) { rule.repetition_penalty = 1.7f; }},
      {"all",
       [](DrawRule& rule) { rule = {rule.seed, rule.offset, 1.3f, 0.8f, 0.02f, 1.2f, 300, 0}; }}};
  for (const auto& [name, change] : kRules) {
    DrawRows rows(4, 1501);
    rows.each_rule([&](DrawRule& rule) {
      rule.greedy = 0;
      change(rule);
    });
    rows.expect_as_the_host(name);
  }
}

TEST(DrawTest, a_penalty_holds_for_the_likeliest_too) {
  DrawRows rows(9, 900);
  rows.each_rule([](DrawRule& rule) { rule.repetition_penalty = 30; });
  rows.expect_as_the_host("greedy with a penalty");
}

TEST(DrawTest, once_tokens_are_drawn_as_often_as_they_are_likely) {
  constexpr int64_t kDraws = 48;
  DrawRows rows(kDraws, 8);
  for (int64_t m = 0; m < kDraws; ++m) {
    for (int64_t i = 0; i < 8; ++i) rows.logits_.set(m, i, i == 5 ? 0.0f : -2.0f);
  }
  rows.each_rule([](DrawRule& rule) { rule.greedy = 0; });
  const std::vector<int32_t> drawn = rows.run();
  const double likely = 1 / (1 + 7 * std::exp(-2.0));
  const auto fives = std::count(drawn.begin(), drawn.end(), 5);
  EXPECT_NEAR(static_cast<double>(fives), kDraws * likely, 4 * std::sqrt(kDraws) / 2);
}

TEST(DrawTest, from_a_row_with_a_number_that_is_none_nothing_is_drawn) {
  DrawRows rows(5, 300);
  rows.each_rule([](DrawRule& rule) { rule.greedy = 0; });
  rows.logits_.set(0, 299, NAN);
  rows.logits_.set(1, 0, INFINITY);
  for (int64_t i = 0; i < 300; ++i) rows.logits_.set(2, i, -INFINITY);
  for (int64_t i = 0; i < 300; ++i) {
    if (i != 123) rows.logits_.set(3, i, -INFINITY);
  }
  const std::vector<int32_t> drawn = rows.run();
  EXPECT_EQ(std::vector(drawn.begin(), drawn.begin() + 4),
            (std::vector<int32_t>{kNoToken, kNoToken, kNoToken, 123}));
  EXPECT_EQ(drawn[4], rows.of_host(4));
}

// The row contract.
TEST(DrawTest, once_a_row_draws_the_same_alone) {
  DrawRows rows(6, 1500);
  rows.each_rule([](DrawRule& rule) { rule = {rule.seed, rule.offset, 1, 0.95f, 0, 1.1f, 50, 0}; });
  const std::vector<int32_t> all = rows.run();
  for (size_t m = 0; m < all.size(); ++m) {
    std::vector<int32_t> drawn(all.size(), -99);
    Draw call = rows.call(drawn);
    call.logits += static_cast<int64_t>(m) * call.logits_stride;
    call.rules += m;
    call.history += m * static_cast<size_t>(call.history_stride);
    call.lengths += m;
    call.rows = 1;
    launch(call, Order::kAscending);
    EXPECT_EQ(drawn[0], all[m]);
    EXPECT_EQ(drawn[1], -99);
  }
}

TEST(DrawLaunch, what_the_kernel_does_not_take_is_refused) {
  DrawRows rows(1, 10);
  std::vector<int32_t> drawn(1);
  Draw call = rows.call(drawn);
  ASSERT_TRUE(launch_of(call).ok());
  call.tokens = kDrawTokensMax;
  EXPECT_LE(launch_of(call)->shared_bytes, emulator::kSharedBytesMax);
  call.tokens = kDrawTokensMax + 1;
  EXPECT_FALSE(launch_of(call).ok());
  call = rows.call(drawn);
  call.rows = 0;
  EXPECT_FALSE(launch_of(call).ok());
  call = rows.call(drawn);
  call.rules = nullptr;
  EXPECT_FALSE(launch_of(call).ok());
}

}  // namespace
}  // namespace djinn::cuda
