// SPDX-License-Identifier: Apache-2.0

// What passes make of a graph for a GPU otherwise than for the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "kernel/srg/rewrite/rewrite.h"
#include "kernel/srg/text.h"
#include "kernel/srg/verify.h"

namespace djinn::srg {
namespace {

Rewriting rewriting_for(Target target, const std::string& body) {
  Result<Graph> graph = parse_text("srg 1 \"test\"\n" + body + "output %y\n");
  EXPECT_TRUE(graph.ok()) << graph.error().message;
  EXPECT_TRUE(verify(*graph).ok()) << verify(*graph).error().message;
  return rewrite(*std::move(graph), {}, target);
}
const PassReport& report_of(const Rewriting& rewriting, const std::string& pass) {
  return *std::ranges::find(rewriting.passes, pass, &PassReport::name);
}

TEST(rewrite_for_a_gpu, a_causal_prompt_is_ours_there_alone) {
  const std::string prompt =
      "input %q : bfloat16[1, 4, 9, 16]\n"
      "input %k : bfloat16[1, 2, 9, 16]\n"
      "input %v : bfloat16[1, 2, 9, 16]\n"
      "%y : bfloat16[1, 4, 9, 16] = aten::scaled_dot_product_attention(%q, %k, %v, none, 0.0, "
      "true, scale=0.25, enable_gqa=true)\n";
  const Rewriting gpu = rewriting_for(Target::kGpu, prompt);
  EXPECT_EQ(report_of(gpu, "attend").fired, 1u);
  const std::string made = "djinn::attend(%q, %k, %v, none, 0.25, true, true)";
  EXPECT_NE(print_text(gpu.graph).find(made), std::string::npos) << print_text(gpu.graph);
  const Rewriting host = rewriting_for(Target::kHost, prompt);
  EXPECT_EQ(report_of(host, "attend").fired, 0u);
  EXPECT_EQ(report_of(host, "attend").reasons.begin()->first, "it is a prompt's");
}

TEST(rewrite_for_a_gpu, attention_that_is_spelled_out_stays_and_that_is_told) {
  const std::string spelled =
      "input %q : bfloat16[2, 4, 3, 16]\n"
      "input %kt : bfloat16[2, 4, 16, 5]\n"
      "input %v : bfloat16[2, 4, 5, 16]\n"
      "%s : bfloat16[2, 4, 3, 5] = aten::matmul(%q, %kt)\n"
      "%d : bfloat16[2, 4, 3, 5] = aten::mul.Tensor(%s, 0.25)\n"
      "%w : bfloat16[2, 4, 3, 5] = aten::_softmax(%d, -1, false)\n"
      "%y : bfloat16[2, 4, 3, 16] = aten::matmul(%w, %v)\n";
  const Rewriting gpu = rewriting_for(Target::kGpu, spelled);
  EXPECT_EQ(report_of(gpu, "attend").fired, 0u);
  EXPECT_EQ(report_of(gpu, "attend").reasons.begin()->first,
            "it is spelled out, and a GPU has no kernel for that");
}

// A kernel reads 16 bytes of it at once.
TEST(rewrite_for_a_gpu, a_weight_whose_rows_lie_nowhere_in_particular_is_missed) {
  const auto product = [](int inputs) {
    const std::string k = std::to_string(inputs);
    return "input %x : bfloat16[40, " + k + "]\nweight %w \"w\" : bfloat16[6, " + k +
           "]\n%y : bfloat16[40, 6] = aten::linear(%x, %w)\n";
  };
  const PassReport fits = report_of(rewriting_for(Target::kGpu, product(16)), "linear");
  EXPECT_EQ(fits.fired, 1u);  // however many rows it has
  const PassReport left = report_of(rewriting_for(Target::kGpu, product(12)), "linear");
  EXPECT_EQ(left.fired, 0u);
  EXPECT_EQ(left.missed, 1u);
  EXPECT_EQ(left.reasons.begin()->first, "its weight has rows of no multiple of 16 bytes");
}

}  // namespace
}  // namespace djinn::srg
