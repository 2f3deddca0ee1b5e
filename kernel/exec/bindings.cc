// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/bindings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "kernel/base/checked.h"
#include "kernel/exec/expression.h"
#include "kernel/exec/interpreter.h"
#include "kernel/exec/torch_headers.h"

namespace djinn::exec {
namespace {

Status check_symbols(const srg::Graph& graph, std::span<const int64_t> symbols) {
  if (symbols.size() != graph.symbols.size()) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("The graph has {} symbols, the run binds {}.", graph.symbols.size(),
                             symbols.size())};
  }
  for (size_t i = 0; i < symbols.size(); ++i) {
    const srg::Symbol& symbol = graph.symbols[i];
    if (symbols[i] < symbol.min || symbols[i] > symbol.max) {
      return Error{ErrorCode::kOutOfRange,
                   fmt::format("Symbol {} is {}, outside [{}, {}].", symbol.name, symbols[i],
                               symbol.min, symbol.max)};
    }
  }
  return {};
}

Status check_storages(const AdmittedGraph& program, std::span<const StorageBinding> bindings) {
  if (bindings.size() != program.graph.storages.size()) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("The graph has {} storages, the run binds {}.",
                             program.graph.storages.size(), bindings.size())};
  }
  const auto is_writable = [&](srg::StorageIndex storage) { return bindings[storage].writable; };
  if (std::ranges::all_of(program.writes, is_writable, &Write::storage) &&
      std::ranges::all_of(program.appended, is_writable)) {
    return {};
  }
  return Error{ErrorCode::kPermissionDenied,
               "The graph writes an input that is bound read-only. Bind a ref to it."};
}

// Gives the bytes of each storage that its bound values reach; weights, which have memory, count
// too.
Result<std::vector<uint64_t>> bytes_reached(const AdmittedGraph& program,
                                            std::span<const int64_t> symbols) {
  std::vector<uint64_t> bytes(program.graph.storages.size(), 0);
  Geometry geometry;
  for (const srg::ValueId id : program.bound) {
    const srg::Value& value = program.graph.values[id];
    DJINN_CHECK(evaluate_geometry(value, symbols, geometry));
    const auto elements = elements_reached(geometry);
    const auto end =
        elements ? checked_mul<uint64_t>(*elements, size_of(value.dtype)) : std::nullopt;
    if (!end) return overflow_error();
    bytes[value.storage] = std::max(bytes[value.storage], *end);
  }
  return bytes;
}

}  // namespace

Status check_bindings(const AdmittedGraph& program, const RunBindings& bindings) {
  DJINN_CHECK(check_symbols(program.graph, bindings.symbols));
  return check_storages(program, bindings.storages);
}

std::vector<c10::Storage> storages_of(const AdmittedGraph& program,
                                      std::span<const StorageBinding> bindings) {
  std::vector<c10::Storage> storages = program.weights;
  for (size_t i = 0; i < storages.size(); ++i) {
    if (storages[i]) continue;
    storages[i] = borrowed_storage(bindings[i].data.on_host(), bindings[i].bytes, program.device);
  }
  return storages;
}

Status bind_frame(const AdmittedGraph& program, std::span<const c10::Storage> storages,
                  Frame& frame) {
  frame.values = program.constants;
  for (const srg::ValueId id : program.bound) {
    const srg::Value& value = program.graph.values[id];
    DJINN_TRY(frame.values[id], bind_value(value, storages[value.storage], frame.symbols));
  }
  return {};
}

// A device has no pages of zeros that cost nothing: there one buffer is taken of the heap.
void Scratch::add_read_there(const std::vector<size_t>& storages,
                             const std::vector<uint64_t>& bytes, Heap& heap) {
  const auto of = [&](size_t i) { return bytes[i]; };
  const auto largest = std::ranges::max_element(storages, {}, of);
  if (largest == storages.end()) return;
  add_written(*largest, bytes[*largest], heap);
  for (const size_t i : storages) bindings_[i] = {buffers_.back().get(), bytes[i], true};
}

Status Scratch::add_read(const std::vector<size_t>& storages, const std::vector<uint64_t>& bytes) {
  constexpr auto kFree = [](DeviceAddress memory) { ::free(memory.on_host()); };
  uint64_t most = 64;
  for (const size_t i : storages) most = std::max(most, bytes[i]);
  // buffers_ owns these at once. Zeroed pages that are only read cost nothing.
  auto* const zeroed = static_cast<std::byte*>(::calloc(1, most));  // style: as said above
  buffers_.emplace_back(DeviceAddress(zeroed), HeapDeleter{kFree});
  if (!buffers_.back()) return Error{ErrorCode::kOutOfMemory, "No memory for a rehearsal."};
  for (const size_t i : storages) bindings_[i] = {buffers_.back().get(), bytes[i], true};
  return {};
}

void Scratch::add_written(size_t storage, uint64_t bytes, Heap& heap) {
  const void* const zeroed = heap.allocate(std::max<uint64_t>(bytes, 64), Content::kZeros);
  buffers_.push_back(heap.own(zeroed));
  bindings_[storage] = {buffers_.back().get(), bytes, true};
}

Result<Scratch> Scratch::make(const AdmittedGraph& program, std::span<const int64_t> symbols,
                              Heap& heap) {
  DJINN_TRY(const std::vector<uint64_t> bytes, bytes_reached(program, symbols));
  Scratch scratch;
  scratch.bindings_.resize(bytes.size());
  std::vector<size_t> read_only, sequences;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const srg::StorageKind kind = program.graph.storages[i].kind;
    const bool written =
        std::ranges::find(program.writes, i, &Write::storage) != program.writes.end();
    if (kind == srg::StorageKind::kSequence) sequences.push_back(i);
    if (kind == srg::StorageKind::kInput && !written) read_only.push_back(i);
    if (kind == srg::StorageKind::kInput && written) scratch.add_written(i, bytes[i], heap);
  }
  for (const std::vector<size_t>& read : {read_only, sequences}) {
    if (!program.device.is_cpu()) {
      scratch.add_read_there(read, bytes, heap);
    } else {
      DJINN_CHECK(scratch.add_read(read, bytes));
    }
  }
  return scratch;
}

}  // namespace djinn::exec
