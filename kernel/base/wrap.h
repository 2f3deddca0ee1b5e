// SPDX-License-Identifier: Apache-2.0

// Text for a terminal's columns.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace djinn {

// Of the terminal that help is written for.
inline constexpr size_t kHelpColumns = 80;

// A newline in place of a space wherever a line would have more columns; a longer word has a line
// of its own. The text is of one column a byte.
[[nodiscard]] std::string wrapped(std::string_view text, size_t columns);

}  // namespace djinn
