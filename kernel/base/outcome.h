// SPDX-License-Identifier: Apache-2.0

// Outcome<T>: a value, Pending, or an Error. Who has to wait for something, and must not block,
// gives it, where others give a Result.
//
//   Pending   it is on its way: the caller ends what it does for now, and does it again when it has
//             come. Not an error: nobody is told, and nothing has failed
//   NotDone   what an Outcome without a value says: Pending, or the Error
//
// DJINN_TRY and DJINN_CHECK (result.h) let both travel upwards. They compile only in a function
// that gives an Outcome itself: a Result is made of neither a Pending, a NotDone nor an Outcome, so
// that nobody drops a Pending, or tells of it as a failure.
#pragma once

#include <concepts>
#include <type_traits>
#include <utility>
#include <variant>

#include "kernel/base/assert.h"
#include "kernel/base/result.h"

namespace djinn {

struct [[nodiscard]] Pending {
  friend bool operator==(Pending, Pending) = default;
};

class [[nodiscard]] NotDone {
 public:
  NotDone(Pending) {}
  NotDone(Error error) : state_(std::in_place_index<1>, std::move(error)) {
    DJINN_ASSERT(std::get_if<1>(&state_)->code != ErrorCode::kOk);
  }

  [[nodiscard]] bool is_pending() const noexcept { return state_.index() == 0; }
  [[nodiscard]] Error&& error() && {
    DJINN_ASSERT(!is_pending());
    return std::move(*std::get_if<1>(&state_));
  }

 private:
  std::variant<Pending, Error> state_;
};

template <typename T>
class [[nodiscard]] Outcome {
  struct Nothing {};
  using Held = std::conditional_t<std::is_void_v<T>, Nothing, T>;

 public:
  Outcome() requires(std::is_void_v<T>) = default;
  template <typename U = Held>
  requires(!std::is_void_v<T> && std::convertible_to<U&&, Held> &&
           !std::same_as<std::remove_cvref_t<U>, Outcome> &&
           !std::same_as<std::remove_cvref_t<U>, Error> &&
           !std::same_as<std::remove_cvref_t<U>, Pending>) Outcome(U&& value)
      : state_(std::in_place_index<0>, std::forward<U>(value)) {}
  Outcome(Pending) : state_(std::in_place_index<1>) {}
  Outcome(Error error) : state_(std::in_place_index<2>, std::move(error)) {
    DJINN_ASSERT(std::get_if<2>(&state_)->code != ErrorCode::kOk);
  }
  Outcome(NotDone why) : Outcome(Pending{}) {
    if (!why.is_pending()) state_.template emplace<2>(std::move(why).error());
  }
  Outcome(Result<T> result) : Outcome(Pending{}) {
    if (!result.ok()) {
      state_.template emplace<2>(std::move(result).error());
    } else if constexpr (std::is_void_v<T>) {
      state_.template emplace<0>();
    } else {
      state_.template emplace<0>(*std::move(result));
    }
  }

  [[nodiscard]] bool ok() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return ok(); }
  [[nodiscard]] bool is_pending() const noexcept { return state_.index() == 1; }
  [[nodiscard]] bool has_failed() const noexcept { return state_.index() == 2; }

  [[nodiscard]] Held& value() & requires(!std::is_void_v<T>) {
    DJINN_ASSERT(ok());
    return *std::get_if<0>(&state_);
  }
  [[nodiscard]] const Held& value() const& requires(!std::is_void_v<T>) {
    DJINN_ASSERT(ok());
    return *std::get_if<0>(&state_);
  }
  [[nodiscard]] Held&& value() && requires(!std::is_void_v<T>) {
    DJINN_ASSERT(ok());
    return std::move(*std::get_if<0>(&state_));
  }
  Held& operator*() & requires(!std::is_void_v<T>) { return value(); }
  const Held& operator*() const& requires(!std::is_void_v<T>) { return value(); }
  Held&& operator*() && requires(!std::is_void_v<T>) { return std::move(*this).value(); }
  Held* operator->() requires(!std::is_void_v<T>) { return &value(); }
  const Held* operator->() const requires(!std::is_void_v<T>) { return &value(); }

  // Of one that has failed.
  [[nodiscard]] const Error& error() const& {
    DJINN_ASSERT(has_failed());
    return *std::get_if<2>(&state_);
  }
  [[nodiscard]] Error&& error() && {
    DJINN_ASSERT(has_failed());
    return std::move(*std::get_if<2>(&state_));
  }
  // Of one without a value.
  [[nodiscard]] NotDone why_not() && {
    DJINN_ASSERT(!ok());
    if (is_pending()) return Pending{};
    return std::move(*this).error();
  }

 private:
  std::variant<Held, Pending, Error> state_;
};

}  // namespace djinn
