// SPDX-License-Identifier: Apache-2.0

// DJINN_ASSERT guards an invariant of our own; it stays on in release builds and aborts with a
// line on stderr. It never guards input: bad input gets an Error (error.h).
#pragma once

namespace djinn {

// Prints the failed condition with its place to stderr and aborts. Async-signal-safe.
[[noreturn]] void assertion_failed(const char* condition, const char* file, int line) noexcept;

}  // namespace djinn

#define DJINN_ASSERT(condition)                                  \
  do {                                                           \
    if (!(condition)) [[unlikely]]                               \
      ::djinn::assertion_failed(#condition, __FILE__, __LINE__); \
  } while (false)
