// SPDX-License-Identifier: Apache-2.0

// CudaExecutor: PyTorch's kernels for one NVIDIA GPU, called by the interpreter of kernel/exec.
//
// There is one lane at a time, with a stream of its own: what it gives back to the device's memory
// is free at once, and another stream would be given it too early. A run has ended when that stream
// has: outputs are there once copy_out() or wait() returns.
//
// Programs whose numerics are fast have kernels of our own where load_kernels() was given them, and
// are as exact ones where not. Weights in int8 are refused. Guards that would read a tensor's bytes
// see none (guard_checks.h), so a graph has the operators of srg::allowed_on_gpu() alone, whose
// kernels check indices themselves: a wrong one is the process's end.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "kernel/exec/allocator_hook.h"
#include "kernel/exec/cuda/capture_stats.h"
#include "kernel/executor/executor.h"

namespace djinn::exec {

class CudaExecutor final : public Executor {
 public:
  // Loads LibTorch's CUDA half, which then takes all memory of the device from `memory`, but for
  // what a lane's plan places. Once a process, before LibTorch opens the device; memory lives as
  // long as the process. notice: told, on a lane's thread, what goes on in another way than it
  // should. Errors, which leave LibTorch as it was: kUnsupported where it has no CUDA or there is
  // no device.
  static Result<std::unique_ptr<CudaExecutor>> make(DeviceMemory& memory,
                                                    std::function<void(std::string_view)> notice);

  // Our own kernels, of the image that NVIDIA's compiler makes of cuda/kernels, which may go when
  // this returns. Once a process, before the first program. Errors: kUnsupported where CUDA does
  // not take it.
  Status load_kernels(std::span<const std::byte> image);

  Result<std::unique_ptr<Program>> admit(srg::Graph graph, const WeightTable& weights,
                                         const AdmissionLimits& limits) override;
  [[nodiscard]] std::vector<srg::StorageIndex> inputs_written(
      const srg::Graph& graph) const override;
  // Error: kBusy while there is another one; it has to end before.
  Result<std::unique_ptr<Lane>> make_lane(LaneOptions options) override;
  // On the lane's stream: cuBLAS loads its kernels and makes its handle, and takes the memory that
  // it keeps. The handle is the next thread's that asks for one.
  void warm_up(int threads) override;
  // Of all lanes. The lane's thread.
  [[nodiscard]] const CaptureStats& captures() const;

 private:
  struct Stream;  // with whether a lane has it
  CudaExecutor(DeviceMemory& memory, std::shared_ptr<Stream> stream);

  DeviceMemory& memory_;
  std::shared_ptr<Stream> stream_;  // of its lanes, one after the other
};

}  // namespace djinn::exec
