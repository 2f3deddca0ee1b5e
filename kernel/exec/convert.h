// SPDX-License-Identifier: Apache-2.0

// Between our dtypes and PyTorch's, and from its exceptions to our errors.
#pragma once

#include <exception>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "kernel/base/dtype.h"
#include "kernel/base/result.h"
#include "kernel/exec/torch_headers.h"

namespace djinn::exec {

// Nothing for kInvalid and for numbers that name no dtype.
[[nodiscard]] std::optional<at::ScalarType> to_torch(DType dtype) noexcept;
// kInvalid for types that do not cross our borders.
[[nodiscard]] DType from_torch(at::ScalarType type) noexcept;

// One line of an exception's text that may cross to a client: no backtrace, no source path, no
// address (ARCHITECTURE rule 5). At most 400 bytes.
[[nodiscard]] std::string presentable(std::string_view what);

// The Error for the exception being handled; call inside a catch block only.
[[nodiscard]] Error error_of_current_exception();

// f()'s Result, or the Error of what it threw: the boundary at which this folder's exceptions end.
template <typename F>
auto catching(F&& f) -> decltype(f()) {
  try {
    return std::forward<F>(f)();
  } catch (...) {
    return error_of_current_exception();
  }
}

// error with "where: " before its message.
[[nodiscard]] Error located(Error error, std::string_view where);

}  // namespace djinn::exec
