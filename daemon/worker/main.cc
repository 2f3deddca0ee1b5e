// SPDX-License-Identifier: Apache-2.0

// djinn-worker runs the graphs of one trust domain on the host (worker.h). Only djinnd starts it.

#include <memory>
#include <utility>

#include "daemon/worker/worker.h"
#include "ipc/build_identity.h"
#include "kernel/exec/cpu_executor.h"
#include "kernel/pal/host_pal.h"

namespace {

djinn::Result<std::unique_ptr<djinn::pal::DevicePal>> make_pal(djinn::DeviceId device) {
  if (device != djinn::kHostDevice) {
    return djinn::Error{djinn::ErrorCode::kUnsupported, "This worker is for the host alone."};
  }
  DJINN_TRY(std::unique_ptr<djinn::pal::DevicePal> host, djinn::pal::HostPal::make());
  return host;
}

}  // namespace

int main(int argc, char** argv) {
  if (djinn::ipc::started_by_other_build(argc, argv)) return djinn::ipc::kOtherBuildStatus;
  djinn::exec::initialise(1);  // more would start a thread before the confinement
  djinn::exec::CpuExecutor executor;
  return djinn::worker::run_worker(argc, argv, executor, &make_pal);
}
