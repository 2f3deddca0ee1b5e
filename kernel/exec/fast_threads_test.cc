// SPDX-License-Identifier: Apache-2.0

// The row contract for whole programs: captures of real models as fast ones give the same bits with
// any number of threads, whatever is left to LibTorch.
#include <gtest/gtest.h>

#include <vector>

#include "kernel/exec/given_for_tests.h"
#include "kernel/exec/program.h"

namespace djinn::exec {
namespace {

// What a run gives, and what it leaves in what it was given.
std::vector<at::Tensor> computed(const srg::Capture& capture, const Point& at, const Given& given,
                                 int threads) {
  World world(given.weights, false, threads);
  srg::Graph graph = capture.graph;
  graph.numerics = srg::Numerics::kFast;
  std::vector<at::Tensor> all = given.copy();
  EXPECT_EQ(message_of(world.admit(std::move(graph))), "");
  EXPECT_EQ(message_of(world.run_at(at.begin, at.end, at.symbols, all)), "");
  EXPECT_EQ(at::get_num_threads(), threads);
  for (size_t i = 0; i < world.lane->outputs().size(); ++i) all.push_back(world.output(i));
  return all;
}

// So many that LibTorch shares out what is 64 wide.
constexpr int64_t kTokens = 600;

void expect_same_bits(const srg::Capture& capture) {
  const Point at =
      is_decode(capture) ? point_of(capture, 1) : point_of(capture.graph, kTokens, 0, kTokens);
  const Given given = given_to(capture.graph, at.symbols);
  const std::vector<at::Tensor> expected = computed(capture, at, given, 1);
  for (const int threads : {2, 3}) {
    const std::vector<at::Tensor> got = computed(capture, at, given, threads);
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      if (!expected[i].defined()) continue;
      EXPECT_TRUE(same_bytes(got[i], expected[i]))
          << capture.name << ", " << threads << " threads, tensor " << i;
    }
  }
}

TEST(FastThreads, ci_once_are_not_seen_in_what_a_capture_gives) {
  for (const srg::Capture& capture : srg::read_captures()) expect_same_bits(capture);
}

TEST(FastThreads, ci_once_are_not_seen_in_what_a_capture_gives_in_float32) {
  for (const srg::Capture& capture : srg::read_captures()) expect_same_bits(in_float32(capture));
}

}  // namespace
}  // namespace djinn::exec
