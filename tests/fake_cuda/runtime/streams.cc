// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_cuda/runtime/streams.h"

#include <fmt/format.h>

#include <set>

#include "effects.h"

namespace djinn::fake_runtime {
namespace {

// The mode of the calling thread, in which it makes calls while somebody captures.
thread_local cudaStreamCaptureMode own_mode = cudaStreamCaptureModeGlobal;

std::set<std::shared_ptr<Capture>> captures() {
  std::set<std::shared_ptr<Capture>> found;
  world().for_each<Stream>([&](Stream& stream) {
    if (stream.capture != nullptr) found.insert(stream.capture);
  });
  return found;
}

bool forbids(const Capture& capture) {
  const bool is_own = capture.thread == std::this_thread::get_id();
  if (own_mode == cudaStreamCaptureModeRelaxed || capture.mode == cudaStreamCaptureModeRelaxed)
    return false;
  return is_own ||
         (own_mode == cudaStreamCaptureModeGlobal && capture.mode == cudaStreamCaptureModeGlobal);
}

bool is_legacy(cudaStream_t stream) {
  return stream == nullptr || stream == cudaStreamLegacy;
}

bool is_stream(cudaStream_t stream) {
  return is_legacy(stream) || stream == cudaStreamPerThread ||
         world().find<Stream>(stream) != nullptr;
}

cudaError_t make_event(cudaEvent_t* event) {
  *event = reinterpret_cast<cudaEvent_t>(world().make<Event>());
  return cudaSuccess;
}

cudaError_t make_stream(cudaStream_t* stream, unsigned flags, int priority) {
  const bool is_blocking = (flags & cudaStreamNonBlocking) == 0;
  *stream = reinterpret_cast<cudaStream_t>(world().make<Stream>(is_blocking, priority));
  return cudaSuccess;
}

// An event that was recorded in a capture cannot be waited for by the host.
cudaError_t look_at(cudaEvent_t handle) {
  const Event* const event = world().find<Event>(handle);
  if (event == nullptr) return cudaErrorInvalidResourceHandle;
  if (const auto capture = event->capture.lock()) {
    capture->is_broken = true;
    return cudaErrorCapturedEvent;
  }
  return refuse_in_capture();
}

}  // namespace

cudaError_t refuse_in_capture() {
  bool is_forbidden = false;
  for (const auto& capture : captures()) {
    if (!forbids(*capture)) continue;
    capture->is_broken = is_forbidden = true;
  }
  return is_forbidden ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

cudaError_t enqueue(cudaStream_t handle, bool& is_captured) {
  const auto is_done = std::make_shared<bool>(false);
  const cudaError_t refused = enqueue(handle, [is_done] { *is_done = true; });
  is_captured = refused == cudaSuccess && !*is_done;
  return refused;
}

cudaError_t enqueue(cudaStream_t handle, std::function<void()> work) {
  if (!is_stream(handle)) return cudaErrorInvalidResourceHandle;
  if (is_legacy(handle)) {
    for (const auto& capture : captures()) {
      if (!capture->is_blocking) continue;
      capture->is_broken = true;
      return cudaErrorStreamCaptureImplicit;
    }
  }
  Stream* const stream = world().find<Stream>(handle);
  if (stream == nullptr || stream->capture == nullptr) {
    if (work) work();
    return cudaSuccess;
  }
  if (stream->capture->is_broken) return cudaErrorStreamCaptureInvalidated;
  stream->capture->nodes.push_back({std::string(current_line()), std::move(work)});
  return cudaSuccess;
}

namespace effect {

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return make_stream(stream, 0, 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return make_stream(stream, flags, priority);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return world().drop<Stream>(stream) ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  const Stream* const stream = world().find<Stream>(handle);
  *priority = stream == nullptr ? 0 : stream->priority;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  if (!is_stream(handle)) return cudaErrorInvalidResourceHandle;
  const Stream* const stream = world().find<Stream>(handle);
  if (stream == nullptr || stream->capture == nullptr) return cudaSuccess;
  stream->capture->is_broken = true;
  return cudaErrorStreamCaptureUnsupported;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return effect::cudaStreamSynchronize(stream);
}

cudaError_t cudaDeviceSynchronize() {
  bool is_forbidden = false;
  for (const auto& capture : captures()) capture->is_broken = is_forbidden = true;
  return is_forbidden ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return make_event(event);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return make_event(event);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return world().drop<Event>(event) ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t on) {
  Event* const event = world().find<Event>(handle);
  if (event == nullptr || !is_stream(on)) return cudaErrorInvalidResourceHandle;
  const Stream* const stream = world().find<Stream>(on);
  event->is_recorded = true;
  event->capture = stream == nullptr ? nullptr : stream->capture;
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return effect::cudaEventRecord(event, stream);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return look_at(event);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return look_at(event);
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) {
  *ms = 0;
  return cudaSuccess;
}

// An event of a capture takes the stream into it.
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t what, unsigned) {
  const Event* const event = world().find<Event>(what);
  if (event == nullptr || !is_stream(handle)) return cudaErrorInvalidResourceHandle;
  Stream* const stream = world().find<Stream>(handle);
  const auto capture = event->capture.lock();
  if (stream == nullptr || capture == stream->capture) return cudaSuccess;
  if (stream->capture == nullptr) {
    stream->capture = capture;
    return cudaSuccess;
  }
  if (!event->is_recorded) return cudaSuccess;
  stream->capture->is_broken = true;
  return cudaErrorStreamCaptureIsolation;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(own_mode, *mode);
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  static uint64_t number = 0;
  Stream* const stream = world().find<Stream>(handle);
  if (stream == nullptr) return cudaErrorStreamCaptureUnsupported;
  if (stream->capture != nullptr) return cudaErrorIllegalState;
  stream->capture = std::make_shared<Capture>(Capture{.number = ++number,
                                                      .mode = mode,
                                                      .thread = std::this_thread::get_id(),
                                                      .is_blocking = stream->is_blocking});
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  Stream* const stream = world().find<Stream>(handle);
  *graph = nullptr;
  if (stream == nullptr || stream->capture == nullptr) return cudaErrorIllegalState;
  const auto capture = stream->capture;
  if (capture->thread != std::this_thread::get_id()) return cudaErrorStreamCaptureWrongThread;
  world().for_each<Stream>([&](Stream& one) {
    if (one.capture == capture) one.capture = nullptr;
  });
  if (capture->is_broken) return cudaErrorStreamCaptureInvalidated;
  *graph = reinterpret_cast<cudaGraph_t>(
      world().make<Graph>(std::make_shared<const Nodes>(std::move(capture->nodes))));
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  const Stream* const stream = world().find<Stream>(handle);
  const Capture* const capture = stream == nullptr ? nullptr : stream->capture.get();
  *status = cudaStreamCaptureStatusNone;
  if (capture != nullptr)
    *status =
        capture->is_broken ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges,
                                     size_t* count) {
  if (graph != nullptr) *graph = nullptr;
  if (nodes != nullptr) *nodes = nullptr;
  if (edges != nullptr) *edges = nullptr;
  if (count != nullptr) *count = 0;
  const Stream* const stream = world().find<Stream>(handle);
  if (id != nullptr && stream != nullptr && stream->capture != nullptr)
    *id = stream->capture->number;
  return effect::cudaStreamIsCapturing(handle, status);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t handle, cudaGraphNode_t* nodes, size_t* count) {
  const Graph* const graph = world().find<Graph>(handle);
  if (graph == nullptr) return cudaErrorInvalidResourceHandle;
  if (nodes != nullptr) not_faked("cudaGraphGetNodes, for the nodes themselves,");
  *count = graph->nodes->size();
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t handle,
                                          unsigned long long) {
  const Graph* const graph = world().find<Graph>(handle);
  if (graph == nullptr) return cudaErrorInvalidResourceHandle;
  *exec = reinterpret_cast<cudaGraphExec_t>(world().make<GraphExec>(graph->nodes));
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t stream) {
  const GraphExec* const exec = world().find<GraphExec>(handle);
  if (exec == nullptr) return cudaErrorInvalidResourceHandle;
  note("nodes", fmt::format("{}", exec->nodes->size()));
  const auto replay = [nodes = exec->nodes] {
    for (const Node& node : *nodes) {
      note_line(node.line);
      if (node.work) node.work();
    }
  };
  return enqueue(stream, replay);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return world().drop<Graph>(graph) ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  return world().drop<GraphExec>(exec) ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

}  // namespace effect
}  // namespace djinn::fake_runtime
