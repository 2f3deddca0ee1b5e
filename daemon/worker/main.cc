// SPDX-License-Identifier: Apache-2.0

// djinn-worker runs the graphs of one trust domain on the host (worker.h). Only djinnd starts it.

#include <memory>
#include <utility>

#include "daemon/worker/worker.h"
#include "ipc/build_identity.h"
#include "kernel/exec/cpu_executor.h"
#include "kernel/pal/host_pal.h"

namespace {

using djinn::Result;

class Host final : public djinn::worker::Device {
 public:
  explicit Host(std::unique_ptr<djinn::pal::DevicePal> pal) : pal_(std::move(pal)) {}
  [[nodiscard]] djinn::pal::DevicePal& pal() override { return *pal_; }
  [[nodiscard]] djinn::exec::Executor& executor() override { return executor_; }

 private:
  std::unique_ptr<djinn::pal::DevicePal> pal_;
  djinn::exec::CpuExecutor executor_;
};

Result<std::unique_ptr<djinn::worker::Device>> open(djinn::DeviceId device,
                                                    djinn::worker::Grants&) {
  if (device != djinn::kHostDevice) {
    return djinn::Error{djinn::ErrorCode::kUnsupported, "This worker is for the host alone."};
  }
  djinn::exec::initialise(1);  // more would start a thread before the confinement
  DJINN_TRY(std::unique_ptr<djinn::pal::DevicePal> pal, djinn::pal::HostPal::make());
  return std::unique_ptr<djinn::worker::Device>(new Host(std::move(pal)));
}

}  // namespace

int main(int argc, char** argv) {
  if (djinn::ipc::started_by_other_build(argc, argv)) return djinn::ipc::kOtherBuildStatus;
  return djinn::worker::run_worker(argc, argv, djinn::child::Role::kWorker, &open);
}
