// SPDX-License-Identifier: Apache-2.0

// djinn-cuda-worker runs the graphs of one trust domain on one GPU (worker.h). Only djinnd starts
// it, with that GPU as the only one that CUDA shows it.

#include <fmt/format.h>
#include <stdio.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/worker/chunks.h"
#include "daemon/worker/cuda/kernels_image.h"
#include "daemon/worker/worker.h"
#include "ipc/build_identity.h"
#include "kernel/base/device_id.h"
#include "kernel/base/result.h"
#include "kernel/exec/cpu_executor.h"
#include "kernel/exec/cuda/cuda_executor.h"
#include "kernel/exec/cuda/window_heap.h"
#include "kernel/pal/cuda/cuda_pal.h"
#include "kernel/vmu/window.h"

namespace djinn::worker {
namespace {

// Addresses of the heap: no run may have more beside its slab.
constexpr uint64_t kHeapBytes = uint64_t{64} << 30;
// What libraries keep: cuBLAS has 32 MiB for the lane's stream on recent GPUs, cublasLt 1 MiB.
constexpr uint64_t kBaseBytes = uint64_t{48} << 20;
// No worker has taken so much by itself; what is more is others'.
constexpr uint64_t kBaseBytesMost = uint64_t{560} << 20;

// Libraries give their memory back as the process ends, after main(): nothing of this is destroyed.
class CudaDevice final : public Device {
 public:
  // own_bytes: what the process has taken of the device since it has its context.
  CudaDevice(pal::cuda::CudaPal& pal, HeapChunks& chunks, exec::WindowHeap& heap,
             exec::CudaExecutor& executor, uint64_t own_bytes)
      : pal_(pal), chunks_(chunks), heap_(heap), executor_(executor), own_bytes_(own_bytes) {}
  [[nodiscard]] pal::DevicePal& pal() override { return pal_; }
  [[nodiscard]] exec::Executor& executor() override { return executor_; }
  [[nodiscard]] exec::HeapOwner* heap() override { return &heap_; }
  [[nodiscard]] Result<std::string> uuid() override {
    DJINN_TRY(pal::cuda::DeviceNames names, pal_.names());
    return std::move(names.uuid);
  }
  void begin() override { chunks_.begin(own_bytes_); }

 private:
  pal::cuda::CudaPal& pal_;
  HeapChunks& chunks_;
  exec::WindowHeap& heap_;
  exec::CudaExecutor& executor_;
  const uint64_t own_bytes_;
};

Status load_own_kernels(exec::CudaExecutor& executor) {
  DJINN_TRY(const std::vector<std::byte> image, read_kernels_image());
  if (image.empty()) {
    return Error{ErrorCode::kNotFound, "There is no image of djinn's kernels beside this program."};
  }
  return executor.load_kernels(image);
}

Result<std::unique_ptr<Device>> open(DeviceId device, Grants& grants) {
  if (device.kind != DeviceKind::kCuda) {
    return Error{ErrorCode::kUnsupported, "This worker is for GPUs alone."};
  }
  exec::initialise(1);  // more would start a thread before the confinement
  DJINN_TRY(const pal::cuda::DriverApi api, pal::cuda::load_driver());
  DJINN_TRY(auto made, pal::cuda::CudaPal::make(api, 0));
  pal::cuda::CudaPal& pal = *made.release();
  DJINN_TRY(const pal::cuda::DeviceMemory before, pal.memory());
  auto& chunks = *new HeapChunks(grants, pal);
  DJINN_TRY(vmu::WindowMemory memory, chunks.open(kHeapBytes, kBaseBytes));
  DJINN_TRY(vmu::Window window, vmu::Window::open(pal, chunks, std::move(memory), {}));
  auto& heap = *new exec::WindowHeap(std::move(window));
  DJINN_TRY(auto executor, exec::CudaExecutor::make(heap, [](std::string_view notice) {
              fmt::print(stderr, "djinn-cuda-worker: {}\n", notice);
            }));
  if (const Status loaded = load_own_kernels(*executor); !loaded) {
    fmt::print(stderr, "djinn-cuda-worker: {} Programs run without.\n", loaded.error().message);
  }
  // The driver tells of the whole device: others may have taken or freed some meanwhile.
  DJINN_TRY(const pal::cuda::DeviceMemory now, pal.memory());
  const uint64_t taken = before.free_bytes - std::min(before.free_bytes, now.free_bytes);
  return std::unique_ptr<Device>(
      new CudaDevice(pal, chunks, heap, *executor.release(),
                     std::clamp(taken, uint64_t{kBaseBytes}, uint64_t{kBaseBytesMost})));
}

}  // namespace
}  // namespace djinn::worker

int main(int argc, char** argv) {
  if (djinn::ipc::started_by_other_build(argc, argv)) return djinn::ipc::kOtherBuildStatus;
  return djinn::worker::run_worker(argc, argv, djinn::child::Role::kCudaWorker,
                                   &djinn::worker::open);
}
