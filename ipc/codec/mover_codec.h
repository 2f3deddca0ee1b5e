// SPDX-License-Identifier: Apache-2.0

// The messages of movers as bytes and back, as control_codec.h says of the others.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "ipc/mover_messages.h"
#include "kernel/base/result.h"

namespace djinn::ipc {

[[nodiscard]] std::vector<std::byte> encode(const MoverOrder& order);
[[nodiscard]] std::vector<std::byte> encode(const MoverEvent& event);

Result<MoverOrder> decode_mover_order(std::span<const std::byte> bytes);
Result<MoverEvent> decode_mover_event(std::span<const std::byte> bytes);

}  // namespace djinn::ipc
