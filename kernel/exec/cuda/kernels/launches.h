// SPDX-License-Identifier: Apache-2.0

// Launch: what a kernel of this folder is started with: its name in the image, its grid, how much
// shared memory. It is a function of the call and of the device, and the call is checked there, so
// that no kernel is given what it cannot compute.
//
// A call (Gemv and its like) is the kernel's one parameter, copied at the launch: plain data, the
// same bytes for the host's compiler and for the device's. Its addresses are of the device, and
// nobody looks behind them here.
//
// invariant (the row contract): what a row gets depends on that row, on what it is multiplied with,
// and on nothing else: not on other rows, not on the grid, not on how many multiprocessors there
// are. Each sum has one order, and is float32 where it is no integer; results are rounded once.
#pragma once

#include <cstdint>
#include <string>

#include "kernel/base/result.h"
#include "kernel/exec/cuda/kernels/attend.h"
#include "kernel/exec/cuda/kernels/attend_rows.h"
#include "kernel/exec/cuda/kernels/draw.h"
#include "kernel/exec/cuda/kernels/element.h"
#include "kernel/exec/cuda/kernels/gate.h"
#include "kernel/exec/cuda/kernels/gemv.h"
#include "kernel/exec/cuda/kernels/norm.h"
#include "kernel/exec/cuda/kernels/rope.h"
#include "kernel/exec/cuda/kernels/turn.h"
#include "kernel/exec/cuda/kernels/turned_gemv.h"

namespace djinn::cuda {

struct Launch {
  std::string kernel;
  uint32_t grid_x = 1, grid_y = 1, grid_z = 1;  // blocks
  uint32_t threads = 0;                         // of a block, side by side
  uint32_t shared_bytes = 0;                    // behind dynamic_shared, at most 48 KiB
};

// Of an Attend, one after the other.
struct AttendLaunches {
  Launch split;
  Launch combine;
};

// Errors of all: kInvalidArgument with what of the call no kernel takes.
[[nodiscard]] Result<Launch> launch_of(const Gemv& call, Element element, uint32_t multiprocessors);
[[nodiscard]] Result<Launch> launch_of(const Norm& call, Element element);
[[nodiscard]] Result<Launch> launch_of(const RopeAppend& call, Element element);
[[nodiscard]] Result<AttendLaunches> launches_of(const Attend& call, Element element);
[[nodiscard]] Result<Launch> launch_of(const Draw& call);
[[nodiscard]] Result<Launch> launch_of(const TurnedGemv& call, Element element);
[[nodiscard]] Result<Launch> launch_of(const Gate& call, Element element);
[[nodiscard]] Result<Launch> launch_of(const Turn& call, Element element);
[[nodiscard]] Result<Launch> launch_of(const AttendRows& call);

}  // namespace djinn::cuda
