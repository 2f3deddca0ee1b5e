// SPDX-License-Identifier: Apache-2.0

// CudaExecutor: PyTorch's kernels for one NVIDIA GPU, called by the interpreter of kernel/exec.
//
// A lane has a stream of its own, and a run has ended when that has: outputs are there once
// copy_out() returns. All is exact: there are no kernels of our own yet, and weights in int8 are
// refused. Guards that would read a tensor's bytes see none (guard_checks.h), so a graph has the
// operators of srg::allowed_on_gpu() alone, whose kernels check indices themselves: a wrong one is
// the process's end.
#pragma once

#include <memory>

#include "kernel/exec/allocator_hook.h"
#include "kernel/executor/executor.h"

namespace djinn::exec {

class CudaExecutor final : public Executor {
 public:
  // Loads LibTorch's CUDA half, which then takes all memory of the device from `memory`, but for
  // what a lane's plan places. Once a process, before LibTorch opens the device; memory lives as
  // long as the process. Errors: kUnsupported where LibTorch has no CUDA or there is no device.
  static Result<std::unique_ptr<CudaExecutor>> make(DeviceMemory& memory);

  Result<std::unique_ptr<Program>> admit(srg::Graph graph, const WeightTable& weights,
                                         const AdmissionLimits& limits) override;
  [[nodiscard]] std::vector<srg::StorageIndex> inputs_written(
      const srg::Graph& graph) const override;
  Result<std::unique_ptr<Lane>> make_lane(LaneOptions options) override;
  // On the thread's current stream: cuBLAS makes its handle, and takes the memory that it keeps.
  void warm_up(int threads) override;

 private:
  explicit CudaExecutor(DeviceMemory& memory) : memory_(memory) {}

  DeviceMemory& memory_;
};

}  // namespace djinn::exec
