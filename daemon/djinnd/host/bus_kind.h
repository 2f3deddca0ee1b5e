// SPDX-License-Identifier: Apache-2.0

// BusKind: the message bus that djinnd is on.
#pragma once

#include <cstdint>

namespace djinn::daemon {

enum class BusKind : uint8_t { kNone, kSystem, kUser };

}  // namespace djinn::daemon
