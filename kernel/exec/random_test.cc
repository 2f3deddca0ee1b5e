// SPDX-License-Identifier: Apache-2.0

// The random operators, as admitted graphs call them.
#include "kernel/srg/random.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "kernel/exec/executor_for_tests.h"
#include "kernel/exec/torch_headers.h"
#include "kernel/executor/sample.h"

namespace djinn::exec {
namespace {

class Random : public ::testing::Test {
 protected:
  // The result of a call without tensors; undefined if it was refused.
  at::Tensor make(const char* op, std::vector<srg::Argument> arguments) {
    GraphBuilder b;
    b.output(b.call(op, std::move(arguments)));
    return run(b, {});
  }

  at::Tensor make_from(const char* op, const at::Tensor& x, std::vector<srg::Argument> more) {
    GraphBuilder b;
    std::vector<srg::Expr> sizes(x.sizes().begin(), x.sizes().end());
    more.insert(more.begin(), arg(b.input("x", from_torch(x.scalar_type()), std::move(sizes))));
    b.output(b.call(op, std::move(more)));
    return run(b, {x});
  }

  at::Tensor run(GraphBuilder& b, std::vector<at::Tensor> tensors) {
    error = message_of(world.admit(b.graph));
    if (error.empty()) error = message_of(world.run({}, std::move(tensors)));
    return error.empty() ? world.output(0) : at::Tensor();
  }

  World world{{}};
  std::string error;
};

double mean(const at::Tensor& x) {
  return x.to(at::kDouble).mean().item<double>();
}
double moment(const at::Tensor& x, double power) {
  return x.to(at::kDouble).pow(power).mean().item<double>();
}

TEST_F(Random, uniform_numbers_have_the_moments_of_uniform_numbers) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    const at::Tensor x =
        make("djinn::rand", {integers({300, 333}), arg(dtype), integer(7), integer(3)});
    ASSERT_EQ(error, "");
    EXPECT_NEAR(mean(x), 0.5, 0.005);
    EXPECT_NEAR(moment(x, 2), 1.0 / 3, 0.005);
    EXPECT_GE(x.min().item<double>(), 0);
    EXPECT_LT(x.max().item<double>(), 1);
  }
}

TEST_F(Random, normal_numbers_have_the_moments_of_normal_numbers) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16}) {
    const at::Tensor x =
        make("djinn::randn", {integers({100001}), arg(dtype), integer(7), integer(3)});
    ASSERT_EQ(error, "");
    EXPECT_NEAR(mean(x), 0, 0.02);
    EXPECT_NEAR(moment(x, 2), 1, 0.02);
    EXPECT_NEAR(moment(x, 3), 0, 0.06);
    EXPECT_NEAR(moment(x, 4), 3, 0.15);
    EXPECT_TRUE(x.isfinite().all().item<bool>());
  }
}

TEST_F(Random, integers_fill_their_range_evenly) {
  const at::Tensor x = make("djinn::randint", {integer(-3), integer(5), integers({80000}),
                                               arg(DType::kInt8), integer(1), integer(0)});
  ASSERT_EQ(error, "");
  for (int64_t value = -3; value < 5; ++value) {
    EXPECT_NEAR(x.eq(value).sum().item<int64_t>(), 10000, 500) << value;
  }
  EXPECT_FALSE(make("djinn::randint", {integer(0), integer(300), integers({4}), arg(DType::kInt8),
                                       integer(1), integer(0)})
                   .defined());
  EXPECT_FALSE(make("djinn::randint", {integer(3), integer(3), integers({4}), arg(DType::kInt64),
                                       integer(1), integer(0)})
                   .defined());
  make("djinn::randint", {integer(INT64_MIN), integer(INT64_MAX), integers({4}), arg(DType::kInt64),
                          integer(1), integer(0)});
  EXPECT_EQ(error, "");
}

