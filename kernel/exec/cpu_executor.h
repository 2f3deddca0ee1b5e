// SPDX-License-Identifier: Apache-2.0

// The executor of the host: PyTorch's own kernels, called by a loop over boxed operators. All that
// other folders see of LibTorch: no torch type crosses this header, and no exception (each function
// catches at its own boundary).
//
//   CpuExecutor  what is allowed, and what becomes of a graph: admission
//   its Program  operators resolved, stacks prefilled (program.h)
//   its Lane     rehearses, records, replays (lane.cc)
#pragma once

#include "kernel/executor/executor.h"

namespace djinn::exec {

// Sets the allocator hook and the thread count. First thing in main, once, before any other call.
// More than one thread starts LibTorch's pool at once, and threads that run before a process is
// confined stay unconfined: a process that will be passes 1. Lanes and warm_up() set their own
// count.
void initialise(int threads);

// Has no state of its own: what LibTorch keeps is the process's.
class CpuExecutor final : public Executor {
 public:
  Result<std::unique_ptr<Program>> admit(srg::Graph graph, const WeightTable& weights,
                                         const AdmissionLimits& limits) override;
  [[nodiscard]] std::vector<srg::StorageIndex> inputs_written(
      const srg::Graph& graph) const override;
  // Precondition of a planned lane: initialise().
  Result<std::unique_ptr<Lane>> make_lane(LaneOptions options) override;
  void limit_isa(IsaLevel level) override;
  [[nodiscard]] std::string_view isa() const override;
  void take_kernels(const KernelTable& table) override;
  void measure_kernels(int threads) override;
  [[nodiscard]] std::optional<KernelTable> kernels() const override;
  // Matmul, sdpa and linear in every dtype: with one thread before the process is confined (code
  // generation and CPU detection open files), with all of them on the lane's thread afterwards
  // (threads inherit the confinement).
  void warm_up(int threads) override;
};

}  // namespace djinn::exec
