// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/memory/quantity.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "kernel/base/checked.h"

namespace djinn::daemon {
namespace {

struct Unit {
  std::string_view name;
  uint64_t factor;
};
constexpr std::array kBytes{Unit{"", 1}, Unit{"KiB", uint64_t{1} << 10},
                            Unit{"MiB", uint64_t{1} << 20}, Unit{"GiB", uint64_t{1} << 30},
                            Unit{"TiB", uint64_t{1} << 40}};
constexpr std::array kMilliseconds{Unit{"ms", 1}, Unit{"s", 1000}, Unit{"min", 60'000},
                                   Unit{"h", 3'600'000}, Unit{"d", 86'400'000}};
constexpr std::array kNone{Unit{"", 1}};

// A whole number and one of the units.
template <size_t N>
std::optional<uint64_t> quantity(std::string_view text, const std::array<Unit, N>& units) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  std::string_view name(end, static_cast<size_t>(text.data() + text.size() - end));
  while (name.starts_with(' ')) name.remove_prefix(1);
  const auto unit = std::ranges::find(units, name, &Unit::name);
  if (unit == units.end()) return std::nullopt;
  return checked_mul(number, unit->factor);
}

}  // namespace

std::optional<uint64_t> bytes_of(std::string_view text) {
  return quantity(text, kBytes);
}

std::optional<uint64_t> milliseconds_of(std::string_view text) {
  return quantity(text, kMilliseconds);
}

std::optional<uint64_t> number_of(std::string_view text) {
  return quantity(text, kNone);
}

std::optional<uint32_t> percent_of(std::string_view text) {
  if (text.ends_with('%')) text.remove_suffix(1);
  const auto number = number_of(text);
  if (!number || *number < 1 || *number > 100) return std::nullopt;
  return static_cast<uint32_t>(*number);
}

std::optional<Amount> amount_of(std::string_view text) {
  if (text.ends_with('%')) {
    const auto percent = percent_of(text);
    return percent ? std::optional(Amount{*percent, true}) : std::nullopt;
  }
  const auto bytes = bytes_of(text);
  return bytes ? std::optional(Amount{*bytes, false}) : std::nullopt;
}

}  // namespace djinn::daemon
