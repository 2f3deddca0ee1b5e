// SPDX-License-Identifier: Apache-2.0

// The device of a process.
#pragma once

#include <c10/core/Device.h>

namespace djinn::exec {

// A worker sees one.
inline constexpr c10::DeviceIndex kOnlyDevice = 0;

}  // namespace djinn::exec
