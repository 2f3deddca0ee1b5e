// SPDX-License-Identifier: Apache-2.0

// The life of a worker process, whatever computes in it.
//
//   WORKER --build IDENTITY --channel-fd N --threads N [--memory-bytes N] [--fault-at N]
//          [--pal-fault-at N]
//
// Warms up, confines itself, says that it is ready, and obeys djinnd until the channel closes.
#pragma once

#include "kernel/executor/executor.h"

namespace djinn::worker {

// What main() calls when it knows that djinnd is of its own build; the exit status. What the
// executor had to do before the process is confined, but warm_up(), is done.
int run_worker(int argc, char** argv, exec::Executor& executor);

}  // namespace djinn::worker
