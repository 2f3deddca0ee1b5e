// SPDX-License-Identifier: Apache-2.0

// What is known of a piece of a program (kernel/exec/pieces.h) that is launched as one graph.
//
//   Seen       one value that its steps use: where it is, and of what shape
//   Made       what the steps leave in the frame, without the bytes: of which memory it is
//   Rehearsal  the steps once more, beside the run, while their launches are captured
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernel/exec/allocator_hook.h"
#include "kernel/exec/interpreter.h"

namespace djinn::exec {

// The steps [begin, end) of a program.
struct StepRange {
  size_t begin = 0;
  size_t end = 0;
};
[[nodiscard]] std::span<const Step> steps_of(const AdmittedGraph& program, const StepRange& range);

class Seen {
 public:
  Seen(srg::ValueId id, const at::Tensor& tensor);
  // The frame's value is there, at the same address, and of the same dtype, sizes and strides.
  [[nodiscard]] bool is_in(const Frame& frame) const;

 private:
  srg::ValueId id_;
  const void* data_;
  at::ScalarType type_;
  at::DimVector sizes_;
  at::DimVector strides_;
};

// Values of a run, by their storages, which need not live any more.
using Owners = std::vector<std::pair<c10::weak_intrusive_ptr<c10::StorageImpl>, srg::ValueId>>;

class Made {
 public:
  // end: the frame behind the steps; places: likewise; owners: of the storages that values had
  // before the steps and that the run had made. Error: kUnsupported for a result that cannot be
  // made again without its operator.
  static Result<Made> of(const AdmittedGraph& program, const StepRange& range,
                         std::span<const c10::Storage> storages, const Owners& owners,
                         const Frame& end, const Replayer& places);

  // Of the frame before the steps this makes the one behind them; likewise of the places.
  // Precondition: the frame has what the steps use, and the same places are alive as when it was
  // made.
  void put_into(Frame& frame, std::span<const c10::Storage> storages, Replayer& places) const;

 private:
  enum class Whose : uint8_t { kBound, kValue, kOwn };
  struct Memory {
    Whose whose = Whose::kOwn;
    uint32_t index = 0;  // kBound: the graph's storage. kValue: one that was there before
    Placement place;     // kOwn
    friend bool operator==(const Memory&, const Memory&) = default;
  };
  struct Value {
    srg::ValueId id;
    at::ScalarType type;
    at::DimVector sizes;
    at::DimVector strides;
    int64_t offset;
    size_t memory;
  };

  std::vector<Memory> memories_;
  std::vector<Value> values_;
  std::vector<srg::ValueId> gone_;  // that the steps use or make, and nothing behind them uses
  size_t next_ = 0;                 // of the plan
  uint64_t peak_live_bytes_ = 0;
};

// invariant: it holds no memory of the run's, which may be used again while this lives; nothing of
// it may be computed, then.
class Rehearsal {
 public:
  // Before the steps. places: the run's. Error: kUnsupported where a value's memory is none that
  // another storage can stand for.
  static Result<std::unique_ptr<Rehearsal>> make(const AdmittedGraph& program,
                                                 const StepRange& range,
                                                 std::span<const c10::Storage> storages,
                                                 const Frame& frame, const Replayer& places);
  ~Rehearsal();
  Rehearsal(const Rehearsal&) = delete;
  Rehearsal& operator=(const Rehearsal&) = delete;

  // Calls the steps; `at` is then the one behind them, or that has failed. Throws what operators
  // throw.
  Status run(size_t& at);
  // What the steps have made. Afterwards the rehearsal is empty. Errors: kUnsupported where they
  // left their plan, or keep memory that is no value's, and those of Made::of().
  Result<Made> end();

 private:
  class NoHeap final : public HeapOwner {
    Outcome<void> allow(uint64_t) override {
      return Error{ErrorCode::kOutOfMemory, "A rehearsal has its plan's memory."};
    }
    void settle(uint64_t) override {}
  };

  Rehearsal(const AdmittedGraph& program, const StepRange& range,
            std::span<const c10::Storage> storages, const Frame& frame, const Replayer& places);
  Status stand_for(srg::ValueId id, const at::Tensor& tensor);
  void drop();

  const AdmittedGraph& program_;
  StepRange range_;
  std::span<const c10::Storage> storages_;
  NoHeap no_heap_;
  Heap heap_{no_heap_};
  Replayer places_;
  size_t alive_before_;
  Frame frame_;
  std::vector<c10::Storage> originals_;  // of the run; while it is made
  Owners owners_;                        // of what stands for these
};

}  // namespace djinn::exec
