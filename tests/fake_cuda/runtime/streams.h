// SPDX-License-Identifier: Apache-2.0

// Streams, events, captures and graphs. Work is done at once, so streams keep no order; what they
// keep is which of them are captured. A capture keeps its work, with the lines of the calls that
// it was of, and a launch of its graph does it.
#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/fake_cuda/runtime/world.h"

namespace djinn::fake_runtime {

struct Node {
  std::string line;            // of the call that was captured
  std::function<void()> work;  // none: it computes, and so has no effect here
};
using Nodes = std::vector<Node>;

struct Capture {
  uint64_t number = 0;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  bool is_blocking = false;  // the legacy stream would wait for its first stream
  bool is_broken = false;
  Nodes nodes = {};
};

template <Kind kKindOf>
struct Numbered : Thing {
  static constexpr Kind kKind = kKindOf;
  explicit Numbered(uint64_t its_number) : Thing(kKindOf), number(its_number) {}
  uint64_t number;
};

struct Stream : Numbered<Kind::kStream> {
  Stream(uint64_t its_number, bool blocks, int its_priority)
      : Numbered(its_number), is_blocking(blocks), priority(its_priority) {}
  [[nodiscard]] std::string text() const override { return fmt::format("stream{}", number); }
  bool is_blocking;
  int priority;
  std::shared_ptr<Capture> capture;
};

struct Event : Numbered<Kind::kEvent> {
  using Numbered::Numbered;
  [[nodiscard]] std::string text() const override { return fmt::format("event{}", number); }
  bool is_recorded = false;
  std::weak_ptr<Capture> capture;
};

struct Graph : Numbered<Kind::kGraph> {
  Graph(uint64_t its_number, std::shared_ptr<const Nodes> captured)
      : Numbered(its_number), nodes(std::move(captured)) {}
  [[nodiscard]] std::string text() const override { return fmt::format("graph{}", number); }
  std::shared_ptr<const Nodes> nodes;
};

struct GraphExec : Numbered<Kind::kGraphExec> {
  GraphExec(uint64_t its_number, std::shared_ptr<const Nodes> captured)
      : Numbered(its_number), nodes(std::move(captured)) {}
  [[nodiscard]] std::string text() const override { return fmt::format("exec{}", number); }
  std::shared_ptr<const Nodes> nodes;
};

// A piece of work is put on a stream, and done at once, or, where the stream is captured, by each
// launch of the graph: refused where a capture forbids it. work: none of what computes.
[[nodiscard]] cudaError_t enqueue(cudaStream_t stream, std::function<void()> work = {});
// Likewise, of work that the caller does, unless it `is_captured`; then it is lost.
[[nodiscard]] cudaError_t enqueue(cudaStream_t stream, bool& is_captured);

// The call is one of those that CUDA calls unsafe while somebody captures; it breaks the capture.
[[nodiscard]] cudaError_t refuse_in_capture();

}  // namespace djinn::fake_runtime
