// SPDX-License-Identifier: Apache-2.0

#include "kernel/base/wrap.h"

#include <algorithm>

namespace djinn {

std::string wrapped(std::string_view text, size_t columns) {
  std::string lines;
  size_t column = 0;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
    const bool fits = column + 1 + word.size() <= columns;
    if (!lines.empty()) lines += fits ? ' ' : '\n';
    column = lines.empty() || !fits ? word.size() : column + 1 + word.size();
    lines += word;
  }
  return lines;
}

}  // namespace djinn
