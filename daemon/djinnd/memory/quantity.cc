// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/memory/quantity.h"

#include <array>

#include "kernel/base/units.h"

namespace djinn::daemon {
namespace {

constexpr std::array kBytes{Unit{"", 1}, Unit{"KiB", uint64_t{1} << 10},
                            Unit{"MiB", uint64_t{1} << 20}, Unit{"GiB", uint64_t{1} << 30},
                            Unit{"TiB", uint64_t{1} << 40}};
constexpr std::array kNone{Unit{"", 1}};

}  // namespace

std::optional<uint64_t> bytes_of(std::string_view text) {
  return quantity_of(text, kBytes);
}

std::optional<uint64_t> number_of(std::string_view text) {
  return quantity_of(text, kNone);
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
