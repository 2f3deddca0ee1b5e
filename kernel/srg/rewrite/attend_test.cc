// SPDX-License-Identifier: Apache-2.0

// Attention that graphs spell out: the forms that become one node, and what is like them and stays.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "kernel/srg/rewrite/rewrite.h"
#include "kernel/srg/text.h"
#include "kernel/srg/verify.h"

namespace djinn::srg {
namespace {

const std::string kInputs =
    "srg 1 \"test\"\n"
    "symbol keys 1..512\n"
    "input %q : bfloat16[2, 4, 3, 16]\n"
    "input %q3 : bfloat16[8, 3, 16]\n"
    "input %k : bfloat16[2, 4, keys, 16]\n"
    "input %v : bfloat16[2, 4, keys, 16]\n"
    "input %mask : bfloat16[2, 1, 1, keys]\n"
    "input %alibi : float32[4, 1, keys]\n"
    "input %wide : bfloat16[5, 2, 4, 3, keys]\n"
    "input %whole : int64[2, 4, 3, keys]\n"
    "input %seen : bool[1, 1, 3, keys]\n"
    "input %no : bfloat16[]\n"
    "input %nos : bfloat16[4]\n"
    "input %k8 : bfloat16[8, 5, 16]\n";
const std::string kTurned =
    "%kt = aten::as_strided(%k, [2, 4, 16, keys], [64*keys, 16*keys, 1, 16], 0)\n";
const std::string kScores = "bfloat16[2, 4, 3, keys]";
const std::string kProduct = kTurned + "%s : " + kScores + " = aten::matmul(%q, %kt)\n";
const std::string kMean = "%y : bfloat16[2, 4, 3, 16] = aten::matmul(%w, %v)\n";

std::string softmax_of(const std::string& scores) {
  return "%w : " + kScores + " = aten::_softmax(" + scores + ", -1, false)\n";
}
// Of scores that are made in that way of the products, %s.
std::string attention(const std::string& steps) {
  return kProduct + steps + softmax_of("%d") + kMean;
}
std::string step(const std::string& node) {
  return "%d : " + kScores + " = " + node + "\n";
}

Rewriting rewriting_of(const std::string& body) {
  Result<Graph> graph = parse_text(kInputs + body + "output %y\n");
  EXPECT_TRUE(graph.ok()) << graph.error().message;
  EXPECT_TRUE(verify(*graph).ok()) << verify(*graph).error().message;
  return rewrite(*std::move(graph));
}

// What the one node is called with; or why it is not there.
std::string made_of(const std::string& body) {
  const Rewriting rewriting = rewriting_of(body);
  const auto pass = std::ranges::find(rewriting.passes, "attend", &PassReport::name);
  if (pass->fired == 0) return pass->reasons.empty() ? "" : pass->reasons.begin()->first;
  const std::string text = print_text(rewriting.graph), op = "djinn::attend_biased";
  EXPECT_EQ(text.find("aten::_softmax"), std::string::npos);
  EXPECT_EQ(text.find("aten::matmul"), std::string::npos);
  const size_t begin = text.find(op) + op.size();
  return text.substr(begin, text.find('\n', begin) - begin);
}

TEST(rewrite_spelled_attention, products_and_a_softmax_are_one_node) {
  const std::string wanted = "(%q, %k, %v, values[], doubles[], none, none, 0.25, false)";
  EXPECT_EQ(made_of(attention(step("aten::div.Tensor(%s, 4.0)"))), wanted);
  EXPECT_EQ(made_of(attention(step("aten::mul.Tensor(%s, 0.25)"))), wanted);
  EXPECT_EQ(made_of(attention("%a : " + kScores + " = aten::mul.Tensor(%s, 0.5)\n" +
                              step("aten::div.Tensor(%a, 2)"))),
            wanted);
  EXPECT_EQ(made_of(kProduct + softmax_of("%s") + kMean),
            "(%q, %k, %v, values[], doubles[], none, none, 1.0, false)");
  EXPECT_EQ(made_of(kProduct + "%w : " + kScores + " = aten::_softmax(%s, 3, false)\n" + kMean),
            "(%q, %k, %v, values[], doubles[], none, none, 1.0, false)");
}

TEST(rewrite_spelled_attention, what_is_added_has_the_factor_of_what_comes_after_it) {
  const std::string scaled = "%a : " + kScores + " = aten::mul.Tensor(%s, 0.5)\n";
  EXPECT_EQ(made_of(attention(scaled + step("aten::add.Tensor(%a, %mask, alpha=1)"))),
            "(%q, %k, %v, [%mask], [1.0], none, none, 0.5, false)");
  EXPECT_EQ(made_of(attention(
                scaled + "%b : float32[2, 4, 3, keys] = aten::add.Tensor(%a, " +
                "%alibi, alpha=1)\n%c : float32[2, 4, 3, keys] = " + "aten::div.Tensor(%b, 4.0)\n" +
                step("aten::add.Tensor(%c, %mask, alpha=1)"))),
            "(%q, %k, %v, [%mask, %alibi], [1.0, 0.25], none, none, 0.125, false)");
}

TEST(rewrite_spelled_attention, keys_are_hidden_by_a_condition_too) {
  EXPECT_EQ(made_of(attention(step("aten::where.self(%seen, %s, %no)"))),
            "(%q, %k, %v, values[], doubles[], %seen, %no, 1.0, false)");
  EXPECT_EQ(made_of(attention("%a : " + kScores + " = aten::where.self(%seen, %s, %no)\n" +
                              step("aten::add.Tensor(%a, %mask)"))),
            "(%q, %k, %v, [%mask], [1.0], %seen, %no, 1.0, false)");
  EXPECT_EQ(made_of(attention("%least = aten::full([], -3.4028234663852886e+38)\n" +
                              step("aten::maximum(%s, %least)"))),
            "(%q, %k, %v, values[], doubles[], none, none, 1.0, false)");
}

// As Bloom and its like have it.
TEST(rewrite_spelled_attention, rows_and_heads_may_be_one_dimension) {
  const auto of = [](const std::string& first, const std::string& weights,
                     const std::string& beta = "1.0") {
    return "%k3 = aten::as_strided(%k, [8, 16, keys], [16*keys, 1, 16], 0)\n"
           "%s3 : bfloat16[8, 3, keys] = aten::baddbmm(" +
           first + ", %q3, %k3, beta=" + beta +
           ", alpha=0.25)\n"
           "%s = aten::as_strided(%s3, [2, 4, 3, keys], [12*keys, 3*keys, keys, 1], 0)\n" +
           step("aten::add.Tensor(%s, %mask)") + softmax_of("%d") +
           "%w3 = aten::as_strided(%w, [8, 3, keys], " + weights +
           ", 0)\n"
           "%v3 = aten::as_strided(%v, [8, keys, 16], [16*keys, 16, 1], 0)\n"
           "%y : bfloat16[8, 3, 16] = aten::bmm(%w3, %v3)\n";
  };
  const std::string kInOrder = "[3*keys, keys, 1]";
  const std::string kZeros =
      "%z : bfloat16[8, 1, keys] = aten::zeros([8, 1, keys], "
      "dtype=bfloat16)\n";
  EXPECT_EQ(made_of(of("%alibi8", kInOrder)
                        .insert(0,
                                "%alibi8 : bfloat16[8, 1, keys] = "
                                "aten::ones([8, 1, keys])\n")),
            "(%q3, %k, %v, [%mask, %alibi8], [1.0, 1.0], none, none, 0.25, true)");
  EXPECT_EQ(made_of(kZeros + of("%z", kInOrder)),
            "(%q3, %k, %v, [%mask], [1.0], none, none, 0.25, true)");
  EXPECT_EQ(made_of(kZeros + of("%z", kInOrder, "0.5")), "its scores are of another form");
  EXPECT_EQ(made_of(kZeros + of("%z", "[3*keys, 1, 3]")), "its weights are seen in part");
}

// Nobody could say otherwise how many of the eight are rows.
TEST(rewrite_spelled_attention, rows_and_heads_are_told_by_more_than_a_mask) {
  const auto of = [](const std::string& mask) {
    return "%k3 = aten::as_strided(%k8, [8, 16, 5], [80, 1, 16], 0)\n"
           "%s3 : bfloat16[8, 3, 5] = aten::bmm(%q3, %k3)\n"
           "%s = aten::as_strided(%s3, [2, 4, 3, 5], [60, 15, 5, 1], 0)\n"
           "%m : bfloat16" +
           mask + " = aten::ones(" + mask +
           ", dtype=bfloat16)\n"
           "%d : bfloat16[2, 4, 3, 5] = aten::add.Tensor(%s, %m)\n"
           "%w : bfloat16[2, 4, 3, 5] = aten::_softmax(%d, -1, false)\n"
           "%w3 = aten::as_strided(%w, [8, 3, 5], [15, 5, 1], 0)\n"
           "%y : bfloat16[8, 3, 16] = aten::bmm(%w3, %k8)\n";
  };
  EXPECT_EQ(made_of(of("[1, 1, 3, 5]")), "(%q3, %k8, %k8, [%m], [1.0], none, none, 1.0, true)");
  EXPECT_EQ(made_of(of("[2, 1, 3, 5]")), "its masks alone tell rows from heads");
  EXPECT_EQ(made_of(of("[4, 3, 5]")), "its masks alone tell rows from heads");
}

TEST(rewrite_spelled_attention, keys_and_values_are_read_where_they_were_copied_from) {
  const auto of = [](const std::string& more) {
    return "%z = aten::zeros([128*keys], dtype=bfloat16)\n"
           "%k1 = aten::as_strided(%z, [2, 4, keys, 16], [64*keys, 16*keys, 16, 1], 0)\n"
           "%c1 = aten::copy_(%k1, %k, false)\n"
           "%zf = aten::zeros([128*keys], dtype=float32)\n"
           "%k2 = aten::as_strided(%zf, [2, 4, keys, 16], [64*keys, 16*keys, 16, 1], 0)\n"
           "%c2 = aten::copy_(%k2, %k1, false)\n"
           "%qf : float32[2, 4, 3, 16] = aten::_to_copy(%q, dtype=float32)\n"
           "%kt = aten::as_strided(%k2, [2, 4, 16, keys], [64*keys, 16*keys, 1, 16], 0)\n"
           "%s : float32[2, 4, 3, keys] = aten::matmul(%qf, %kt)\n"
           "%wf : float32[2, 4, 3, keys] = aten::_softmax(%s, -1, false)\n"
           "%w : bfloat16[2, 4, 3, keys] = aten::_to_copy(%wf, dtype=bfloat16)\n" +
           more + kMean;
  };
  EXPECT_EQ(made_of(of("")), "(%q, %k, %v, values[], doubles[], none, none, 1.0, false)");
  EXPECT_EQ(made_of(of("%n = aten::neg(%k1)\n")),
            "(%q, %k1, %v, values[], doubles[], none, none, 1.0, false)")
      << "somebody needs the copy";
  EXPECT_EQ(made_of(of("%n = aten::add_.Tensor(%k, 1)\n")), "something is written amid it");
}

const std::string kSinks = "input %sinks : bfloat16[2, 4, 3, 1]\n";
const std::string kWide = "bfloat16[2, 4, 3, keys + 1]";

// As GPT-OSS has them.
std::string beside_sinks(const std::string& less, const std::string& view) {
  return kSinks + kProduct + "%c : " + kWide + " = aten::cat([%s, %sinks], -1)\n" + less +
         "%w1 : " + kWide + " = aten::_softmax(%d, -1, false)\n%w = aten::as_strided(%w1, " + view +
         ")\n" + kMean;
}
const std::string kLessGreatest =
    "%m : bfloat16[2, 4, 3, 1], %i : int64[2, 4, 3, 1] = aten::max.dim(%c, -1, true)\n"
    "%d : " +
    kWide + " = aten::sub.Tensor(%c, %m, alpha=1)\n";
const std::string kButForTheLast = "[2, 4, 3, keys], [12*keys + 12, 3*keys + 3, keys + 1, 1], 0";

// As Granite has them.
std::string behind_sinks(const std::string& between, const std::string& scores,
                         const std::string& sizes = "[2, 4, 3]") {
  return "input %sinks : bfloat16" + sizes + "\n" + kProduct + between +
         "%l : bfloat16[2, 4, 3] = aten::logsumexp(" + scores +
         ", [-1], false)\n"
         "%e : bfloat16[2, 4, 3] = aten::sub.Tensor(%l, %sinks, alpha=1)\n"
         "%ef : float32[2, 4, 3] = aten::_to_copy(%e, dtype=float32)\n"
         "%g : float32[2, 4, 3] = aten::sigmoid(%ef)\n"
         "%df : float32[2, 4, 3, keys] = aten::_to_copy(%d, dtype=float32)\n"
         "%wf : float32[2, 4, 3, keys] = aten::_softmax(%df, -1, false)\n"
         "%w : " +
         kScores +
         " = aten::_to_copy(%wf, dtype=bfloat16)\n"
         "%y0 : bfloat16[2, 4, 3, 16] = aten::matmul(%w, %v)\n"
         "%g1 = aten::as_strided(%g, [2, 4, 3, 1], [12, 3, 1, 1], 0)\n"
         "%gb : bfloat16[2, 4, 3, 1] = aten::_to_copy(%g1, dtype=bfloat16)\n"
         "%y : bfloat16[2, 4, 3, 16] = aten::mul.Tensor(%y0, %gb)\n";
}

TEST(rewrite_spelled_attention, sinks_are_scores_without_a_value_however_they_are_spelled) {
  const std::string wanted = "(%q, %k, %v, values[], doubles[], none, none, 1.0, false, %sinks)";
  EXPECT_EQ(made_of(beside_sinks(kLessGreatest, kButForTheLast)), wanted);
  EXPECT_EQ(made_of(behind_sinks("%d : " + kScores + " = aten::mul.Tensor(%s, 1.0)\n", "%d")),
            wanted);
  for (const char* const sizes : {"[1, 4, 1]", "[2, 1, 3]"}) {
    EXPECT_EQ(
        made_of(behind_sinks("%d : " + kScores + " = aten::mul.Tensor(%s, 1.0)\n", "%d", sizes)),
        wanted)
        << sizes;
  }
}

TEST(rewrite_spelled_attention, what_is_like_sinks_stays) {
  const std::string kInPart = "its weights are seen in part";
  EXPECT_EQ(made_of(beside_sinks(kLessGreatest,
                                 "[2, 4, 3, keys], [12*keys + 12, 3*keys + 3, keys + 1, 1], 1")),
            kInPart)
      << "the first has none";
  EXPECT_EQ(made_of(beside_sinks("%d : " + kWide + " = aten::neg(%c)\n", kButForTheLast)), kInPart);
  EXPECT_EQ(made_of(beside_sinks("%x = aten::neg(%c)\n" + kLessGreatest, kButForTheLast)), kInPart)
      << "somebody needs them together";
  EXPECT_EQ(made_of(behind_sinks("%d : " + kScores + " = aten::mul.Tensor(%s, 0.5)\n", "%s")),
            "its scores are of another form")
      << "they are of other scores";
}

TEST(rewrite_spelled_attention, what_is_like_it_stays_and_says_why) {
  const std::string kOtherForm = "its scores are of another form";
  for (const char* const node :
       {"aten::mul.Tensor(%s, -1.0)", "aten::mul.Tensor(%s, %mask)", "aten::neg(%s)",
        "aten::add.Tensor(%s, %mask, alpha=2)", "aten::add.Tensor(%s, 1.0)",
        "aten::add.Tensor(%s, %wide)", "aten::add.Tensor(%s, %whole)",
        "aten::where.self(%seen, %s, %nos)", "aten::where.self(%seen, %no, %s)",
        "aten::maximum(%s, %no)", "aten::_to_copy(%s, dtype=float64)"}) {
    EXPECT_EQ(made_of(attention(step(node))), kOtherForm) << node;
  }
  const auto twice = [](const std::string& first, const std::string& second) {
    return made_of(attention("%a : " + kScores + " = " + first + "\n" + step(second)));
  };
  EXPECT_EQ(twice("aten::where.self(%seen, %s, %no)", "aten::mul.Tensor(%a, 0.5)"), kOtherForm);
  EXPECT_EQ(twice("aten::add.Tensor(%s, %mask)", "aten::where.self(%seen, %a, %no)"), kOtherForm);
  EXPECT_EQ(twice("aten::add.Tensor(%s, %mask)", "aten::mul.Tensor(%a, 0.001)"), kOtherForm)
      << "what hides keys would not";
  EXPECT_EQ(twice("aten::full([], -5.0)", "aten::maximum(%s, %a)"), kOtherForm);
  EXPECT_EQ(twice("aten::full([], nan)", "aten::maximum(%s, %a)"), kOtherForm);
  EXPECT_EQ(made_of(attention("%least = aten::full([], -3.4028234663852886e+38)\n"
                              "%f = aten::fill_.Scalar(%least, 2.0)\n" +
                              step("aten::maximum(%s, %least)"))),
            kOtherForm);
}

TEST(rewrite_spelled_attention, other_products_stay) {
  EXPECT_EQ(made_of(kProduct + "%w : " + kScores + " = aten::_softmax(%s, 2, false)\n" + kMean),
            "it is over another dimension");
  EXPECT_EQ(made_of(kProduct + softmax_of("%s") + "%n = aten::neg(%s)\n" + kMean),
            "its scores are read elsewhere, too");
  EXPECT_EQ(made_of(kProduct + softmax_of("%s") + "%n = aten::neg(%w)\n" + kMean),
            "its weights are read elsewhere, too");
  EXPECT_EQ(made_of(kTurned + "%s = aten::matmul(%q, %kt)\n" + softmax_of("%s") + kMean),
            "its shapes are not known");
  const auto with_keys = [](const std::string& view) {
    return made_of("%kt = aten::as_strided(%k, " + view + ")\n%s : " + kScores +
                   " = aten::matmul(%q, %kt)\n" + softmax_of("%s") + kMean);
  };
  const std::string kOtherKeys = "its keys are turned otherwise, or of another dtype";
  EXPECT_EQ(with_keys("[2, 4, 16, keys], [64*keys, 16*keys, keys, 1], 0"), kOtherKeys);
  const std::string kTurnedKeys =
      "(%q, %kt, %v, values[], doubles[], none, none, 1.0, false, none, true)";
  EXPECT_EQ(with_keys("[2, 4, 16, keys], [64*keys, 16*keys, 1, 16], 16"), kTurnedKeys);
  EXPECT_EQ(with_keys("[2, 4, 16, keys], [64*keys, 0, 1, 16], 0"), kTurnedKeys)
      << "all heads share one";
  EXPECT_EQ(with_keys("[1, 4, 16, keys], [64*keys, 16*keys, 1, 16], 0"),
            "its shapes are of no heads");
  EXPECT_EQ(made_of(kProduct + softmax_of("%s") +
                    "%v8 = aten::as_strided(%v, [2, 4, keys, 8], [64*keys, 16*keys, 16, 1], 0)\n"
                    "%y : bfloat16[2, 4, 3, 8] = aten::matmul(%w, %v8)\n"),
            "its shapes are of no heads");
  EXPECT_EQ(made_of(kProduct + softmax_of("%s") +
                    "%y : bfloat16[2, 4, keys, keys] = aten::matmul(%v, %w)\n"),
            "it is another product");
}

}  // namespace
}  // namespace djinn::srg
