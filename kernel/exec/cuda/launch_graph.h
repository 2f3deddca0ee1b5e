// SPDX-License-Identifier: Apache-2.0

// LaunchGraph: what was put on a stream once, as a graph of the driver's, to be put there again by
// one call. capture() makes one.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <utility>

#include "kernel/base/result.h"

namespace djinn::exec {

class LaunchGraph {
 public:
  // What the driver keeps of the device for each kernel: 2.5 MiB were taken for a thousand.
  static constexpr uint64_t kNodeBytes = 2622;

  LaunchGraph(cudaGraphExec_t graph, size_t nodes) : graph_(graph), nodes_(nodes) {}
  LaunchGraph(LaunchGraph&& other) noexcept
      : graph_(std::exchange(other.graph_, nullptr)), nodes_(other.nodes_) {}
  LaunchGraph& operator=(LaunchGraph&& other) noexcept {
    std::swap(graph_, other.graph_);
    std::swap(nodes_, other.nodes_);
    return *this;
  }
  // Of one that is still computed the driver keeps what it needs until it has ended.
  ~LaunchGraph();

  [[nodiscard]] cudaError_t launch(cudaStream_t stream) {
    return ::cudaGraphLaunch(graph_, stream);
  }
  [[nodiscard]] size_t nodes() const { return nodes_; }
  [[nodiscard]] uint64_t bytes() const { return nodes_ * kNodeBytes; }

 private:
  cudaGraphExec_t graph_;
  size_t nodes_;
};

// Puts what `work` puts on the stream, which is the calling thread's, into a graph: nothing of it
// is computed. work may throw what operators throw. The stream is as before, whatever fails.
// Errors: work's, and what of it, or of the graph, the driver refused. None of them says whether
// the device is lost: is_lost() does.
Result<LaunchGraph> capture(cudaStream_t stream, const std::function<Status()>& work);

// Whether nothing can be computed there any more. The calling thread's last error is forgotten.
[[nodiscard]] bool is_lost(cudaStream_t stream);

}  // namespace djinn::exec
