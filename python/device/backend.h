// SPDX-License-Identifier: Apache-2.0

// What PyTorch asks of a back end beside operators: an allocator, a device guard, hooks, a
// generator. All of it is thin, because the device has one index, no streams and no memory here.
#pragma once

#include <cstdint>

namespace djinn::device {

// Registers them and all operators (operators.h); once, when the module is imported.
void register_backend();

// The default generator's state: every draw is a function of both (ARCHITECTURE section 5).
struct RandomState {
  uint64_t seed = 0;
  uint64_t offset = 0;
};

}  // namespace djinn::device
