// SPDX-License-Identifier: Apache-2.0

// Arithmetic on numbers from outside: each function says whether the true result fits.
// Range checks are written offset <= size && length <= size - offset (ARCHITECTURE rule 2).
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <span>

namespace djinn {

template <std::integral T>
[[nodiscard]] constexpr std::optional<T> checked_add(T a, T b) noexcept {
  T out{};
  if (__builtin_add_overflow(a, b, &out)) return std::nullopt;
  return out;
}

template <std::integral T>
[[nodiscard]] constexpr std::optional<T> checked_mul(T a, T b) noexcept {
  T out{};
  if (__builtin_mul_overflow(a, b, &out)) return std::nullopt;
  return out;
}

// The product of all sizes, 1 for none; nothing on overflow.
[[nodiscard]] constexpr std::optional<uint64_t> checked_product(std::span<const uint64_t> sizes) {
  uint64_t product = 1;
  for (const uint64_t size : sizes) {
    const auto next = checked_mul(product, size);
    if (!next) return std::nullopt;
    product = *next;
  }
  return product;
}

[[nodiscard]] constexpr bool range_fits(uint64_t offset, uint64_t length, uint64_t size) noexcept {
  return offset <= size && length <= size - offset;
}

[[nodiscard]] constexpr bool is_power_of_two(uint64_t value) noexcept {
  return value != 0 && (value & (value - 1)) == 0;
}

// value rounded up to a multiple of alignment (a power of two); nothing on overflow.
[[nodiscard]] constexpr std::optional<uint64_t> align_up(uint64_t value,
                                                         uint64_t alignment) noexcept {
  const auto raised = checked_add(value, alignment - 1);
  if (!raised) return std::nullopt;
  return *raised & ~(alignment - 1);
}

}  // namespace djinn
