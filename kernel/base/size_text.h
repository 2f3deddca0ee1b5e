// SPDX-License-Identifier: Apache-2.0

// Sizes as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace djinn {

// IEC units, one decimal below 100: "1023 B", "1.5 KiB", "100 KiB". Rounded to nearest.
[[nodiscard]] std::string size_text(uint64_t bytes);

}  // namespace djinn
