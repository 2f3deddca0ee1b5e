// SPDX-License-Identifier: Apache-2.0

// emulate() runs a launch of a kernel on the calling thread: each thread of a block is a fiber, and
// goes on until it ends, or meets others at a barrier or a shuffle. Who comes last lets all go on.
//
// invariant: one launch at a time in a process; a second one waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>

#include "kernel/base/result.h"

namespace djinn::emulator {

inline constexpr uint32_t kWarp = 32;
inline constexpr uint32_t kThreadsMax = 1024;                // of a block, CUDA's own limit
inline constexpr size_t kSharedBytesMax = size_t{48} << 10;  // what no launch has to opt in for

// Which of the threads that can go on does, and which block comes next. What differs between the
// two is a race.
enum class Order : uint8_t { kAscending, kDescending };

struct Dimensions {
  uint32_t x = 1, y = 1, z = 1;
};

struct Launch {
  Dimensions grid;
  Dimensions block;         // a multiple of kWarp threads, side by side in x
  size_t shared_bytes = 0;  // behind dynamic_shared
  Order order = Order::kAscending;
};

// Calls `kernel` once for each thread of each block. Errors: kInvalidArgument for a launch that is
// none; kInternal where the kernel is wrong: threads that wait for ever, and where; a write behind
// the shared memory; an address that its access must not have. Memory is then partly written.
[[nodiscard]] Status emulate(const Launch& launch, const std::function<void()>& kernel);

// What device/cuda_runtime.h is made of; of the running thread, with the place that calls them.
//
// All of the block, or of the warp, wait here for each other.
void meet_block(std::source_location where);
void meet_warp(std::source_location where);
// The value of that lane of the warp, each of which gives 8 bytes.
[[nodiscard]] uint64_t exchange(uint64_t value, uint32_t lane, std::source_location where);
// Ends the launch with this error; does not return.
[[noreturn]] void fail(const char* what, std::source_location where);

}  // namespace djinn::emulator
