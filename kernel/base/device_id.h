// SPDX-License-Identifier: Apache-2.0

// DeviceId: which of a host's devices: a kind and a number, "cpu:0". It says where bytes are and
// what computes on them.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace djinn {

enum class DeviceKind : uint8_t { kCpu };
inline constexpr size_t kDeviceKinds = 1;

// It has no value of its own accord: who has a device says which.
struct DeviceId {
  DeviceKind kind;
  uint32_t index;

  friend constexpr auto operator<=>(const DeviceId&, const DeviceId&) noexcept = default;
};

// The host itself, whose memory memfds are; djinnd has no other device yet.
inline constexpr DeviceId kHostDevice{DeviceKind::kCpu, 0};

// As reports, events and metrics write it.
[[nodiscard]] std::string text_of(DeviceId device);

}  // namespace djinn
