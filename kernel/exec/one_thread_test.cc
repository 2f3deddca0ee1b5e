// SPDX-License-Identifier: Apache-2.0

// Calls whose threads would race give what one thread gives, each time.
#include "kernel/exec/one_thread.h"

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
    const Status ran =
        world.run({}, {at::zeros({4}), int64s({kWrites}, places), noise({kWrites}, 7)}, true);
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
