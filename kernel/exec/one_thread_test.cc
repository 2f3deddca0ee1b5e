// SPDX-License-Identifier: Apache-2.0

// Calls whose threads would race give what one thread gives, each time.
#include "kernel/exec/one_thread.h"

#include <ATen/ops/mm.h>
#include <gtest/gtest.h>

#include "kernel/exec/executor_for_tests.h"
#include "kernel/srg/text.h"

namespace djinn::exec {
namespace {

constexpr int64_t kWrites = int64_t{1} << 17;  // as many as kernels share among threads, and more
constexpr int kRuns = 64;

const std::vector<std::string> kCalls{
    "aten::index_copy_(%x, 0, %i, %s)", "aten::index_copy(%x, 0, %i, %s)",
    "aten::index_put_(%x, [%i], %s)",   "aten::index_put(%x, [%i], %s)",
    "aten::put_(%x, %i, %s)",           "aten::put(%x, %i, %s)",
    "aten::put_(%x, %i, %s, true)",     "aten::index_put_(%x, [%i], %s, true)",
};

srg::Graph graph_of(const std::string& call) {
  const std::string n = std::to_string(kWrites);
  auto graph =
      srg::parse_text("srg 1 \"\"\ninput %x \"x\" : float32[4]\ninput %i \"i\" : int64[" + n +
                      "]\ninput %s \"s\" : float32[" + n + "]\n%r = " + call + "\noutput %r\n");
  DJINN_ASSERT(graph);
  return *std::move(graph);
}

class OneThreadTest : public ::testing::Test {
 protected:
  // Of the call with the 4 elements named in turn.
  at::Tensor result(const std::string& call) {
    EXPECT_TRUE(world.admit(graph_of(call)).ok()) << call;
    std::vector<int64_t> places(kWrites);
    for (int64_t i = 0; i < kWrites; ++i) places[static_cast<size_t>(i)] = i % 4;
    const at::Tensor x = at::zeros({4});  // an output may be a view of it
    const Outcome<void> ran =
        world.run({}, {x, int64s({kWrites}, places), noise({kWrites}, 7)}, true);
    EXPECT_TRUE(ran.ok()) << call << ": " << ran.error().message;
    return world.output(0);
  }
  World world{{}};
};

TEST_F(OneThreadTest, an_element_that_is_written_twice_has_what_was_written_last) {
  const at::Tensor last = noise({kWrites}, 7).slice(0, kWrites - 4);
  for (const std::string& call : kCalls) {
    if (call.ends_with("true)")) continue;
    for (int run = 0; run < kRuns; ++run) EXPECT_TRUE(same_bytes(result(call), last)) << call;
  }
}

TEST_F(OneThreadTest, a_sum_is_rounded_in_the_order_of_the_index) {
  at::Tensor sums = at::zeros({4});
  const at::Tensor terms = noise({kWrites}, 7);
  for (int64_t i = 0; i < kWrites; ++i) {
    sums.mutable_data_ptr<float>()[i % 4] += terms.const_data_ptr<float>()[i];
  }
  for (const std::string& call : kCalls) {
    if (!call.ends_with("true)")) continue;
    for (int run = 0; run < kRuns; ++run) EXPECT_TRUE(same_bytes(result(call), sums)) << call;
  }
}

TEST_F(OneThreadTest, what_is_written_over_its_own_input_is_written_in_order) {
  constexpr int64_t kRows = 512, kColumns = 513, kDown = 128;  // a column beside keeps them apart
  auto graph = srg::parse_text(
      "srg 1 \"\"\ninput %x \"x\" : float32[640, 514]\n"
      "%a = aten::slice.Tensor(%x, 0, 128, 640)\n%to = aten::slice.Tensor(%a, 1, 0, 513)\n"
      "%b = aten::slice.Tensor(%x, 0, 0, 512)\n%from = aten::slice.Tensor(%b, 1, 0, 513)\n"
      "%r = aten::copy_(%to, %from)\noutput %r\n");
  ASSERT_TRUE(graph.ok());
  const Status admitted = world.admit(*std::move(graph));
  ASSERT_TRUE(admitted.ok()) << admitted.error().message;
  const at::Tensor before = noise({kRows + kDown, kColumns + 1}, 7);
  const at::Tensor first = before.slice(0, 0, kDown).slice(1, 0, kColumns);
  for (int run = 0; run < kRuns; ++run) {
    const at::Tensor x = before.clone();  // outputs are views of it
    const Outcome<void> ran = world.run({}, {x}, true);
    ASSERT_TRUE(ran.ok()) << ran.error().message;
    for (int64_t row = 0; row < kRows; row += kDown) {
      EXPECT_TRUE(same_bytes(world.output(0).slice(0, row, row + kDown), first)) << row;
    }
  }
}

TEST_F(OneThreadTest, two_views_meet_where_they_lie_askew) {
  const at::Tensor all = at::zeros({8, 4});
  const auto& add = c10::Dispatcher::singleton().findSchemaOrThrow("aten::add_", "Tensor").schema();
  const auto meet = [&](const at::Tensor& to, const at::Tensor& from) {
    return writes_over_inputs(add, {to, from, 1});
  };
  EXPECT_TRUE(meet(all.slice(0, 1), all.slice(0, 0, 7)));
  EXPECT_TRUE(meet(all.slice(0, 0, 1), all.slice(0, 0, 1).slice(1, 0, 1)));
  EXPECT_TRUE(meet(at::zeros({1}).expand({4}), at::zeros({4})));
  EXPECT_TRUE(meet(all.as_strided({2, 4}, {2, 1}), at::zeros({2, 4})));
  EXPECT_FALSE(meet(all.slice(1, 0, 2).t(), at::zeros({2, 8})));
  EXPECT_FALSE(meet(all, all)) << "each element is its own";
  EXPECT_FALSE(meet(all.slice(0, 0, 4), all.slice(0, 4)));
  EXPECT_FALSE(meet(all, at::zeros({8, 4})));
  const auto& each =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::_foreach_add_", "List").schema();
  const std::vector<at::Tensor> upper{all.slice(0, 1)}, lower{all.slice(0, 0, 7)};
  EXPECT_TRUE(writes_over_inputs(each, {upper, lower, 1}));
  EXPECT_FALSE(writes_over_inputs(each, {upper, upper, 1}));
}

TEST_F(OneThreadTest, a_mask_and_one_index_leave_the_threads_as_they_are) {
  const Race race = race_of("aten::index_put_");
  const auto races = [race](const at::Tensor& index) {
    c10::List<std::optional<at::Tensor>> indices;
    indices.push_back(index);
    return race({at::zeros({4}), indices, at::zeros({1}), false});
  };
  EXPECT_TRUE(races(int64s({2}, {1, 1})));
  EXPECT_FALSE(races(int64s({1}, {1})));
  EXPECT_FALSE(races(at::zeros({4}, at::kBool)));
  EXPECT_EQ(race_of("aten::add.Tensor"), nullptr);
}

at::Tensor computed(const char* op, const char* overload, std::vector<c10::IValue> stack,
                    int threads) {
  at::set_num_threads(threads);
  c10::Dispatcher::singleton().findSchemaOrThrow(op, overload).callBoxed(&stack);
  return stack[0].toTensor();
}

TEST_F(OneThreadTest, what_splits_nothing_has_its_bits_with_any_number_of_threads) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor x = noise({17, 20001}, 7, type).abs();
    for (const char* const op : {"aten::cos", "aten::erf", "aten::exp", "aten::neg", "aten::log",
                                 "aten::reciprocal", "aten::sin", "aten::sqrt", "aten::tanh"}) {
      EXPECT_TRUE(keeps_bits(op)) << op;
      EXPECT_EQ(splits_of(op, {x}), Splits::kNever) << op;
      const at::Tensor alone = computed(op, "", {x}, 1);
      for (const int threads : {2, 3, 7}) {
        EXPECT_TRUE(same_bytes(computed(op, "", {x}, threads), alone)) << op << ' ' << threads;
      }
    }
    const at::Tensor sum = computed("aten::add", "Tensor", {x, x.cos(), 1}, 1);
    EXPECT_EQ(splits_of("aten::add.Tensor", {{}, {}, 1}), Splits::kNever);
    EXPECT_TRUE(same_bytes(computed("aten::add", "Tensor", {x, x.cos(), 1}, 3), sum));
  }
}

