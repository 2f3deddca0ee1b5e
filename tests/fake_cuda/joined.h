// SPDX-License-Identifier: Apache-2.0

// What the fake driver has for the fake runtime (tests/fake_cuda/runtime), whose own libcuda.so.1
// is made of both. Any thread.
#pragma once

#include <optional>
#include <string_view>

#include "tests/fake_cuda/memory.h"

namespace djinn::fake_cuda {

// Nothing where no memory of this process's driver is mapped.
[[nodiscard]] std::optional<Place> find_place(const void* address);

// Called after each call of the driver's. In the runtime's library alone there is one.
[[gnu::weak]] void note_call(std::string_view function, Code answer);

}  // namespace djinn::fake_cuda
