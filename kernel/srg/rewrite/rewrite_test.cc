// SPDX-License-Identifier: Apache-2.0

#include "kernel/srg/rewrite/rewrite.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "kernel/srg/text.h"
#include "kernel/srg/verify.h"

namespace djinn::srg {
namespace {

using ::testing::HasSubstr;

Graph parsed(const std::string& body) {
  Result<Graph> graph = parse_text("srg 1 \"test\"\n" + body);
  EXPECT_TRUE(graph.ok()) << graph.error().message;
  EXPECT_TRUE(verify(*graph).ok()) << verify(*graph).error().message;
  return *std::move(graph);
}

PassReport pass(const Rewriting& rewriting, std::string_view name) {
  const auto found = std::ranges::find(rewriting.passes, name, &PassReport::name);
  EXPECT_NE(found, rewriting.passes.end()) << name;
  return *found;
}
PassReport linear(const Rewriting& rewriting) {
  return pass(rewriting, "linear");
}

// What products are made of.
const std::string kOperands =
    "symbol tokens 1..512 tokens\n"
    "input %x : float32[tokens, 8]\n"
    "input %v : float32[8, 4]\n"
    "input %many : float32[3, 11, 8]\n"
    "weight %halves \"halves\" : bfloat16[4, 8]\n"
    "weight %w \"w\" : float32[4, 8]\n"
    "weight %k \"k\" : float32[8, 4]\n"
    "weight %b \"b\" : float32[4]\n"
    "weight %gaps \"gaps\" : float32[4, 8] strides [32, 2]\n"
    "weight %int \"int\" : int64[4, 8]\n";

// What stands in place of `%y = ...`.
std::string rewritten(const std::string& node) {
  const Rewriting rewriting = rewrite(parsed(kOperands + node + "output %y\n"));
  const Node& last = rewriting.graph.nodes.back();
  if (linear(rewriting).fired == 0) {
    return linear(rewriting).reasons.empty() ? "" : linear(rewriting).reasons.begin()->first;
  }
  EXPECT_EQ(rewriting.made, 1u);
  const std::string text = print_text(rewriting.graph);
  const size_t begin = text.find(last.op);
  return text.substr(begin, text.find('\n', begin) - begin);
}

TEST(rewrite_linear, products_with_a_weight_become_ours) {
  EXPECT_EQ(rewritten("%y = aten::linear(%x, %w, %b)\n"), "djinn::linear_rows(%x, %w, %b, false)");
  EXPECT_EQ(rewritten("%y = aten::linear(%x, %w)\n"), "djinn::linear_rows(%x, %w, none, false)");
  EXPECT_EQ(rewritten("%y = aten::linear(%many, %w)\n"),
            "djinn::linear_rows(%many, %w, none, false)");
  EXPECT_EQ(rewritten("%y = aten::addmm(%b, %x, %k)\n"), "djinn::linear_rows(%x, %k, %b, true)");
  EXPECT_EQ(rewritten("%y = aten::addmm(%b, %x, %k, beta=1, alpha=1)\n"),
            "djinn::linear_rows(%x, %k, %b, true)");
  EXPECT_EQ(rewritten("%y = aten::mm(%x, %k)\n"), "djinn::linear_rows(%x, %k, none, true)");
  EXPECT_EQ(rewritten("%y = aten::matmul(%x, %k)\n"), "djinn::linear_rows(%x, %k, none, true)");
}

TEST(rewrite_linear, a_weight_is_told_by_its_geometry_whatever_turned_it) {
  EXPECT_EQ(rewritten("%t = aten::t(%w)\n%y = aten::addmm(%b, %x, %t)\n"),
            "djinn::linear_rows(%x, %t, %b, true)");
  EXPECT_EQ(rewritten("%t = aten::as_strided(%w, [8, 4], [1, 8], 0)\n%y = aten::mm(%x, %t)\n"),
            "djinn::linear_rows(%x, %t, none, true)");
}

TEST(rewrite_linear, what_stays_has_a_reason) {
  EXPECT_EQ(rewritten("%y = aten::mm(%x, %v)\n"), "its weight is computed or an input");
  EXPECT_EQ(rewritten("%y = aten::matmul(%x, %b)\n"), "its weight has other than two dimensions");
  EXPECT_EQ(rewritten("%y = aten::linear(%x, %gaps)\n"), "its weight has gaps");
  EXPECT_EQ(rewritten("%y = aten::linear(%x, %int)\n"), "its dtype has no kernel");
  EXPECT_EQ(rewritten("%y = aten::addmm(%b, %x, %k, beta=2)\n"), "it is another product");
  EXPECT_EQ(rewritten("%y = aten::relu(%x)\n"), "") << "no product";
}

// The products that stay, of products of one value that are a line each.
std::string products(const std::string& lines) {
  const Rewriting rewriting = rewrite(parsed(kOperands + lines + "output %y\n"));
  std::string text = print_text(rewriting.graph);
  std::string found;
  for (size_t at = 0; (at = text.find("djinn::linear", at)) != std::string::npos;) {
    const size_t end = text.find('\n', at);
    found += text.substr(at, end - at) + "\n";
    at = end;
  }
  return found;
}

TEST(rewrite_linear, a_constant_matrix_that_stays_is_missed) {
  const auto missed = [](const std::string& node) {
    return linear(rewrite(parsed(kOperands + node + "output %y\n"))).missed;
  };
  EXPECT_EQ(missed("%y = aten::linear(%x, %gaps)\n"), 1u);
  EXPECT_EQ(missed("%y = aten::linear(%x, %w)\n"), 0u);
  EXPECT_EQ(missed("%y = aten::mm(%x, %v)\n"), 0u) << "it is not the model's";
}

TEST(rewrite_linears, products_of_one_value_become_one_node_where_the_first_stood) {
  EXPECT_EQ(products("%q = aten::linear(%x, %w, %b)\n"
                     "%r = aten::relu(%q)\n"
                     "%y = aten::linear(%x, %w)\n"),
            "djinn::linears(%x, [%w, %w], [%b, none], false)\n");
  EXPECT_EQ(products("%t = aten::t(%w)\n%s = aten::t(%w)\n"
                     "%q = aten::mm(%x, %t)\n%y = aten::addmm(%b, %x, %s)\n"),
            "djinn::linears(%x, [%t, %s], [none, %b], true)\n");
}

TEST(rewrite_linears, four_are_together_at_most) {
  std::string lines;
  for (const char* const name : {"a", "b1", "c", "d", "e", "f", "y"}) {
    lines += std::string("%") + name + " = aten::linear(%x, %w)\n";
  }
  EXPECT_EQ(products(lines),
            "djinn::linears(%x, [%w, %w, %w, %w], [none, none, none, none], false)\n"
            "djinn::linears(%x, [%w, %w, %w], [none, none, none], false)\n");
}

TEST(rewrite_linears, what_cannot_stand_together_stays_apart) {
  const std::string first = "%q = aten::linear(%x, %w)\n";
  const std::string alone = "djinn::linear_rows(%x, %w, none, false)\n";
  EXPECT_EQ(products(first + "%n = aten::relu_(%x)\n%y = aten::linear(%x, %w)\n"), alone + alone)
      << "the input changes between";
  EXPECT_EQ(products(first + "%t = aten::t(%w)\n%y = aten::mm(%x, %t)\n"),
            alone + "djinn::linear_rows(%x, %t, none, true)\n")
      << "one is turned";
  EXPECT_EQ(products("%q = aten::mm(%x, %k)\n%y = aten::mm(%x, %k)\n"),
            "djinn::linear_rows(%x, %k, none, true)\n"
            "djinn::linear_rows(%x, %k, none, true)\n")
      << "outputs lie side by side";
  EXPECT_EQ(products("%c = aten::relu(%b)\n" + first +
                     "%d = aten::relu(%c)\n%y = aten::linear(%x, %w, %d)\n"),
            alone + "djinn::linear_rows(%x, %w, %d, false)\n")
      << "the bias is not there yet";
  EXPECT_EQ(products("%h = aten::relu(%x)\n" + first + "%y = aten::linear(%h, %w)\n"),
            alone + "djinn::linear_rows(%h, %w, none, false)\n")
      << "two values";
}

TEST(rewrite_linears, what_could_not_join_has_a_reason) {
  const auto reasons = [](const std::string& lines) {
    return pass(rewrite(parsed(kOperands + lines + "output %y\n")), "linears").reasons;
  };
  const std::string first = "%q = aten::linear(%x, %w)\n";
  EXPECT_EQ(reasons(first + "%n = aten::relu_(%x)\n%y = aten::linear(%x, %w)\n").begin()->first,
            "it cannot be computed where its value's first one is");
  EXPECT_EQ(reasons("%q = aten::mm(%x, %k)\n%y = aten::mm(%x, %k)\n").begin()->first,
            "its outputs lie side by side");
  EXPECT_TRUE(reasons(first + "%y = aten::relu(%q)\n").empty()) << "it is alone";
  EXPECT_TRUE(reasons("%y = aten::mm(%x, %k)\n").empty());
}

TEST(rewrite, what_is_bound_from_outside_stays_as_it_is) {
  const Graph graph = parsed(
      "symbol tokens 1..512 tokens\n"
      "input %x : bfloat16[1, tokens, 8]\n"
      "weight %w \"w\" : bfloat16[4, 8]\n"
      "%h = aten::linear(%x, %w) {role \"mlp\"}\n"
      "%y = aten::relu(%h)\n"
      "output %y\n");
  const Rewriting rewriting = rewrite(graph);
  EXPECT_EQ(linear(rewriting).fired, 1u);
  EXPECT_EQ(rewriting.graph.symbols, graph.symbols);
  EXPECT_EQ(rewriting.graph.storages, graph.storages);
  EXPECT_EQ(rewriting.graph.values, graph.values);
  EXPECT_EQ(rewriting.graph.outputs, graph.outputs);
  EXPECT_EQ(rewriting.graph.nodes[0].outputs, graph.nodes[0].outputs);
  EXPECT_EQ(rewriting.graph.nodes[0].annotation, graph.nodes[0].annotation);
  EXPECT_EQ(rewriting.graph.nodes[1], graph.nodes[1]);
  EXPECT_TRUE(verify(rewriting.graph).ok());
}

// The nodes of a graph after all passes, a line each.
std::string nodes_of(const Rewriting& rewriting) {
  EXPECT_EQ(rewriting.origins.size(), rewriting.graph.nodes.size());
  std::string lines;
  for (const Node& node : rewriting.graph.nodes) {
    lines += node.op + (node.outputs.size() == 1 ? "" : " of several") + "\n";
  }
  return lines;
}

// A graph that uses %x, and makes %y of it.
Rewriting all_passes(const std::string& body) {
  return rewrite(
      parsed("symbol tokens 1..512 tokens\n"
             "input %x : bfloat16[1, tokens, 64]\n"
             "input %f : float32[1, tokens, 64]\n"
             "weight %w \"w\" : bfloat16[64]\n"
             "weight %v \"v\" : float32[64]\n" +
             body + "output %y\n"));
}

const std::string kToFloat =
    "%z = aten::zeros([64*tokens], dtype=float32)\n"
    "%h = aten::as_strided(%z, [1, tokens, 64], [64*tokens, 64, 1], 0)\n"
    "%c = aten::copy_(%h, %x, false)\n";

TEST(rewrite_casts, a_copy_into_zeros_is_a_cast) {
  const Rewriting cast = all_passes(kToFloat + "%y = aten::relu(%h)\n");
  EXPECT_EQ(nodes_of(cast), "aten::_to_copy\naten::relu\n");
  EXPECT_EQ(cast.origins, (std::vector<uint32_t>{0, 3}));
  EXPECT_EQ(cast.made, 0u) << "PyTorch computes it";
}

TEST(rewrite_casts, they_may_be_restored_alone) {
  const Rewriting restored =
      restore_casts(parsed(kOperands + "%z = aten::zeros([tokens, 8], dtype=bfloat16)\n"
                                       "%h = aten::as_strided(%z, [tokens, 8], [8, 1], 0)\n"
                                       "%c = aten::copy_(%h, %x, false)\n"
                                       "%p = aten::linear(%h, %halves)\n"
                                       "%y = aten::linear(%x, %w)\noutput %p\noutput %y\n"));
  EXPECT_EQ(nodes_of(restored), "aten::_to_copy\naten::linear\naten::linear\n");
  EXPECT_EQ(restored.origins, (std::vector<uint32_t>{0, 3, 4}));
  EXPECT_EQ(restored.made, 0u);
}

TEST(rewrite_casts, others_that_see_the_zeros_or_where_it_lies_keep_it_as_it_is) {
  for (const char* const use :
       {"%y = aten::relu(%z)\n", "%y = aten::relu_(%h)\n",
        "%q = aten::relu(%c)\n%y = aten::relu(%h)\n", "%y = aten::alias(%h)\noutput %z\n"}) {
    EXPECT_EQ(pass(all_passes(kToFloat + use), "casts").fired, 0u) << use;
  }
  const std::string early =
      "%z = aten::zeros([64*tokens], dtype=float32)\n"
      "%h = aten::as_strided(%z, [1, tokens, 64], [64*tokens, 64, 1], 0)\n"
      "%y = aten::relu(%h)\n"
      "%c = aten::copy_(%h, %x, false)\n";
  EXPECT_EQ(pass(all_passes(early), "casts").fired, 0u) << "zeros are read";
  const std::string part =
      "%z = aten::zeros([96*tokens], dtype=float32)\n"
      "%h = aten::as_strided(%z, [1, tokens, 64], [96*tokens, 96, 1], 0)\n"
      "%c = aten::copy_(%h, %x, false)\n%y = aten::relu(%h)\n";
  EXPECT_EQ(pass(all_passes(part), "casts").fired, 0u) << "gaps";
  const std::string more =
      "%z = aten::zeros([128*tokens], dtype=float32)\n"
      "%h = aten::as_strided(%z, [1, tokens, 64], [64*tokens, 64, 1], 0)\n"
      "%c = aten::copy_(%h, %x, false)\n%y = aten::alias(%h)\n";
  EXPECT_EQ(pass(all_passes(more), "casts").fired, 0u) << "zeros behind it may be looked at";
  const std::string broadcast =
      "%z = aten::zeros([64*tokens], dtype=float32)\n"
      "%h = aten::as_strided(%z, [1, tokens, 64], [64*tokens, 64, 1], 0)\n"
      "%c = aten::copy_(%h, %w, false)\n%y = aten::relu(%h)\n";
  EXPECT_EQ(pass(all_passes(broadcast), "casts").fired, 0u) << "another size";
}

TEST(rewrite_casts, a_vector_is_cast_without_a_view_of_it) {
  const Rewriting cast = all_passes(
      "%z = aten::zeros([64], dtype=float32)\n"
      "%c = aten::copy_(%z, %w, false)\n"
      "%y = aten::relu(%z)\n");
  EXPECT_EQ(nodes_of(cast), "aten::_to_copy\naten::relu\n");
  EXPECT_EQ(pass(all_passes("%z = aten::zeros([64], dtype=float32)\n"
                            "%c = aten::copy_(%z, 1.0, false)\n"
                            "%y = aten::relu(%z)\n"),
                 "casts")
                .fired,
            0u)
      << "no tensor is copied";
}

TEST(rewrite_casts, what_was_cast_may_be_cast_again) {
  const auto fired = [](const std::string& copies) {
    return pass(all_passes("%z = aten::zeros([64*tokens], dtype=bfloat16)\n"
                           "%h = aten::as_strided(%z, [1, tokens, 64], [64*tokens, 64, 1], 0)\n"
                           "%c = aten::copy_(%h, %x, false)\n"
                           "%zz = aten::zeros([64*tokens], dtype=float32)\n"
                           "%hh = aten::as_strided(%zz, [1, tokens, 64], [64*tokens, 64, 1], 0)\n" +
                           copies + "%y = aten::relu(%hh)\n"),
                "casts")
        .fired;
  };
  EXPECT_EQ(fired("%cc = aten::copy_(%hh, %h, false)\n"), 2u);
  EXPECT_EQ(fired("%cc = aten::copy_(%h, %x, false)\n"), 0u) << "it is filled twice";
}

TEST(rewrite_casts, views_of_what_was_filled_become_views_of_the_cast) {
  const Rewriting cast = all_passes(kToFloat +
                                    "%v1 = aten::as_strided(%z, [64], [1], 0)\n"
                                    "%v2 = aten::as_strided(%h, [8], [1], 8)\n"
                                    "%y = aten::relu(%v1)\n%q = aten::relu(%v2)\n");
  EXPECT_EQ(pass(cast, "casts").fired, 1u);
  EXPECT_THAT(print_text(cast.graph), HasSubstr("%v1 = aten::as_strided(%h, [64], [1], 0)"));
  EXPECT_THAT(print_text(cast.graph), HasSubstr("%v2 = aten::as_strided(%h, [8], [1], 8)"));
  const Rewriting early = all_passes(
      "%z = aten::zeros([64*tokens], dtype=float32)\n"
      "%h = aten::as_strided(%z, [1, tokens, 64], [64*tokens, 64, 1], 0)\n"
      "%v1 = aten::as_strided(%z, [64], [1], 0)\n"
      "%c = aten::copy_(%h, %x, false)\n"
      "%y = aten::relu(%v1)\n");
  EXPECT_EQ(pass(early, "casts").fired, 0u) << "the view is there before the cast would be";
  EXPECT_EQ(pass(early, "casts").reasons.begin()->first,
            "it takes another size, or what it fills is seen otherwise");
}

std::string mean_square(const std::string& of) {
  return "%p = aten::pow.Tensor_Scalar(" + of + ", 2)\n" +
         "%m = aten::mean.dim(%p, [-1], true)\n"
         "%a = aten::add.Tensor(%m, 1e-06, alpha=1)\n"
         "%r = aten::rsqrt(%a)\n"
         "%n : float32[1, tokens, 64] = aten::mul.Tensor(" +
         of + ", %r)\n";
}

const std::string kFromFloat =
    "%zz = aten::zeros([64*tokens], dtype=bfloat16)\n"
    "%nn = aten::as_strided(%zz, [1, tokens, 64], [64*tokens, 64, 1], 0)\n"
    "%cc = aten::copy_(%nn, %n, false)\n";

TEST(rewrite_norms, the_forms_of_llama_and_gemma_are_norms) {
  const Rewriting half =
      all_passes(kToFloat + mean_square("%h") + kFromFloat + "%y = aten::mul.Tensor(%w, %nn)\n");
  EXPECT_EQ(nodes_of(half), "djinn::rms_norm\n");
  EXPECT_THAT(print_text(half.graph),
              HasSubstr("%y = djinn::rms_norm(%x, %w, 1e-06, false, true)"));
  const Rewriting whole = all_passes(mean_square("%f") + "%y = aten::mul.Tensor(%v, %n)\n");
  EXPECT_THAT(print_text(whole.graph),
              HasSubstr("%y = djinn::rms_norm(%f, %v, 1e-06, false, false)"));
  const Rewriting from_one = all_passes(mean_square("%f") +
                                        "%o = aten::add.Tensor(%v, 1.0, alpha=1)\n"
                                        "%y = aten::mul.Tensor(%n, %o)\n");
  EXPECT_EQ(nodes_of(from_one), "djinn::rms_norm\n");
  EXPECT_THAT(print_text(from_one.graph), HasSubstr("djinn::rms_norm(%f, %v, 1e-06, true, false)"));
  const Rewriting half_from_one = all_passes(kToFloat + mean_square("%h") +
                                             "%wide = aten::_to_copy(%w, dtype=float32)\n"
                                             "%o = aten::add.Tensor(%wide, 1.0, alpha=1)\n"
                                             "%s = aten::mul.Tensor(%n, %o)\n"
                                             "%y = aten::_to_copy(%s, dtype=bfloat16)\n");
  EXPECT_EQ(nodes_of(half_from_one), "djinn::rms_norm\n");
}

TEST(rewrite_norms, what_is_rounded_once_is_one_too) {
  for (const char* const product : {"%s = aten::mul.Tensor(%w, %n)\n",  // olmo2's
                                    "%wide = aten::_to_copy(%w, dtype=float32)\n"
                                    "%s = aten::mul.Tensor(%wide, %n)\n"}) {  // helium's
    const Rewriting once = all_passes(kToFloat + mean_square("%h") + product +
                                      "%y = aten::_to_copy(%s, dtype=bfloat16)\n");
    EXPECT_THAT(print_text(once.graph),
                HasSubstr("%y = djinn::rms_norm(%x, %w, 1e-06, false, true)"))
        << product;
  }
}

TEST(rewrite_norms, one_may_have_no_weight) {
  EXPECT_THAT(print_text(all_passes(mean_square("%f") + "%y = aten::relu(%n)\n").graph),
              HasSubstr("%n : float32[1, tokens, 64] = djinn::rms_norm(%f, none, 1e-06, false, "
                        "false)"));
  EXPECT_THAT(
      print_text(
          all_passes(kToFloat + mean_square("%h") + kFromFloat + "%y = aten::relu(%nn)\n").graph),
      HasSubstr("djinn::rms_norm(%x, none, 1e-06, false, true)"));
}

TEST(rewrite_norms, what_stays_has_a_reason) {
  const auto reason = [](const std::string& body) {
    return pass(all_passes(body), "norm").reasons.begin()->first;
  };
  EXPECT_EQ(reason(kToFloat + mean_square("%h") + "%y = aten::mul.Tensor(%v, %n)\n"),
            "its weight is of another form or dtype");
  EXPECT_EQ(reason("%d = aten::sub.Tensor(%f, %v, alpha=1)\n" + mean_square("%d") +
                   "%y = aten::relu(%n)\n"),
            "it subtracts the mean");
  EXPECT_EQ(reason("%y = aten::rsqrt(%f)\n"), "its root is of another form");
  const char* const other = "it is over several dimensions, or of mixed dtypes";
  EXPECT_EQ(reason("%y = aten::layer_norm(%f, [64], %w, none, 1e-05, false)\n"), other);
  EXPECT_EQ(reason("%y = aten::layer_norm(%f, [tokens, 64], none, none, 1e-05, false)\n"), other);
  EXPECT_EQ(reason("%y = aten::rms_norm(%x, [64], %w, 1e-05)\n"), "it is one node already");
}

TEST(rewrite_norms, layer_norms_are_ours) {
  const Rewriting layer = all_passes("%y = aten::layer_norm(%f, [64], %v, none, 1e-05, false)\n");
  EXPECT_THAT(print_text(layer.graph), HasSubstr("%y = djinn::layer_norm(%f, %v, none, 1e-05)"));
}

TEST(rewrite_norms, what_is_like_one_stays) {
  const std::string norm = mean_square("%f");
  for (const std::string& body :
       {norm + "%y = aten::mul.Tensor(%w, %n)\n",                           // another dtype
        norm + "%y = aten::mul.Tensor(%x, %n)\n",                           // no weight
        norm + "%y = aten::mul.Tensor(%v, %n)\n%q = aten::relu(%r)\n",      // the root is used
        norm + "%q = aten::relu_(%f)\n%y = aten::mul.Tensor(%v, %n)\n"}) {  // written amid it
    EXPECT_THAT(print_text(all_passes(body).graph), HasSubstr("%y = aten::mul.Tensor(")) << body;
  }
  const std::string narrowed = norm +
                               "%o = aten::add.Tensor(%v, 1.0, alpha=1)\n"
                               "%s = aten::mul.Tensor(%n, %o)\n"
                               "%y = aten::_to_copy(%s, dtype=int64)\n";
  EXPECT_THAT(print_text(all_passes(narrowed).graph), HasSubstr("aten::_to_copy(%s, dtype=int64)"));
  std::string other = norm;
  other.replace(other.find("[-1]"), 4, "[-2]");
  EXPECT_EQ(pass(all_passes(other + "%y = aten::mul.Tensor(%v, %n)\n"), "norm").fired, 0u);
  EXPECT_EQ(pass(all_passes(other + "%y = aten::mul.Tensor(%v, %n)\n"), "norm").reasons.size(), 1u);
}

TEST(rewrite_gates, activations_take_the_product_behind_them_along) {
  EXPECT_THAT(print_text(all_passes("%s = aten::silu(%x)\n%y = aten::mul.Tensor(%s, %x)\n").graph),
              HasSubstr("%y = djinn::gate(%x, %x, \"silu\", false)"));
  EXPECT_THAT(print_text(all_passes("%g = aten::relu(%x)\n"
                                    "%s = aten::gelu(%x, approximate=\"tanh\")\n"
                                    "%y = aten::mul.Tensor(%g, %s)\n")
                             .graph),
              HasSubstr("%y = djinn::gate(%x, %g, \"gelu_tanh\", true)"));
  EXPECT_THAT(print_text(all_passes("%s = aten::gelu(%x)\n%y = aten::mul.Tensor(%s, %x)\n").graph),
              HasSubstr("%y = djinn::gate(%x, %x, \"gelu\", false)"));
}

TEST(rewrite_gates, activations_of_floats_need_no_product) {
  EXPECT_THAT(print_text(all_passes("%y = aten::silu(%x)\n").graph),
              HasSubstr("%y = djinn::gate(%x, none, \"silu\", false)"));
  EXPECT_THAT(print_text(all_passes("%y = aten::gelu(%x, approximate=\"none\")\n").graph),
              HasSubstr("%y = djinn::gate(%x, none, \"gelu\", false)"));
  EXPECT_THAT(print_text(all_passes("%y = aten::gelu(%x, approximate=\"tan\")\n").graph),
              HasSubstr("aten::gelu"));
  const Rewriting unknown = all_passes("%u = aten::relu(%x)\n%y = aten::gelu(%u)\n");
  EXPECT_EQ(pass(unknown, "gated").reasons.begin()->first,
            "its dtype is not known, or has no kernel");
}

std::string composed_gelu(const std::string& cubed_by) {
  return "%s = aten::mul.Tensor(%x, 0.5)\n"
         "%p = aten::pow.Tensor_Scalar(%x, " +
         cubed_by +
         ")\n"
         "%q = aten::mul.Tensor(%p, 0.044715)\n"
         "%a = aten::add.Tensor(%x, %q, alpha=1)\n"
         "%b = aten::mul.Tensor(%a, 0.7978845608028654)\n"
         "%t = aten::tanh(%b)\n"
         "%o = aten::add.Tensor(%t, 1.0, alpha=1)\n"
         "%y = aten::mul.Tensor(%s, %o)\n";
}

TEST(rewrite_gates, eight_nodes_are_gelu) {
  const Rewriting gelu = all_passes(composed_gelu("3.0"));
  EXPECT_EQ(nodes_of(gelu), "djinn::gate\n");
  EXPECT_THAT(print_text(gelu.graph), HasSubstr("djinn::gate(%x, none, \"gelu_tanh\", false)"));
  EXPECT_EQ(pass(all_passes(composed_gelu("2.0")), "gated").fired, 0u);
}

// What the operators that stand for them would compute in float32.
TEST(rewrite, forms_in_a_dtype_without_kernels_stay) {
  const std::string head =
      "symbol tokens 1..512 tokens\n"
      "input %x : float64[1, tokens, 64]\n"
      "weight %w \"w\" : float64[64]\n";
  EXPECT_EQ(pass(rewrite(parsed(head + composed_gelu("3.0") + "output %y\n")), "gated").fired, 0u);
  const std::string norm = "%h = aten::_to_copy(%x, dtype=float32)\n" + mean_square("%h") +
                           "%s = aten::mul.Tensor(%w, %n)\n"
                           "%y = aten::_to_copy(%s, dtype=float64)\n";
  EXPECT_EQ(pass(rewrite(parsed(head + norm + "output %y\n")), "norm").fired, 0u);
}

std::string rope(const std::string& second_half) {
  return "%b = aten::as_strided(%x, [1, 4, tokens, 16], [64*tokens, 16, 64, 1], 0)\n"
         "%cos = aten::as_strided(%f, [1, 1, tokens, 16], [64*tokens, 64*tokens, 64, 1], 0)\n"
         "%c = aten::mul.Tensor(%b, %cos)\n"
         "%x2 = aten::as_strided(%x, [1, 4, tokens, 8], [64*tokens, 16, 64, 1], " +
         second_half +
         ")\n"
         "%neg = aten::neg(%x2)\n"
         "%x1 = aten::as_strided(%x, [1, 4, tokens, 8], [64*tokens, 16, 64, 1], 0)\n"
         "%t = aten::cat([%neg, %x1], -1)\n"
         "%s = aten::mul.Tensor(%t, %cos)\n"
         "%y = aten::add.Tensor(%c, %s, alpha=1)\n";
}

TEST(rewrite_ropes, a_turn_of_the_halves_is_one_node) {
  const Rewriting turned = all_passes(rope("8"));
  EXPECT_EQ(nodes_of(turned), "aten::as_strided\naten::as_strided\ndjinn::rope\n");
  EXPECT_THAT(print_text(turned.graph), HasSubstr("%y = djinn::rope(%b, %cos, %cos, false)"));
  const PassReport other = pass(all_passes(rope("9")), "rope");
  EXPECT_EQ(other.fired, 0u) << "other halves";
  EXPECT_EQ(other.reasons.begin()->first,
            "what is negated is no part of a head, or turned in another form");
}

TEST(rewrite_ropes, a_turn_of_neighbours_is_one_node) {
  const auto turned = [](const std::string& second, const std::string& seen) {
    return all_passes(
        "%b = aten::as_strided(%x, [1, 4, tokens, 16], [64*tokens, 16, 64, 1], 0)\n"
        "%cos = aten::as_strided(%f, [1, 1, tokens, 16], [64*tokens, 64*tokens, 64, 1], 0)\n"
        "%c = aten::mul.Tensor(%b, %cos)\n"
        "%x2 = aten::as_strided(%x, [1, 4, tokens, 8], [64*tokens, 16, 64, 2], " +
        second +
        ")\n"
        "%neg = aten::neg(%x2)\n"
        "%x1 = aten::as_strided(%x, [1, 4, tokens, 8], [64*tokens, 16, 64, 2], 0)\n"
        "%t = aten::stack([%neg, %x1], -1)\n"
        "%tt = aten::as_strided(%t, [1, 4, tokens, 16], [" +
        seen +
        "], 0)\n"
        "%s = aten::mul.Tensor(%tt, %cos)\n"
        "%y = aten::add.Tensor(%c, %s, alpha=1)\n");
  };
  const Rewriting neighbours = turned("1", "64*tokens, 16*tokens, 16, 1");
  EXPECT_EQ(nodes_of(neighbours), "aten::as_strided\naten::as_strided\ndjinn::rope\n");
  EXPECT_THAT(print_text(neighbours.graph), HasSubstr("%y = djinn::rope(%b, %cos, %cos, true)"));
  EXPECT_EQ(pass(turned("8", "64*tokens, 16*tokens, 16, 1"), "rope").fired, 0u);
  EXPECT_EQ(pass(turned("1", "64*tokens, 16, 64, 1"), "rope").fired, 0u);
}

// As models have it that norm each head, and turn it then: there is no view of x but of its halves.
TEST(rewrite_ropes, all_of_a_cast_is_turned_too) {
  const auto turned = [](const std::string& strides) {
    return pass(all_passes("%h = aten::zeros([64], dtype=bfloat16)\n"
                           "%b = aten::as_strided(%h, [1, 4, 1, 16], [64, 16, 64, 1], 0)\n"
                           "%from = aten::as_strided(%f, [1, 4, 1, 16], [64, 16, 64, 1], 0)\n"
                           "%copied = aten::copy_(%b, %from, false)\n"
                           "%c = aten::mul.Tensor(%b, %w)\n"
                           "%x2 = aten::as_strided(%h, [1, 4, 1, 8], " +
                           strides +
                           ", 8)\n"
                           "%neg = aten::neg(%x2)\n"
                           "%x1 = aten::as_strided(%h, [1, 4, 1, 8], [64, 16, 64, 1], 0)\n"
                           "%t = aten::cat([%neg, %x1], -1)\n"
                           "%s = aten::mul.Tensor(%t, %w)\n"
                           "%y = aten::add.Tensor(%c, %s, alpha=1)\n"),
                "rope")
        .fired;
  };
  EXPECT_EQ(turned("[64, 16, 64, 1]"), 1u);
  EXPECT_EQ(turned("[64, 16, 1, 1]"), 1u) << "of one element no step is taken";
  EXPECT_EQ(turned("[64, 8, 64, 1]"), 0u);
}

TEST(rewrite_attention, a_prompts_stays_and_says_so) {
  const auto attention = [](const std::string& causal, const std::string& scale = "scale=0.25, ") {
    return all_passes(
        "%q = aten::as_strided(%x, [1, 4, tokens, 16], [64*tokens, 16, 64, 1], 0)\n"
        "%y = aten::scaled_dot_product_attention(%q, %q, %q, none, 0.0, " +
        causal + ", " + scale + "enable_gqa=false)\n");
  };
  EXPECT_THAT(print_text(attention("false").graph),
              HasSubstr("%y = djinn::attend(%q, %q, %q, none, 0.25, false)"));
  EXPECT_THAT(print_text(attention("false", "").graph),
              HasSubstr("%y = djinn::attend(%q, %q, %q, none, none, false)"));
  const PassReport report = pass(attention("true"), "attend");
  EXPECT_EQ(report.fired, 0u);
  EXPECT_EQ(report.reasons.begin()->first, "it is a prompt's");
}

TEST(rewrite_attention, a_softmax_by_which_nothing_is_multiplied_is_none) {
  const auto reasons = [](const std::string& body) {
    return pass(all_passes("%s = aten::_softmax(%f, -1, false)\n" + body), "attend").reasons;
  };
  EXPECT_EQ(reasons("%t = aten::_to_copy(%s, dtype=bfloat16)\n%y = aten::matmul(%t, %w)\n")
                .begin()
                ->first,
            "its scores are of another form");
  EXPECT_TRUE(reasons("%y = aten::relu(%s)\n").empty());
}

// A node that an earlier pass made in the place of the copy makes what the copy read.
TEST(rewrite_attention, a_softmax_whose_cast_was_made_one_node_is_followed_to_its_product) {
  const Rewriting rewriting = all_passes(
      "%s : float32[1, tokens, 64] = aten::_softmax(%f, -1, false)\n"
      "%z = aten::zeros([64*tokens], dtype=bfloat16)\n"
      "%t = aten::as_strided(%z, [1, tokens, 64], [64*tokens, 64, 1], 0)\n"
      "%c = aten::copy_(%t, %s, false)\n"
      "%y = aten::matmul(%t, %w)\n");
  EXPECT_EQ(pass(rewriting, "casts").fired, 1u);
  EXPECT_EQ(pass(rewriting, "attend").reasons.begin()->first, "its scores are of another form");
}

}  // namespace
}  // namespace djinn::srg