TEST_F(Random, a_permutation_has_each_number_once_and_every_order_is_as_likely) {
  std::map<std::vector<int64_t>, int> seen;
  for (int64_t i = 0; i < 1200; ++i) {
    const at::Tensor x =
        make("djinn::randperm", {integer(3), arg(DType::kInt64), integer(5), integer(2 * i)});
    ++seen[{x[0].item<int64_t>(), x[1].item<int64_t>(), x[2].item<int64_t>()}];
  }
  ASSERT_EQ(seen.size(), 6u);
  for (const auto& [order, count] : seen) EXPECT_NEAR(count, 200, 60);
  const at::Tensor large =
      make("djinn::randperm", {integer(1001), arg(DType::kInt32), integer(5), integer(0)});
  EXPECT_TRUE(same_bytes(std::get<0>(large.sort()), at::arange(1001, at::kInt)));
  EXPECT_FALSE(make("djinn::randperm", {integer(300), arg(DType::kUInt8), integer(5), integer(0)})
                   .defined());
}

TEST_F(Random, decisions_are_as_likely_as_their_probabilities_say) {
  const at::Tensor p = at::zeros({4, 20000});
  for (int64_t i = 0; i < 4; ++i) p[i].fill_(static_cast<double>(i) / 3);
  const at::Tensor x = make_from("djinn::bernoulli", p, {integer(9), integer(1)});
  ASSERT_EQ(error, "");
  EXPECT_EQ(x.scalar_type(), at::kFloat);
  EXPECT_EQ(mean(x[0]), 0);
  EXPECT_NEAR(mean(x[1]), 1.0 / 3, 0.015);
  EXPECT_EQ(mean(x[3]), 1);
  EXPECT_FALSE(
      make_from("djinn::bernoulli", at::full({3}, 1.5), {integer(9), integer(1)}).defined());
  EXPECT_FALSE(
      make_from("djinn::bernoulli", at::full({3}, NAN), {integer(9), integer(1)}).defined());
}

TEST_F(Random, one_sample_a_row_is_what_sample_draws) {
  const at::Tensor logits = noise({50, 40}, 3).mul(4);
  SamplingRule rule;
  rule.greedy = false;
  rule.seed = 77;
  // What sample() makes of logits on its way: the weights of its draw.
  const at::Tensor weights = at::zeros({50, 40});
  for (int64_t r = 0; r < 50; ++r) {
    double sum = 0;
    const float top = logits[r].max().item<float>();
    for (int64_t i = 0; i < 40; ++i) {
      const float weight = std::exp(logits[r][i].item<float>() - top);
      sum += weight;
      weights[r][i] = weight;
    }
    for (int64_t i = 0; i < 40; ++i) {
      weights[r][i] = static_cast<float>(weights[r][i].item<float>() / sum);
    }
  }
  const at::Tensor drawn = make_from("djinn::multinomial", weights,
                                     {integer(1), arg(false), integer(77), integer(1000)});
  ASSERT_EQ(error, "");
  for (int64_t r = 0; r < 50; ++r) {
    const at::Tensor scratch = logits[r].clone();
    const auto token =
        sample({scratch.mutable_data_ptr<float>(), 40}, {}, rule, static_cast<uint64_t>(1000 + r));
    EXPECT_EQ(drawn[r][0].item<int64_t>(), *token);
  }
}

