// SPDX-License-Identifier: Apache-2.0

#include "kernel/base/device_id.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <system_error>

#include "kernel/base/assert.h"

namespace djinn {
namespace {

// The names stand in the order of DeviceKind.
constexpr std::array<std::string_view, kDeviceKinds> kKindNames = {"cpu", "fake", "cuda"};

}  // namespace

std::string text_of(DeviceId device) {
  const auto kind = static_cast<size_t>(device.kind);
  DJINN_ASSERT(kind < kDeviceKinds);
  return fmt::format("{}:{}", kKindNames[kind], device.index);
}

std::optional<DeviceId> device_from(std::string_view text) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const auto kind = std::ranges::find(kKindNames, text.substr(0, colon));
  const std::string_view number = text.substr(colon + 1);
  uint32_t index = 0;
  const auto [end, error] = std::from_chars(number.begin(), number.end(), index);
  const bool is_whole = error == std::errc() && end == number.end();
  if (kind == kKindNames.end() || !is_whole) return std::nullopt;
  const DeviceId device{static_cast<DeviceKind>(kind - kKindNames.begin()), index};
  return text_of(device) == text ? std::optional(device) : std::nullopt;  // "cpu:00" is no name
}

}  // namespace djinn
