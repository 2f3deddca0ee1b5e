// SPDX-License-Identifier: Apache-2.0

// Binder: turns what a submission names into bytes and numbers that one run of a program uses.
//
// Inputs from staging are copied into private memory here, once, before anything looks at them: no
// kernel reads memory that a client can write (ARCHITECTURE rule 2). The copies lie on the lane's
// heap and are kept between runs, so a warm run allocates nothing.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "daemon/worker/step.h"
#include "ipc/binding.h"
#include "kernel/executor/executor.h"

namespace djinn::worker {

// The sequence group of a run and the token slots [past, past + tokens) that it fills.
struct SequenceUse {
  std::shared_ptr<Sequence> group;
  gc::SequenceEntry entry;  // as committed; padding as this run will have it
  uint64_t tokens = 0;
  [[nodiscard]] uint64_t past() const { return entry.length; }
};

class Binder {
 public:
  explicit Binder(exec::Lane& lane) : lane_(lane) {}

  // Begins the bindings of one run of program. given: the client's symbol values, in graph order,
  // or empty when all symbols have roles. Errors: kInvalidArgument, kOutOfRange.
  Status begin(const exec::Program& program, std::span<const int64_t> given,
               const SequenceUse* sequence);
  // Errors: kOutOfRange, kNotFound, kStaleHandle, kPoisoned, kInvalidArgument.
  Outcome<void> bind(Step& step, const ipc::InputBinding& input);
  // Makes a written input's ref part of the step: doomed if it fails, its old bytes saved; and
  // finds places for the outputs that become refs. Memory for that is asked for at once, before
  // anything is computed: where it is pending, all is done again.
  // outputs: the program's, or none of them becomes a ref.
  Outcome<void> prepare_refs(Step& step, std::span<const ipc::OutputBinding> outputs);
  // Binds K and V, and every input with a role that is not bound yet, from the group's tokens.
  Outcome<void> bind_sequence(const SequenceUse& sequence);
  // Errors: kInvalidArgument naming the first input without bytes.
  Status check_complete() const;

  // Gives the copies back to the heap.
  void clear() {
    copies_.clear();
    kept_bytes_ = 0;
  }

  // Of the copies.
  [[nodiscard]] uint64_t kept_bytes() const { return kept_bytes_; }

  [[nodiscard]] exec::RunBindings bindings() const {
    return {symbols_, storages_, places_, tokens_begin_, tokens_end_};
  }

 private:
  // Private, 64-byte aligned memory for the input `slot`, kept between runs.
  Outcome<DeviceAddress> private_copy(size_t slot, uint64_t bytes);
  Outcome<void> bind_staging(Step& step, const ipc::InputBinding& input);
  Status bind_ref(Step& step, const ipc::InputBinding& input);
  Outcome<void> fill_role(srg::StorageIndex storage, const SequenceUse& sequence);
  Status doom_written(Step& step, std::span<const exec::WrittenRange> ranges) const;
  Result<std::vector<Refs::Written>> in_extent(std::span<const exec::WrittenRange> ranges) const;
  std::vector<uint64_t> bytes_of_refs(std::span<const ipc::OutputBinding> outputs) const;

  struct Copy {
    exec::HeapBytes data;
    uint64_t capacity = 0;
  };
  exec::Lane& lane_;
  const exec::Program* program_ = nullptr;
  std::vector<int64_t> symbols_;
  int64_t tokens_begin_ = 0;  // as RunBindings says
  int64_t tokens_end_ = 0;
  std::vector<exec::StorageBinding> storages_;
  std::vector<RefHandle> bound_refs_;      // by storage; invalid: not a ref
  std::vector<uint64_t> ref_offsets_;      // by storage: of the ref in the extent
  std::vector<exec::OutputPlace> places_;  // by output; empty: none has one
  std::vector<Copy> copies_;               // by storage
  uint64_t kept_bytes_ = 0;                // of copies_
  uint64_t staged_bytes_ = 0;              // that the run binds from staging
};

// A binding is of something else.
[[nodiscard]] Error binds_no_input();

// Each row's padding leaves it one of so many tokens. Errors: kInvalidArgument.
Status check_padding(std::span<const uint32_t> padding, uint64_t tokens);

// The value of a symbol by role, when a sequence group decides it.
std::optional<int64_t> symbol_of(srg::SymbolRole role, const SequenceUse& sequence);

}  // namespace djinn::worker
