// SPDX-License-Identifier: Apache-2.0

// The life of a worker process, whatever computes in it.
//
//   WORKER --build IDENTITY --channel-fd N --device NAME --threads N [--memory-bytes N]
//          [--policy fair|fifo] [--isa LEVEL] [--kernels TABLE|measure] [--fault-at N]
//          [--pal-fault-at N]
//
// Warms up, confines itself, measures its kernels where it is told to, says that it is ready, and
// obeys djinnd until the channel closes.
#pragma once

#include <functional>
#include <memory>

#include "kernel/base/device_id.h"
#include "kernel/base/result.h"
#include "kernel/executor/executor.h"
#include "kernel/pal/device_pal.h"

namespace djinn::worker {

// The memory of the device that djinnd names. Errors: kUnsupported where the program is for others;
// those of making it.
using MakePal = std::function<Result<std::unique_ptr<pal::DevicePal>>(DeviceId device)>;

// What main() calls when it knows that djinnd is of its own build; the exit status. What the
// executor had to do before the process is confined, but warm_up(), is done.
int run_worker(int argc, char** argv, exec::Executor& executor, const MakePal& make_pal);

}  // namespace djinn::worker
