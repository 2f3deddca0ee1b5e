// SPDX-License-Identifier: Apache-2.0

#include "kernel/base/assert.h"

#include <stdlib.h>
#include <unistd.h>

#include <string_view>

namespace djinn {
namespace {

void put(std::string_view text) noexcept {
  // The process dies, so nobody is left to act on a short write.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace

void assertion_failed(const char* condition, const char* file, int line) noexcept {
  char digits[12];
  size_t at = sizeof digits;
  for (unsigned rest = static_cast<unsigned>(line); at > 0; rest /= 10) {
    digits[--at] = static_cast<char>('0' + rest % 10);
    if (rest < 10) break;
  }
  put("djinn: assertion failed: ");
  put(condition);
  put(" at ");
  put(file);
  put(":");
  put({digits + at, sizeof digits - at});
  put("\n");
  ::abort();
}

}  // namespace djinn
