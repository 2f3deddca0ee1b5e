// SPDX-License-Identifier: Apache-2.0

// Result<T>: a value or an Error, never both, never neither. Libraries return it; programs log
// once.
//
//   Result<Fd> fd = make_memfd("weights", bytes);
//   if (!fd) return fd.error();
//   use(*fd);
//
// or, when the error only travels upwards: DJINN_TRY(Fd fd, make_memfd("weights", bytes));
#pragma once

#include <concepts>
#include <type_traits>
#include <utility>
#include <variant>

#include "kernel/base/assert.h"
#include "kernel/base/error.h"

namespace djinn {

template <typename T>
class [[nodiscard]] Result {
 public:
  using Value = T;

  template <typename U = T>
  requires(std::convertible_to<U&&, T> && !std::same_as<std::remove_cvref_t<U>, Result> &&
           !std::same_as<std::remove_cvref_t<U>, Error>) Result(U&& value)
      : state_(std::in_place_index<0>, std::forward<U>(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {
    DJINN_ASSERT(std::get_if<1>(&state_)->code != ErrorCode::kOk);
  }

  [[nodiscard]] bool ok() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return ok(); }

  [[nodiscard]] T& value() & {
    DJINN_ASSERT(ok());
    return *std::get_if<0>(&state_);
  }
  [[nodiscard]] const T& value() const& {
    DJINN_ASSERT(ok());
    return *std::get_if<0>(&state_);
  }
  [[nodiscard]] T&& value() && {
    DJINN_ASSERT(ok());
    return std::move(*std::get_if<0>(&state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  [[nodiscard]] const Error& error() const& {
    DJINN_ASSERT(!ok());
    return *std::get_if<1>(&state_);
  }
  [[nodiscard]] Error&& error() && {
    DJINN_ASSERT(!ok());
    return std::move(*std::get_if<1>(&state_));
  }
  // What DJINN_TRY hands on, as an Outcome's (outcome.h).
  [[nodiscard]] Error&& why_not() && { return std::move(*this).error(); }

 private:
  std::variant<T, Error> state_;
};

// The Result of an operation that gives nothing back: kOk, or an Error.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) { DJINN_ASSERT(error_.code != ErrorCode::kOk); }

  [[nodiscard]] bool ok() const noexcept { return error_.code == ErrorCode::kOk; }
  explicit operator bool() const noexcept { return ok(); }
  [[nodiscard]] const Error& error() const& {
    DJINN_ASSERT(!ok());
    return error_;
  }
  [[nodiscard]] Error&& error() && {
    DJINN_ASSERT(!ok());
    return std::move(error_);
  }
  [[nodiscard]] Error&& why_not() && { return std::move(*this).error(); }

 private:
  Error error_{ErrorCode::kOk, {}};
};

using Status = Result<void>;

}  // namespace djinn

#define DJINN_CONCAT_INNER(a, b) a##b
#define DJINN_CONCAT(a, b) DJINN_CONCAT_INNER(a, b)
#define DJINN_TRY_AS(temporary, declaration, expression) \
  auto temporary = (expression);                         \
  if (!temporary) return std::move(temporary).why_not(); \
  declaration = *std::move(temporary)

// DJINN_TRY(auto x, f()): x is f()'s value, or this function returns f()'s error.
#define DJINN_TRY(declaration, expression) \
  DJINN_TRY_AS(DJINN_CONCAT(djinn_try_, __LINE__), declaration, expression)

// DJINN_CHECK(f()): goes on if f() succeeded, or this function returns its error.
#define DJINN_CHECK_AS(temporary, expression)                                             \
  do {                                                                                    \
    if (auto temporary = (expression); !temporary) return std::move(temporary).why_not(); \
  } while (false)
#define DJINN_CHECK(expression) DJINN_CHECK_AS(DJINN_CONCAT(djinn_checked_, __LINE__), expression)
