// SPDX-License-Identifier: Apache-2.0

#include "kernel/srg/affine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernel/base/random.h"
#include "kernel/srg/expr.h"

namespace djinn::srg {
namespace {

using ::testing::HasSubstr;

using Points = std::vector<std::vector<int64_t>>;

const std::vector<Symbol> kSymbols = {{"batch", 1, 64, SymbolRole::kBatch},
                                      {"tokens", 1, 4096, SymbolRole::kTokens},
                                      {"heads", 12, 12, SymbolRole::kPlain},
                                      {"past", 0, 4096, SymbolRole::kPast}};

std::vector<int64_t> values_at(const Points& points, const Expr& expr) {
  std::vector<int64_t> values;
  for (const auto& point : points) values.push_back(*evaluate(expr, point));
  return values;
}

Points random_points(Random& random, size_t count, uint64_t below) {
  Points points(count);
  for (auto& point : points) {
    for (size_t i = 0; i < kSymbols.size(); ++i) {
      point.push_back(i == 2 ? 12 : static_cast<int64_t>(random.below(below)));
    }
  }
  return points;
}

Expr random_expr(Random& random) {
  Expr expr(static_cast<int64_t>(random.below(2001)) - 1000);
  for (const SymbolIndex symbol : {0u, 1u, 3u}) {
    expr = expr + symbol_expr(symbol) * (static_cast<int64_t>(random.below(4001)) - 2000);
  }
  return expr;
}

TEST(AffineFit, finds_the_function_from_its_values_at_arbitrary_points) {
  Random random(7);
  int fitted = 0;
  for (int round = 0; round < 2000; ++round) {
    const uint64_t below = round % 2 == 0 ? 5 : uint64_t{1} << 24;
    const Points points = random_points(random, 4 + random.below(3), below);
    const auto fit = AffineFit::make(points, kSymbols);
    if (!fit) {
      ASSERT_EQ(fit.error().code, ErrorCode::kInvalidArgument) << fit.error().message;
      continue;
    }
    const Expr expr = random_expr(random);
    ASSERT_EQ(fit->through(values_at(points, expr)), expr);
    ++fitted;
  }
  EXPECT_GT(fitted, 1500);
}

TEST(AffineFit, one_value_off_at_any_point_is_no_affine_function) {
  Random random(8);
  const Points points = random_points(random, 6, 1000);
  const auto fit = AffineFit::make(points, kSymbols);
  ASSERT_TRUE(fit.ok()) << fit.error().message;
  const auto values = values_at(points, random_expr(random));
  for (size_t i = 0; i < values.size(); ++i) {
    auto off = values;
    off[i] += 1;
    EXPECT_EQ(fit->through(off), std::nullopt) << i;
  }
}

TEST(AffineFit, coefficients_are_integers) {
  const Points points = {{2, 1, 12, 0}, {4, 1, 12, 0}, {2, 2, 12, 0}, {2, 1, 12, 1}};
  const auto fit = AffineFit::make(points, kSymbols);
  EXPECT_EQ(fit->through(std::vector<int64_t>{1, 2, 1, 1}), std::nullopt);  // batch / 2
  EXPECT_EQ(fit->through(std::vector<int64_t>{2, 4, 2, 2}), symbol_expr(0));
}

TEST(AffineFit, a_symbol_of_one_value_occurs_in_no_function) {
  const std::vector<Symbol> constant = {{"heads", 12, 12, SymbolRole::kPlain}};
  const auto fit = AffineFit::make({{12}}, constant);
  ASSERT_TRUE(fit.ok());
  EXPECT_EQ(fit->through(std::vector<int64_t>{24}), Expr(24));
}

TEST(AffineFit, values_at_the_ends_of_the_integers_fit_or_are_refused) {
  const std::vector<Symbol> one = {{"n", 0, 8, SymbolRole::kPlain}};
  const auto fit = AffineFit::make({{0}, {1}, {2}}, one);
  const auto through = [&](int64_t a, int64_t b, int64_t c) {
    return fit->through(std::vector<int64_t>{a, b, c});
  };
  EXPECT_EQ(through(INT64_MAX, INT64_MAX, INT64_MAX), Expr(INT64_MAX));
  EXPECT_EQ(through(INT64_MIN, INT64_MIN + 1, INT64_MIN + 2), Expr(INT64_MIN) + symbol_expr(0));
  EXPECT_EQ(through(INT64_MAX, INT64_MAX - 1, INT64_MAX - 2), Expr(INT64_MAX) - symbol_expr(0));
  EXPECT_EQ(through(INT64_MIN, INT64_MAX, 0), std::nullopt);
  EXPECT_EQ(through(INT64_MAX, INT64_MIN, 0), std::nullopt);
}

TEST(AffineFit, points_that_vary_one_symbol_each_may_be_as_large_as_symbols_are) {
  constexpr int64_t kTop = int64_t{1} << 40;
  std::vector<Symbol> symbols;
  Points points(1, std::vector<int64_t>(64, 0));
  Expr expr(5);
  for (SymbolIndex i = 0; i < 64; ++i) {
    symbols.push_back({"s" + std::to_string(i), 0, kTop, SymbolRole::kPlain});
    points.push_back(points[0]);
    points.back()[i] = kTop - i;
    if (i % 9 == 0) expr = expr + symbol_expr(i) * (i + 1);
  }
  const auto fit = AffineFit::make(points, symbols);
  ASSERT_TRUE(fit.ok()) << fit.error().message;
  EXPECT_EQ(fit->through(values_at(points, expr)), expr);
}

TEST(AffineFit, points_whose_determinants_overflow_are_refused) {
  Random random(9);
  std::vector<Symbol> symbols;
  Points points(9);
  for (int i = 0; i < 8; ++i) {
    symbols.push_back({"s" + std::to_string(i), 0, int64_t{1} << 40, SymbolRole::kPlain});
    for (auto& point : points) point.push_back(static_cast<int64_t>(random.next() >> 24));
  }
  EXPECT_EQ(AffineFit::make(points, symbols).error().code, ErrorCode::kOutOfRange);
}

struct Undetermined {
  const char* what;
  Points points;
  const char* message;
};

void PrintTo(const Undetermined& row, std::ostream* out) {
  *out << row.what;
}

class AffineFitErrors : public ::testing::TestWithParam<Undetermined> {};

TEST_P(AffineFitErrors, points_that_do_not_determine_are_refused_with_the_symbol) {
  const auto fit = AffineFit::make(GetParam().points, kSymbols);
  ASSERT_FALSE(fit.ok());
  EXPECT_EQ(fit.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(fit.error().message, HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    All, AffineFitErrors,
    ::testing::Values(
        Undetermined{"no point", {}, "no point"},
        Undetermined{"a point of another length", {{1, 2, 12}}, "3 values; there are 4 symbols"},
        Undetermined{"one point", {{1, 2, 12, 3}}, "batch is 1 at every point"},
        Undetermined{"batch never changes",
                     {{2, 1, 12, 0}, {2, 5, 12, 0}, {2, 1, 12, 9}, {2, 7, 12, 7}},
                     "batch is 2 at every point"},
        Undetermined{"past follows tokens",
                     {{1, 1, 12, 2}, {2, 1, 12, 2}, {1, 3, 12, 6}, {2, 5, 12, 10}},
                     "past from tokens"},
        Undetermined{"past follows the sum of both",
                     {{1, 1, 12, 2}, {2, 1, 12, 3}, {1, 3, 12, 4}, {5, 5, 12, 10}},
                     "past from batch, tokens"},
        Undetermined{"the same point again",
                     {{1, 1, 12, 0}, {1, 1, 12, 0}, {3, 1, 12, 0}, {1, 1, 12, 4}},
                     "tokens is 1 at every point"}));

}  // namespace
}  // namespace djinn::srg
