// SPDX-License-Identifier: Apache-2.0

#include "kernel/srg/expr.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernel/base/random.h"

namespace djinn::srg {
namespace {

const std::vector<Symbol> kExprSymbols = {{"batch", 1, 8, SymbolRole::kBatch},
                                          {"tokens", 1, 512, SymbolRole::kTokens},
                                          {"past", 0, 4096, SymbolRole::kPast}};

Expr random_expr_of(Random& random) {
  Expr expr(static_cast<int64_t>(random.below(2001)) - 1000);
  for (int i = 0; i < 4; ++i) {
    const auto symbol = static_cast<SymbolIndex>(random.below(3));
    expr = expr + symbol_expr(symbol) * (static_cast<int64_t>(random.below(7)) - 3);
  }
  return expr;
}

TEST(Expr, sums_and_products_agree_with_integers_and_stay_canonical) {
  Random random(1);
  const std::vector<int64_t> point = {3, 17, 1009};
  for (int round = 0; round < 1000; ++round) {
    const Expr a = random_expr_of(random);
    const Expr b = random_expr_of(random);
    const int64_t x = *evaluate(a, point);
    const int64_t y = *evaluate(b, point);
    ASSERT_EQ(*evaluate(a + b, point), x + y);
    ASSERT_EQ(*evaluate(a - b, point), x - y);
    ASSERT_EQ(*evaluate(a * -3, point), x * -3);
    ASSERT_TRUE(is_canonical(a + b) && is_canonical(a - b) && is_canonical(a * 0));
  }
}

TEST(Expr, equal_functions_are_equal_data) {
  const Expr tokens = symbol_expr(1);
  const Expr past = symbol_expr(2);
  EXPECT_EQ(tokens + past, past + tokens);
  EXPECT_EQ(tokens - tokens, Expr(0));
  EXPECT_EQ((tokens + past) * 2 - tokens * 2, past * 2);
}

TEST(Expr, an_overflow_poisons_every_expression_made_from_it) {
  const Expr big = symbol_expr(0) * INT64_MAX;
  for (const Expr& bad : {Expr(INT64_MAX) + 1, Expr(INT64_MIN) * -1, big + big, big * 2}) {
    EXPECT_FALSE(is_canonical(bad));
    EXPECT_FALSE(is_canonical(bad * 0 + 1 - bad));
    EXPECT_EQ(evaluate(bad, std::vector<int64_t>{1, 1, 1}).error().code, ErrorCode::kOutOfRange);
    EXPECT_EQ(bounds(bad, kExprSymbols).error().code, ErrorCode::kOutOfRange);
  }
}

TEST(Expr, evaluation_refuses_overflow_and_unknown_symbols) {
  const std::vector<int64_t> two = {2};
  EXPECT_EQ(evaluate(symbol_expr(0) * INT64_MAX, two).error().code, ErrorCode::kOutOfRange);
  EXPECT_EQ(evaluate(symbol_expr(0) + INT64_MAX, two).error().code, ErrorCode::kOutOfRange);
  EXPECT_EQ(evaluate(symbol_expr(1), two).error().code, ErrorCode::kOutOfRange);
}

Bounds bounds_by_corners(const Expr& expr) {
  Bounds found{INT64_MAX, INT64_MIN};
  for (size_t corner = 0; corner < 8; ++corner) {
    std::vector<int64_t> point;
    for (size_t s = 0; s < 3; ++s) {
      point.push_back((corner >> s) & 1 ? kExprSymbols[s].max : kExprSymbols[s].min);
    }
    const int64_t value = *evaluate(expr, point);
    found = {std::min(found.min, value), std::max(found.max, value)};
  }
  return found;
}

TEST(Expr, bounds_are_the_extremes_over_all_corners) {
  Random random(2);
  for (int round = 0; round < 300; ++round) {
    const Expr expr = random_expr_of(random);
    ASSERT_EQ(*bounds(expr, kExprSymbols), bounds_by_corners(expr));
  }
}

TEST(Expr, text_reads_like_a_formula) {
  const Expr tokens = symbol_expr(1);
  const Expr past = symbol_expr(2);
  EXPECT_EQ(text_of(Expr(0), kExprSymbols), "0");
  EXPECT_EQ(text_of(tokens * 2 + past - 1, kExprSymbols), "2*tokens + past - 1");
  EXPECT_EQ(text_of(Expr(4) - tokens, kExprSymbols), "-tokens + 4");
  EXPECT_EQ(text_of(Expr(INT64_MIN), kExprSymbols), "-9223372036854775808");
  EXPECT_EQ(text_of(symbol_expr(9), kExprSymbols), "symbol_9");
}

}  // namespace
}  // namespace djinn::srg