TEST_F(Random, several_samples_follow_the_weights_and_without_replacement_differ) {
  const at::Tensor weights = at::zeros({3});
  for (int64_t i = 0; i < 3; ++i) weights[i] = i;  // 0, 1, 2: need not sum to 1
  const at::Tensor many =
      make_from("djinn::multinomial", weights, {integer(30000), arg(true), integer(2), integer(0)});
  ASSERT_EQ(error, "");
  EXPECT_EQ(many.eq(0).sum().item<int64_t>(), 0);
  EXPECT_NEAR(mean(many.eq(2)), 2.0 / 3, 0.01);
  const at::Tensor all = make_from("djinn::multinomial", at::full({20, 9}, 1.0),
                                   {integer(9), arg(false), integer(2), integer(0)});
  for (int64_t r = 0; r < 20; ++r) {
    EXPECT_TRUE(same_bytes(std::get<0>(all[r].sort()), at::arange(9)));
  }
  const auto refused = [&](const at::Tensor& w, int64_t samples, bool replacement) {
    return !make_from("djinn::multinomial", w,
                      {integer(samples), arg(replacement), integer(2), integer(0)})
                .defined();
  };
  EXPECT_TRUE(refused(weights, 3, false));  // two are possible
  EXPECT_TRUE(refused(weights, 4, false));
  EXPECT_TRUE(refused(at::zeros({3}), 1, true));
  EXPECT_TRUE(refused(at::full({3}, -1.0), 1, true));
  EXPECT_TRUE(refused(at::full({3}, INFINITY), 1, true));
  EXPECT_TRUE(refused(at::full({3}, 1).to(at::kLong), 1, true));
}

TEST_F(Random, what_is_drawn_depends_on_seed_offset_and_index_alone) {
  const auto draw = [&](int64_t seed, int64_t offset, int64_t count, int threads) {
    LaneOptions options;
    options.threads = threads;
    options.planned = false;
    world.lane = *executor().make_lane(std::move(options));
    return make("djinn::randn",
                {integers({count}), arg(DType::kFloat32), integer(seed), integer(offset)});
  };
  const at::Tensor whole = draw(5, 10, 50001, 1);
  EXPECT_TRUE(same_bytes(whole, draw(5, 10, 50001, 2)));
  EXPECT_TRUE(same_bytes(whole.narrow(0, 0, 7), draw(5, 10, 7, 1)));
  EXPECT_TRUE(same_bytes(whole.narrow(0, 20, 30), draw(5, 20, 30, 1)));
  EXPECT_FALSE(same_bytes(whole, draw(6, 10, 50001, 1)));
}

TEST_F(Random, a_call_uses_as_many_offsets_as_the_clients_are_told) {
  EXPECT_EQ(srg::offsets_used("djinn::rand", 0), 0u);
  EXPECT_EQ(srg::offsets_used("djinn::rand", 1), 1u);
  EXPECT_EQ(srg::offsets_used("djinn::randn", 4), 2u);
  EXPECT_EQ(srg::offsets_used("djinn::multinomial", 4), 4u);
  EXPECT_EQ(srg::offsets_used("aten::relu", 4), 0u);
  // The call after it at the next offset has nothing in common with it.
  const auto draw = [&](int64_t offset) {
    return make("djinn::randint", {integer(0), integer(INT64_MAX), integers({9}),
                                   arg(DType::kInt64), integer(5), integer(offset)});
  };
  const at::Tensor first = draw(0);
  const at::Tensor second = draw(static_cast<int64_t>(srg::offsets_used("djinn::randint", 9)));
  std::set<int64_t> numbers;
  for (int64_t i = 0; i < 9; ++i) numbers.insert(first[i].item<int64_t>());
  for (int64_t i = 0; i < 9; ++i) numbers.insert(second[i].item<int64_t>());
  EXPECT_EQ(numbers.size(), 18u);
}

TEST_F(Random, integers_cannot_be_uniform_in_the_unit_interval) {
  EXPECT_FALSE(
      make("djinn::rand", {integers({2}), arg(DType::kInt64), integer(1), integer(0)}).defined());
}

TEST_F(Random, shapes_are_known_at_admission) {
  GraphBuilder b;
  const srg::Expr n = b.symbol("n", 1, 9);
  b.output(b.call("djinn::rand", {integers({n, 4}), arg(DType::kFloat32), integer(1), integer(0)}));
  ASSERT_EQ(message_of(world.admit(b.graph)), "");
  EXPECT_EQ(world.program->outputs()[0].sizes, (std::vector<srg::Expr>{n, 4}));
}

}  // namespace
}  // namespace djinn::exec
