// SPDX-License-Identifier: Apache-2.0

// Giving a run its memory: the caller's bindings, or scratch for a rehearsal.
#pragma once

#include <vector>

#include "kernel/base/result.h"
#include "kernel/exec/allocator_hook.h"
#include "kernel/exec/program.h"
#include "kernel/executor/executor.h"

namespace djinn::exec {

// Errors: kInvalidArgument, kOutOfRange for symbols, kPermissionDenied for a write to read-only
// bytes.
Status check_bindings(const AdmittedGraph& program, const RunBindings& bindings);

// One storage for each storage of the graph, over the program's weights and the bound bytes.
[[nodiscard]] std::vector<c10::Storage> storages_of(const AdmittedGraph& program,
                                                    std::span<const StorageBinding> bindings);

// Puts constants and bound values into the frame, whose symbols are set. Errors as bind_value.
Status bind_frame(const AdmittedGraph& program, std::span<const c10::Storage> storages,
                  Frame& frame);

// Zeroed memory of the sizes that the program's storages have at these symbols. Inputs that are
// only read share one buffer, sequence buffers another: what is computed does not matter, only that
// indices read as zero and that nothing real is touched. Nobody writes these two, for a rehearsal
// appends nothing, so they are zero pages that take no memory; inputs that are written are the
// heap's.
class Scratch {
 public:
  // Throws what heap.allocate() throws.
  static Result<Scratch> make(const AdmittedGraph& program, std::span<const int64_t> symbols,
                              Heap& heap);
  [[nodiscard]] std::span<const StorageBinding> bindings() const { return bindings_; }

 private:
  Status add_read(const std::vector<size_t>& storages, const std::vector<uint64_t>& bytes);
  void add_read_there(const std::vector<size_t>& storages, const std::vector<uint64_t>& bytes,
                      Heap& heap);
  void add_written(size_t storage, uint64_t bytes, Heap& heap);

  std::vector<HeapBytes> buffers_;
  std::vector<StorageBinding> bindings_;
};

}  // namespace djinn::exec
