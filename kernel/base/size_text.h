// SPDX-License-Identifier: Apache-2.0

// Sizes and counts as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace djinn {

// IEC units, one decimal below 100: "1023 B", "1.5 KiB", "100 KiB". Rounded to nearest.
[[nodiscard]] std::string size_text(uint64_t bytes);
// "1 file", "2 files".
[[nodiscard]] std::string count_text(uint64_t count, std::string_view noun);

}  // namespace djinn