TEST_F(OneThreadTest, what_splits_has_its_bits_where_the_elements_are_few) {
  EXPECT_EQ(splits_of("aten::add.Tensor", {{}, {}, 0.3}), Splits::kFloats);
  EXPECT_EQ(splits_of("aten::add.Tensor", {{}, {}, {}}), Splits::kFloats) << "a symbol";
  EXPECT_EQ(splits_of("aten::mul.Tensor", {{}, {}}), Splits::kComplex);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor x = noise({3, kFewElements / 3}, 7, type).abs();
    const auto same = [&](const char* op, const char* overload, std::vector<c10::IValue> stack) {
      const at::Tensor alone = computed(op, overload, stack, 1);
      for (const int threads : {2, 3, 7}) {
        EXPECT_TRUE(same_bytes(computed(op, overload, stack, threads), alone)) << op;
      }
    };
    same("aten::add", "Tensor", {x, x.cos(), 0.3});
    same("aten::gelu", "", {x, "none"});
    same("aten::gelu", "", {x, "tanh"});
    same("aten::rsqrt", "", {x});
    same("aten::sigmoid", "", {x});
    same("aten::silu", "", {x});
    same("aten::softplus", "", {x, 1, 20});
  }
}

// MKL has a number of threads of its own.
TEST_F(OneThreadTest, products_have_the_bits_of_one_thread) {
  const at::Tensor x = noise({300, 768}, 1), w = noise({768, 500}, 2);
  const at::Tensor alone = computed("aten::mm", "", {x, w}, 1);
  at::set_num_threads(3);
  const OneThread one(true);
  EXPECT_TRUE(same_bytes(at::mm(x, w), alone));
}

TEST_F(OneThreadTest, the_threads_are_back_afterwards) {
  at::set_num_threads(2);
  {
    const OneThread alone(true);
    EXPECT_EQ(at::get_num_threads(), 1);
  }
  EXPECT_EQ(at::get_num_threads(), 2);
}

}  // namespace
}  // namespace djinn::exec
