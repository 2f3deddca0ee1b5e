// SPDX-License-Identifier: Apache-2.0

// Where a gate listens, and is looked for, that names no port. Of TCP.
#pragma once

#include <cstdint>

namespace djinn::ipc {

inline constexpr uint16_t kGatePort = 10467;

}  // namespace djinn::ipc
