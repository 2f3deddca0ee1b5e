// SPDX-License-Identifier: Apache-2.0

#include "kernel/base/units.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "kernel/base/checked.h"

namespace djinn {
namespace {

constexpr std::array kTimes{Unit{"ms", 1},       Unit{"s", 1000},      Unit{"m", 60'000},
                            Unit{"min", 60'000}, Unit{"h", 3'600'000}, Unit{"d", 86'400'000}};

// In a larger double one millisecond can no longer be told from the next.
constexpr double kSecondsMax = 1e12;

std::optional<uint64_t> milliseconds_of_seconds(std::string_view text) {
  double seconds = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, seconds);
  if (error != std::errc() || rest != end) return std::nullopt;
  if (!(seconds >= 0 && seconds <= kSecondsMax)) return std::nullopt;  // nor what is no number
  return static_cast<uint64_t>(std::llround(seconds * 1000));
}

}  // namespace

std::optional<uint64_t> quantity_of(std::string_view text, std::span<const Unit> units) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  std::string_view name(end, static_cast<size_t>(text.data() + text.size() - end));
  while (name.starts_with(' ')) name.remove_prefix(1);
  const auto unit = std::ranges::find(units, name, &Unit::name);
  if (unit == units.end()) return std::nullopt;
  return checked_mul(number, unit->factor);
}

std::optional<uint64_t> milliseconds_of(std::string_view text, NoUnit no_unit) {
  if (text == "0") return 0;
  if (const auto time = quantity_of(text, kTimes)) return time;
  return no_unit == NoUnit::kSeconds ? milliseconds_of_seconds(text) : std::nullopt;
}

}  // namespace djinn
