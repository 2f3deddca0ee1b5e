// SPDX-License-Identifier: Apache-2.0

// Memory as people write it, in the configuration and on the command line: "12GiB", "80%". Times
// are read by kernel/base/units.h.
//
//   amount   bytes, or a share of the memory that may be granted
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace djinn::daemon {

// A number without a unit, or with KiB, MiB, GiB, TiB. Nothing where it is no such thing or too
// large.
[[nodiscard]] std::optional<uint64_t> bytes_of(std::string_view text);
[[nodiscard]] std::optional<uint64_t> number_of(std::string_view text);
// A number from 1 to 100, with % or without.
[[nodiscard]] std::optional<uint32_t> percent_of(std::string_view text);

struct Amount {
  uint64_t number = 0;
  bool is_percent = false;

  [[nodiscard]] uint64_t of(uint64_t total_bytes) const {
    return is_percent ? total_bytes / 100 * number : number;
  }
  friend bool operator==(const Amount&, const Amount&) = default;
};
// Bytes as bytes_of() reads them, or a share, which must have its %.
[[nodiscard]] std::optional<Amount> amount_of(std::string_view text);

}  // namespace djinn::daemon
