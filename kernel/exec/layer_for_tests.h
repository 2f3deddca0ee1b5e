// SPDX-License-Identifier: Apache-2.0

// A decoder's layer in SRG, as captures have it, over keys and values that are inputs: all passes
// of fast numerics fire.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernel/exec/executor_for_tests.h"
#include "kernel/srg/text.h"

namespace djinn::exec {

inline std::string replaced(std::string text, const std::map<std::string, std::string>& words) {
  for (const auto& [word, by] : words) {
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at)) {
      text.replace(at, word.size(), by);
    }
  }
  return text;
}

// h = x in float32 and nn = n in D, as captures cast.
inline constexpr const char* kCastsIn =
    "%z = aten::zeros([ALL], dtype=float32)\n"
    "%h = aten::as_strided(%z, [ROWS, 1, 64], [64, 64, 1], 0)\n"
    "%c = aten::copy_(%h, %x, false)\n";
inline constexpr const char* kCastsOut =
    "%zz = aten::zeros([ALL], dtype=D)\n"
    "%nn = aten::as_strided(%zz, [ROWS, 1, 64], [64, 64, 1], 0)\n"
    "%cc = aten::copy_(%nn, %n, false)\n";
inline constexpr const char* kLayer =
    "input %x : D[ROWS, 1, 64]\n"
    "input %keys : D[ROWS, 2, 40, 16]\n"
    "input %values : D[ROWS, 2, 40, 16]\n"
    "input %mask : bool[ROWS, 1, 1, 40]\n"
    "input %cos : D[ROWS, 1, 1, 16]\n"
    "input %sin : D[ROWS, 1, 1, 16]\n"
    "weight %w \"norm\" : D[64]\n"
    "weight %wq \"q\" : D[64, 64]\n"
    "weight %bq \"qb\" : D[64]\n"
    "weight %wo \"o\" : D[64, 64]\n"
    "weight %wg \"gate\" : D[128, 64]\n"
    "weight %wu \"up\" : D[128, 64]\n"
    "weight %wd \"down\" : D[128, 64]\n"
    "CASTSIN"
    "%p = aten::pow.Tensor_Scalar(H, 2)\n"
    "%m = aten::mean.dim(%p, [-1], true)\n"
    "%a = aten::add.Tensor(%m, 1e-06, alpha=1)\n"
    "%r = aten::rsqrt(%a)\n"
    "%n : WIDE[ROWS, 1, 64] = aten::mul.Tensor(H, %r)\n"
    "CASTSOUT"
    "%norm = aten::mul.Tensor(%w, N)\n"
    "%q = aten::linear(%norm, %wq, %bq)\n"
    "%qh = aten::as_strided(%q, [ROWS, 4, 1, 16], [64, 16, 64, 1], 0)\n"
    "%qc = aten::mul.Tensor(%qh, %cos)\n"
    "%q2 = aten::as_strided(%q, [ROWS, 4, 1, 8], [64, 16, 64, 1], 8)\n"
    "%qn = aten::neg(%q2)\n"
    "%q1 = aten::as_strided(%q, [ROWS, 4, 1, 8], [64, 16, 64, 1], 0)\n"
    "%qt = aten::cat([%qn, %q1], -1)\n"
    "%qs = aten::mul.Tensor(%qt, %sin)\n"
    "%qr = aten::add.Tensor(%qc, %qs, alpha=1)\n"
    "%at = aten::scaled_dot_product_attention(%qr, %keys, %values, %mask, 0.0, false, scale=0.25, "
    "enable_gqa=true)\n"
    "%atf = aten::reshape(%at, [ROWS, 1, 64])\n"
    "%o = aten::linear(%atf, %wo)\n"
    "%mid = aten::add.Tensor(%x, %o, alpha=1)\n"
    "%g = aten::linear(%mid, %wg)\n"
    "%s = aten::silu(%g)\n"
    "%u = aten::linear(%mid, %wu)\n"
    "%gu = aten::mul.Tensor(%s, %u)\n"
    "%flat = aten::reshape(%gu, [ROWS, 128])\n"
    "%dn = aten::addmm(%bq, %flat, %wd, beta=1, alpha=1)\n"
    "%back = aten::reshape(%dn, [ROWS, 1, 64])\n"
    "%d = aten::add.Tensor(%mid, %back, alpha=1)\n"
    "output %d\n";

// Storages: x, keys, values, mask, cos, sin, then the weights.
inline srg::Graph layer_graph(at::ScalarType type, int64_t rows, srg::Numerics numerics) {
  const bool is_narrow = type == at::kBFloat16 || type == at::kHalf;
  const std::string dtype(name_of(from_torch(type)));
  std::string text = replaced(
      kLayer, {{"CASTSIN", is_narrow ? kCastsIn : ""}, {"CASTSOUT", is_narrow ? kCastsOut : ""}});
  text = replaced(
      text, {{"(H", is_narrow ? "(%h" : "(%x"}, {"%w, N)", is_narrow ? "%w, %nn)" : "%w, %n)"}});
  text = replaced(text, {{"WIDE", is_narrow ? "float32" : dtype},
                         {"ROWS", std::to_string(rows)},
                         {"ALL", std::to_string(rows * 64)},
                         {"D[", dtype + "["},
                         {"dtype=D", "dtype=" + dtype}});
  Result<srg::Graph> graph = srg::parse_text("srg 1 \"layer\"\n" + text);
  EXPECT_TRUE(graph.ok()) << graph.error().message;
  graph->numerics = numerics;
  return *std::move(graph);
}

inline std::map<std::string, at::Tensor> layer_weights(at::ScalarType type) {
  std::map<std::string, at::Tensor> made;
  const std::vector<std::pair<const char*, std::vector<int64_t>>> all = {
      {"norm", {64}},      {"q", {64, 64}},   {"qb", {64}},       {"o", {64, 64}},
      {"gate", {128, 64}}, {"up", {128, 64}}, {"down", {128, 64}}};
  uint64_t seed = 1;
  for (const auto& [name, sizes] : all) made[name] = noise(sizes, seed++, type);
  return made;
}

// Rows [begin, begin + rows) of five.
inline std::vector<at::Tensor> layer_inputs(at::ScalarType type, int64_t begin, int64_t rows) {
  constexpr int64_t kRows = 5;
  std::vector<at::Tensor> all = {
      noise({kRows, 1, 64}, 20, type),     noise({kRows, 2, 40, 16}, 21, type),
      noise({kRows, 2, 40, 16}, 22, type), at::zeros({kRows, 1, 1, 40}, at::kBool),
      noise({kRows, 1, 1, 16}, 23, type),  noise({kRows, 1, 1, 16}, 24, type)};
  bool* const mask = all[3].mutable_data_ptr<bool>();
  for (int64_t row = 0; row < kRows; ++row) {  // padding before, of another length in each row
    std::fill(mask + row * 40 + row * 3, mask + (row + 1) * 40, true);
  }
  for (at::Tensor& one : all) one = one.narrow(0, begin, rows).clone();
  return all;
}

}  // namespace djinn::exec
