// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/cuda/launch_graph.h"

#include <fmt/format.h>

#include <memory>

#include "kernel/exec/convert.h"

namespace djinn::exec {
namespace {

Error refused(const char* what, cudaError_t error) {
  return {ErrorCode::kUnsupported, fmt::format("{}: {}", what, ::cudaGetErrorString(error))};
}

// What was not given back is the process's until it ends. The next operator would take its error
// for one of its own.
void forget_error(cudaError_t error) {
  if (error != cudaSuccess) (void)::cudaGetLastError();
}

struct GraphDeleter {
  void operator()(cudaGraph_t graph) const { forget_error(::cudaGraphDestroy(graph)); }
};
using Graph = std::unique_ptr<CUgraph_st, GraphDeleter>;

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  (void)::cudaStreamIsCapturing(stream, &status);
  return status != cudaStreamCaptureStatusNone;
}

// Where a capture goes on although its end was refused, it is asked for again: the stream could
// compute nothing else.
cudaError_t end_capture(cudaStream_t stream, Graph& graph) {
  cudaGraph_t made = nullptr;
  const cudaError_t ended = ::cudaStreamEndCapture(stream, &made);
  graph.reset(made);
  if (ended == cudaSuccess || !is_capturing(stream)) return ended;
  made = nullptr;
  (void)::cudaStreamEndCapture(stream, &made);
  graph.reset(made);
  return ended;
}

Result<Graph> captured(cudaStream_t stream, const std::function<Status()>& work) {
  // Other threads may map and free memory meanwhile.
  const cudaError_t begun = ::cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  Graph graph;
  if (begun != cudaSuccess) {
    if (is_capturing(stream)) (void)end_capture(stream, graph);
    return refused("A capture could not begin", begun);
  }
  const Status done = catching(work);
  const cudaError_t ended = end_capture(stream, graph);
  DJINN_CHECK(done);
  if (ended != cudaSuccess) return refused("A capture could not end", ended);
  return graph;
}

}  // namespace

LaunchGraph::~LaunchGraph() {
  if (graph_ != nullptr) forget_error(::cudaGraphExecDestroy(graph_));
}

Result<LaunchGraph> capture(cudaStream_t stream, const std::function<Status()>& work) {
  DJINN_TRY(const Graph graph, captured(stream, work));
  size_t nodes = 0;
  const cudaError_t counted = ::cudaGraphGetNodes(graph.get(), nullptr, &nodes);
  if (counted != cudaSuccess) return refused("A graph's nodes could not be counted", counted);
  cudaGraphExec_t made = nullptr;
  const cudaError_t error = ::cudaGraphInstantiateWithFlags(&made, graph.get(), 0);
  if (error != cudaSuccess) return refused("A graph could not be made ready", error);
  return LaunchGraph(made, nodes);
}

bool is_lost(cudaStream_t stream) {
  (void)::cudaGetLastError();
  const cudaError_t error = ::cudaStreamQuery(stream);
  (void)::cudaGetLastError();
  return error != cudaSuccess && error != cudaErrorNotReady;
}

}  // namespace djinn::exec
