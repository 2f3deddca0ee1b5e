// SPDX-License-Identifier: Apache-2.0

#include "kernel/base/units.h"

#include <gtest/gtest.h>

namespace djinn {
namespace {

struct Case {
  std::string_view text;
  std::optional<uint64_t> with_unit;   // in milliseconds
  std::optional<uint64_t> in_seconds;  // where a number alone is one of seconds
};
constexpr std::optional<uint64_t> kNone;

constexpr Case kCases[] = {
    {"250ms", 250, 250},
    {"30s", 30'000, 30'000},
    {"5m", 300'000, 300'000},
    {"5min", 300'000, 300'000},
    {"5 min", 300'000, 300'000},
    {"2h", 7'200'000, 7'200'000},
    {"1d", 86'400'000, 86'400'000},
    {"0", 0, 0},
    {"0s", 0, 0},
    {"60", kNone, 60'000},
    {"0.05", kNone, 50},
    {"1e3", kNone, 1'000'000},
    {"0.0001", kNone, 0},
    {"1.5s", kNone, kNone},
    {"-1", kNone, kNone},
    {"-1s", kNone, kNone},
    {"inf", kNone, kNone},
    {"nan", kNone, kNone},
    {"1e300", kNone, kNone},
    {"", kNone, kNone},
    {"s", kNone, kNone},
    {"m", kNone, kNone},
    {"1y", kNone, kNone},
    {"5M", kNone, kNone},
    {"5minutes", kNone, kNone},
    {"5m ", kNone, kNone},
    {"forever", kNone, kNone},
    {"99999999999999999999s", kNone, kNone},
    {"999999999999999999d", kNone, kNone},
};

TEST(Units, a_time_has_a_unit_or_is_zero_or_is_in_seconds_where_those_are_taken) {
  for (const Case& one : kCases) {
    EXPECT_EQ(milliseconds_of(one.text), one.with_unit) << one.text;
    EXPECT_EQ(milliseconds_of(one.text, NoUnit::kSeconds), one.in_seconds) << one.text;
  }
}

TEST(Units, a_quantity_is_a_whole_number_and_one_of_the_units) {
  constexpr Unit kUnits[] = {{"", 1}, {"dozen", 12}};
  EXPECT_EQ(quantity_of("7", kUnits), 7u);
  EXPECT_EQ(quantity_of("2 dozen", kUnits), 24u);
  EXPECT_FALSE(quantity_of("2 score", kUnits).has_value());
  EXPECT_FALSE(quantity_of("18446744073709551615dozen", kUnits).has_value());
}

}  // namespace
}  // namespace djinn
