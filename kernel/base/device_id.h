// SPDX-License-Identifier: Apache-2.0

// DeviceId: which of a host's devices: a kind and a number, "cpu:0". It says where bytes are and
// what computes on them.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace djinn {

// kFake: of tests, whose memory is the host's and whose workers have no kernels.
enum class DeviceKind : uint8_t { kCpu, kFake, kCuda };
inline constexpr size_t kDeviceKinds = 3;

// It has no value of its own accord: who has a device says which.
struct DeviceId {
  DeviceKind kind;
  uint32_t index;

  friend constexpr auto operator<=>(const DeviceId&, const DeviceId&) noexcept = default;
};

// The host itself, whose memory memfds are; who names no device has this one.
inline constexpr DeviceId kHostDevice{DeviceKind::kCpu, 0};

// As reports, events and metrics write it.
[[nodiscard]] std::string text_of(DeviceId device);
// Nothing where it is no such text.
[[nodiscard]] std::optional<DeviceId> device_from(std::string_view text);

}  // namespace djinn
