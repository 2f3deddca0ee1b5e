// SPDX-License-Identifier: Apache-2.0

// Quantities with a unit behind them, as people write them: "12GiB", "5min".
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace djinn {

struct Unit {
  std::string_view name;  // empty: of a number that stands alone
  uint64_t factor;
};

// A whole number and one of the units, with spaces between them or none. Nothing where the text is
// no such thing or too large.
[[nodiscard]] std::optional<uint64_t> quantity_of(std::string_view text,
                                                  std::span<const Unit> units);

// What a number of time without a unit is, but for 0.
enum class NoUnit : uint8_t { kRefused, kSeconds };

// A whole number with ms, s, m or min, h, d, or 0. kSeconds: a number alone is one of seconds, and
// may be a fraction, which is rounded to milliseconds. Nothing for anything else.
[[nodiscard]] std::optional<uint64_t> milliseconds_of(std::string_view text,
                                                      NoUnit no_unit = NoUnit::kRefused);

// For people: a time lasts so many milliseconds at most.
[[nodiscard]] constexpr uint64_t ms_rounded_up(uint64_t ns) {
  return ns / 1'000'000 + (ns % 1'000'000 != 0 ? 1 : 0);
}

}  // namespace djinn
