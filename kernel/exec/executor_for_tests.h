// SPDX-License-Identifier: Apache-2.0

// The world of this folder's tests: weights, one admitted program, one lane.
#pragma once

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernel/base/alignment.h"
#include "kernel/exec/allocator_hook.h"
#include "kernel/exec/convert.h"
#include "kernel/exec/cpu_executor.h"
#include "kernel/exec/graph_builder_for_tests.h"
#include "kernel/exec/torch_headers.h"
#include "kernel/executor/output.h"

namespace djinn::exec {

// Values in [-1, 1), the same for the same seed.
inline at::Tensor noise(std::vector<int64_t> sizes, uint64_t seed,
                        at::ScalarType type = at::kFloat) {
  at::Tensor tensor = at::zeros(sizes, at::kFloat);
  auto* data = tensor.mutable_data_ptr<float>();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    data[i] = static_cast<float>(static_cast<int32_t>(seed >> 32)) / 2147483648.0f;
  }
  return tensor.to(type);
}

inline at::Tensor int64s(std::vector<int64_t> sizes, const std::vector<int64_t>& values) {
  at::Tensor tensor = at::zeros(sizes, at::kLong);
  std::memcpy(tensor.mutable_data_ptr(), values.data(), values.size() * sizeof(int64_t));
  return tensor;
}

inline bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor left = a.contiguous();
  const at::Tensor right = b.contiguous();
  return left.scalar_type() == right.scalar_type() && left.sizes() == right.sizes() &&
         std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

// The square root of the sum of squares.
inline double distance(const at::Tensor& one, const at::Tensor& other) {
  const at::Tensor a = one.to(at::kDouble).contiguous(), b = other.to(at::kDouble).contiguous();
  double sum = 0;
  for (int64_t i = 0; i < a.numel(); ++i) {
    const double gap = a.const_data_ptr<double>()[i] - b.const_data_ptr<double>()[i];
    sum += gap * gap;
  }
  return std::sqrt(sum);
}

// How it ended, in words; nothing where it was done.
inline std::string message_of(const Outcome<void>& ended) {
  if (ended.is_pending()) return "pending";
  return ended ? "" : ended.error().message;
}
// Of one that is not pending.
inline ErrorCode code_of(const Outcome<void>& ended) {
  return ended ? ErrorCode::kOk : ended.error().code;
}

// Memory for a lane, poisoned on request.
struct Slab {
  std::vector<std::byte> bytes;
  std::function<void()> refuse;  // called where more is refused; null: nothing is
  decltype(LaneOptions::grow_slab) grow() {
    return [this](uint64_t wanted, const OnProgress&) -> Outcome<std::span<std::byte>> {
      if (refuse) {
        refuse();
        return Error{ErrorCode::kQuotaExceeded, "There is no more."};
      }
      bytes.assign(wanted + kTensorAlignment, std::byte{0});
      const auto address = reinterpret_cast<uintptr_t>(bytes.data());
      const uint64_t lead = (kTensorAlignment - address % kTensorAlignment) % kTensorAlignment;
      return std::span(bytes).subspan(lead, wanted);
    };
  }
  void poison() { std::fill(bytes.begin(), bytes.end(), std::byte{0xff}); }
};

// Of a heap that may take what it wants.
struct NoBound final : HeapOwner {
  Outcome<void> allow(uint64_t) override { return {}; }
  void settle(uint64_t) override {}
};

inline Executor& executor() {
  static CpuExecutor cpu;
  return cpu;
}

class World {
 public:
  explicit World(std::map<std::string, at::Tensor> tensors, bool planned = false, int threads = 2)
      : tensors_(std::move(tensors)), weights(table()) {
    if (!is_allocator_installed()) initialise(2);
    LaneOptions options;
    options.threads = threads;
    options.planned = planned;
    options.grow_slab = slab.grow();
    lane = *executor().make_lane(std::move(options));
  }

  Status admit(srg::Graph graph, uint64_t bytes_max = UINT64_MAX) {
    auto admitted = executor().admit(std::move(graph), weights, {bytes_max});
    if (!admitted) return admitted.error();
    program = *std::move(admitted);
    return {};
  }

  // One tensor for each storage, in order; undefined ones for weights.
  Outcome<void> run(std::vector<int64_t> symbols, std::vector<at::Tensor> tensors,
                    bool writable = false) {
    const std::vector<StorageBinding> bindings = bindings_of(tensors, writable);
    return lane->run(*program, {symbols, bindings});
  }
  // On a sequence group, where the run's tokens are [begin, end).
  Outcome<void> run_at(int64_t begin, int64_t end, std::vector<int64_t> symbols,
                       const std::vector<at::Tensor>& tensors) {
    const std::vector<StorageBinding> bindings = bindings_of(tensors, true);
    return lane->run(*program, {symbols, bindings, {}, begin, end});
  }
  // Its outputs have these places.
  Outcome<void> run_into(std::span<const OutputPlace> places,
                         const std::vector<at::Tensor>& tensors) {
    const std::vector<StorageBinding> bindings = bindings_of(tensors, false);
    return lane->run(*program, {{}, bindings, places});
  }
  Outcome<void> run_once_into(std::span<const OutputPlace> places,
                              const std::vector<at::Tensor>& tensors) {
    const std::vector<StorageBinding> bindings = bindings_of(tensors, false);
    return lane->run_once(*program, {{}, bindings, places});
  }
  Outcome<void> run_once(const std::vector<at::Tensor>& tensors) {
    const std::vector<StorageBinding> bindings = bindings_of(tensors, false);
    return lane->run_once(*program, {{}, bindings});
  }

  static StorageBinding binding_of(const at::Tensor& tensor, bool writable) {
    if (!tensor.defined()) return {};
    return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.storage().nbytes(),
            writable};
  }

  // A contiguous copy of an output of the last run.
  at::Tensor output(size_t index) const {
    const OutputView& view = lane->outputs()[index];
    at::Tensor tensor = at::zeros(view.sizes, *to_torch(view.dtype));
    std::span<std::byte> bytes(static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes());
    DJINN_ASSERT(copy_elements(view, bytes).ok());
    return tensor;
  }

 private:
  std::vector<StorageBinding> bindings_of(const std::vector<at::Tensor>& tensors,
                                          bool writable) const {
    std::vector<StorageBinding> bindings;
    for (const at::Tensor& tensor : tensors) bindings.push_back(binding_of(tensor, writable));
    bindings.resize(program->graph().storages.size());
    return bindings;
  }

  std::vector<Weight> table() const {
    std::vector<Weight> list;
    for (const auto& [name, tensor] : tensors_) {
      list.push_back({name, from_torch(tensor.scalar_type()), tensor.sizes().vec(),
                      static_cast<const std::byte*>(tensor.const_data_ptr())});
    }
    return list;
  }

  std::map<std::string, at::Tensor> tensors_;

 public:
  Slab slab;
  WeightTable weights;
  std::unique_ptr<Program> program;
  std::unique_ptr<Lane> lane;
};

}  // namespace djinn::exec
