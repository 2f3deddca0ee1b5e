// SPDX-License-Identifier: Apache-2.0

// Errors of the device as the exceptions that Python knows: a Result is taken, or its error raised.
#pragma once

#include <utility>

#include "kernel/base/result.h"

namespace djinn::device {

// Throws the error, as the exception type that its code means to Python (module.cc).
[[noreturn]] void raise(Error error);

// Likewise, as a class of djinn.errors.
[[noreturn]] void raise_as_ours(const Error& error);

template <typename T>
T take(Result<T> result) {
  if (!result) raise(std::move(result).error());
  return *std::move(result);
}
inline void take(Status status) {
  if (!status) raise(std::move(status).error());
}

}  // namespace djinn::device
