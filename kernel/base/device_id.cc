// SPDX-License-Identifier: Apache-2.0

#include "kernel/base/device_id.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "kernel/base/assert.h"

namespace djinn {
namespace {

// In the order of DeviceKind.
constexpr std::array<std::string_view, kDeviceKinds> kKindNames = {"cpu"};

}  // namespace

std::string text_of(DeviceId device) {
  const auto kind = static_cast<size_t>(device.kind);
  DJINN_ASSERT(kind < kDeviceKinds);
  return fmt::format("{}:{}", kKindNames[kind], device.index);
}

}  // namespace djinn
