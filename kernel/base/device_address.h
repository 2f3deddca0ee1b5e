// SPDX-License-Identifier: Apache-2.0

// DeviceAddress: where bytes of a device's memory lie. What computes on the device looks behind
// one; everybody else hands it on, compares it and counts from it, and has bytes copied. On the
// host it is an address of this process. tests/style names who may call on_host().
#pragma once

#include <cstddef>
#include <cstdint>

namespace djinn {

class DeviceAddress {
 public:
  constexpr DeviceAddress() = default;                 // nowhere
  constexpr DeviceAddress(std::nullptr_t) noexcept {}  // likewise
  DeviceAddress(const std::byte* first) noexcept : value_(reinterpret_cast<uintptr_t>(first)) {}

  [[nodiscard]] std::byte* on_host() const noexcept { return reinterpret_cast<std::byte*>(value_); }
  constexpr explicit operator bool() const noexcept { return value_ != 0; }

  friend constexpr bool operator==(DeviceAddress, DeviceAddress) noexcept = default;
  friend constexpr DeviceAddress operator+(DeviceAddress first, uint64_t bytes) noexcept {
    first.value_ += bytes;
    return first;
  }

 private:
  uintptr_t value_ = 0;
};

}  // namespace djinn
