// SPDX-License-Identifier: Apache-2.0

// One line of text on stderr for each event. ARCHITECTURE section 10 says what may stand there.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "kernel/base/ids.h"

namespace djinn::daemon {

// Writes "djinnd: TEXT\n" in one call, and does not wait where nobody reads: the line is lost then,
// and the next one that is written says how many were. Any thread.
void log_line(const std::string& text) noexcept;

// Lines that nobody read, since the start.
[[nodiscard]] uint64_t log_lines_lost() noexcept;

template <typename... Args>
void log(fmt::format_string<Args...> format, Args&&... args) {
  log_line(fmt::format(format, std::forward<Args>(args)...));
}

// An id as people see it: 12 hex digits.
template <typename Tag>
std::string text_of(Id<Tag> id) {
  return fmt::format("{:012x}", id.value);
}

}  // namespace djinn::daemon
