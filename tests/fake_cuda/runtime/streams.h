// SPDX-License-Identifier: Apache-2.0

// Streams, events, captures and graphs. Work is done at once, so streams keep no order; what they
// keep is which of them are captured. A capture counts its work and forgets it.
#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <memory>
#include <thread>

#include "tests/fake_cuda/runtime/world.h"

namespace djinn::fake_runtime {

struct Capture {
  uint64_t number = 0;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  bool is_blocking = false;  // the legacy stream would wait for its first stream
  bool is_broken = false;
  size_t nodes = 0;
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
  Graph(uint64_t its_number, size_t count) : Numbered(its_number), nodes(count) {}
  [[nodiscard]] std::string text() const override { return fmt::format("graph{}", number); }
  size_t nodes;
};

struct GraphExec : Numbered<Kind::kGraphExec> {
  GraphExec(uint64_t its_number, size_t count) : Numbered(its_number), nodes(count) {}
  [[nodiscard]] std::string text() const override { return fmt::format("exec{}", number); }
  size_t nodes;
};

// A piece of work is put on a stream: refused where a capture forbids it. If `is_captured` it is
// not to be done.
[[nodiscard]] cudaError_t enqueue(cudaStream_t stream, bool& is_captured);
[[nodiscard]] cudaError_t enqueue(cudaStream_t stream);

// The call is one of those that CUDA calls unsafe while somebody captures; it breaks the capture.
[[nodiscard]] cudaError_t refuse_in_capture();

}  // namespace djinn::fake_runtime
