// SPDX-License-Identifier: Apache-2.0

// The row contract for the attention of a prompt's parts, which is PyTorch's: its fused kernel
// packs keys or not by how many threads and rows there are, and rounds otherwise then. Lanes have
// as many threads as servers have here.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <tuple>
#include <vector>

#include "kernel/exec/executor_for_tests.h"
#include "kernel/exec/one_thread.h"
#include "kernel/srg/text.h"

namespace djinn::exec {
namespace {

constexpr int64_t kRowsTogether = 3;
constexpr int64_t kHeadWidth = 64;

// Queries of some tokens behind others, to which those before them are keys, too.
struct PromptPart {
  at::ScalarType type;
  int64_t heads, key_heads, tokens, past;

  [[nodiscard]] int64_t keys() const { return past + tokens; }

  [[nodiscard]] srg::Graph graph(int64_t rows) const {
    const std::string name(name_of(from_torch(type)));
    const auto input = [&](const char* value, int64_t many, int64_t long_) {
      return fmt::format("input %{} : {}[{}, {}, {}, {}]\n", value, name, rows, many, long_,
                         kHeadWidth);
    };
    std::string text = "srg 1 \"part\"\n" + input("q", heads, tokens) +
                       input("k", key_heads, keys()) + input("v", key_heads, keys());
    if (past > 0) text += fmt::format("input %m : bool[1, 1, {}, {}]\n", tokens, keys());
    text += fmt::format(
        "%y = aten::scaled_dot_product_attention(%q, %k, %v, {}, 0.0, {}, scale=0.125, "
        "enable_gqa=true)\noutput %y\n",
        past > 0 ? "%m" : "none", past > 0 ? "false" : "true");
    Result<srg::Graph> graph = srg::parse_text(text);
    EXPECT_TRUE(graph.ok()) << graph.error().message;
    graph->numerics = srg::Numerics::kFast;
    return *std::move(graph);
  }

  // The first rows of some.
  [[nodiscard]] std::vector<at::Tensor> inputs(int64_t rows) const {
    const auto some = [&](int64_t many, int64_t long_, uint64_t seed) {
      return noise({kRowsTogether, many, long_, kHeadWidth}, seed, type)
          .slice(0, 0, rows)
          .contiguous();
    };
    std::vector<at::Tensor> all{some(heads, tokens, 1), some(key_heads, keys(), 2),
                                some(key_heads, keys(), 3)};
    if (past == 0) return all;
    std::vector<int64_t> seen;
    for (int64_t i = 0; i < tokens * keys(); ++i) {
      seen.push_back(i % keys() <= past + i / keys() ? 1 : 0);
    }
    all.push_back(int64s({1, 1, tokens, keys()}, seen).to(at::kBool));
    return all;
  }

  // What the first row gets.
  [[nodiscard]] at::Tensor first_row(int64_t rows, int threads) const {
    World world({}, false, threads);
    EXPECT_EQ(message_of(world.admit(graph(rows))), "");
    EXPECT_EQ(message_of(world.run({}, inputs(rows))), "");
    return world.output(0).slice(0, 0, 1);
  }
};

class FastParts : public ::testing::TestWithParam<
                      std::tuple<at::ScalarType, std::tuple<int64_t, int64_t>, int64_t, int64_t>> {
 protected:
  static PromptPart part() {
    const auto& [type, heads, tokens, past] = GetParam();
    return {type, std::get<0>(heads), std::get<1>(heads), tokens, past};
  }
};

TEST_P(FastParts, ci_once_a_row_has_its_bits_with_any_threads_and_beside_others) {
  const at::Tensor expected = part().first_row(1, 1);
  for (const int64_t rows : {int64_t{1}, kRowsTogether}) {
    for (const int threads : {2, 16, 40, 64}) {
      EXPECT_TRUE(same_bytes(part().first_row(rows, threads), expected))
          << rows << " rows, " << threads << " threads";
    }
  }
}

// One thread would have the bits, too, and take as many times as long.
TEST_P(FastParts, ci_once_several_threads_share_them) {
  std::vector<c10::IValue> call;
  for (const at::Tensor& one : part().inputs(1)) call.emplace_back(one);
  const bool is_causal = call.size() == 3;
  if (is_causal) call.emplace_back();
  for (const c10::IValue& one : std::array<c10::IValue, 4>{0.0, is_causal, 0.125, true}) {
    call.push_back(one);
  }
  EXPECT_GE(most_threads_of_attention(call), 12);
}

std::string name_of_part(const ::testing::TestParamInfo<FastParts::ParamType>& one) {
  const auto& [type, heads, tokens, past] = one.param;
  return fmt::format("{}_{}_heads_of_{}_{}_tokens_behind_{}", name_of(from_torch(type)),
                     std::get<0>(heads), std::get<1>(heads), tokens, past);
}

INSTANTIATE_TEST_SUITE_P(
    Types, FastParts,
    ::testing::Combine(::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                       ::testing::Values(std::tuple(14, 2), std::tuple(12, 12), std::tuple(32, 32)),
                       ::testing::Values(16, 64, 65, 100, 128), ::testing::Values(0, 128)),
    name_of_part);

}  // namespace
}  // namespace djinn::exec
