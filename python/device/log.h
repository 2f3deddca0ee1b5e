// SPDX-License-Identifier: Apache-2.0

// Log: operators that were called and not yet sent to djinnd, in order.
//
//   Operand  a tensor as it was when an operator was called: a view of a storage
//   Entry    one call
//   Segment  entries as a graph, with what to bind: what one run carries out
//
// invariant: a storage's log_uses counts the entries that name it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernel/srg/graph.h"
#include "python/device/recipe.h"
#include "python/device/storage.h"

namespace djinn::device {

struct Operand {
  StoragePtr storage;
  at::ScalarType type = at::kByte;
  c10::SmallVector<int64_t, 5> sizes;
  c10::SmallVector<int64_t, 5> strides;
  int64_t offset = 0;  // elements
};

Operand operand_of(const at::Tensor& tensor);
// All bytes of a storage, as its type.
Operand whole(const StoragePtr& storage);

struct Entry {
  std::shared_ptr<const Recipe> recipe;
  std::vector<Operand> operands;     // numbered as the recipe's tensors
  std::vector<StoragePtr> products;  // one for each of the recipe's; null where it makes none
  // Training: it is part of a backward pass, or of what one may follow.
  srg::Phase phase = srg::Phase::kUnknown;
  srg::Residency residency = srg::Residency::kUnknown;
  uint64_t number = 0;   // in the order of the calls (Storages::number_entry())
  bool is_fork = false;  // its product is the tensor that its operand was, to be written
};

// An output that was something already before its run, and is that again if the run does not make
// it: a weight, or bytes that nobody had written.
struct Before {
  size_t output = 0;
  std::shared_ptr<const NamedTensor> weight;  // null: nobody had written them
  uint64_t written = 0;                       // by the entry of this number, first
};

struct Segment {
  srg::Graph graph;
  uint64_t model = 0;               // whose weights it names; 0: none
  std::vector<StoragePtr> inputs;   // by graph storage; null for weights
  std::vector<StoragePtr> outputs;  // by graph output
  std::vector<Before> before;
  std::vector<uint64_t> numbers;  // by node: of the entry that it is for
  size_t operators = 0;
};

class Log {
 public:
  ~Log() { clear(); }
  void append(Entry entry);
  [[nodiscard]] bool empty() const { return entries_.empty(); }
  [[nodiscard]] size_t size() const { return entries_.size(); }
  [[nodiscard]] std::span<const Entry> entries() const { return entries_; }
  // Entries up to now name `frozen` in place of `storage`.
  void rename(const StoragePtr& storage, const StoragePtr& frozen);
  // The one product of the last entry, which copies what `storage` was, is `storage` itself.
  void rename_product(const StoragePtr& storage);
  // No entry makes `storage` any more: something else of the same bytes stands in for it.
  void forget_product(const StoragePtr& storage);
  void clear();
  // Forgets these entries.
  void drop(std::span<const size_t> numbers);
  // Forgets entries that need what is lost; what they make is lost, too, and what they write unless
  // it was lost to an operator that failed: then it stays as it was.
  void drop_lost();

  // Numbers of the entries that something still depends on.
  [[nodiscard]] std::vector<size_t> needed() const;

 private:
  static void count_out(const Entry& entry);

  std::vector<Entry> entries_;
};

// Storages at kHost that these entries read or write.
std::vector<StoragePtr> uploads_of(const Log& log, std::span<const size_t> needed);

// Cuts the needed entries of a log into segments, each of what one run can bind and with the
// weights of one model only, and of what one run may write in place (chains.h). What a segment
// leaves must be at kRef before the next is asked for. Precondition: no storage of theirs is kHost,
// no entry names two models.
class Segmenter {
 public:
  Segmenter(const Log& log, std::vector<size_t> needed);
  // Nothing: that was all.
  std::optional<Segment> next();
  // Numbers in the log of the entries that next() took before its last call.
  [[nodiscard]] std::span<const size_t> taken() const { return std::span(needed_).first(first_); }

 private:
  [[nodiscard]] const Entry& entry(size_t i) const { return log_.entries()[needed_[i]]; }
  // Whether the next entry begins a chain and a run of its own: behind a gradient's computation,
  // which comes back with the next step as it is, and chains do not; and behind much that is
  // written.
  [[nodiscard]] bool is_cut(bool has_written_enough) const;

  const Log& log_;
  std::vector<size_t> needed_;
  std::vector<bool> begins_chain_;  // of each of these, in chains.h's order
  size_t first_ = 0;
  size_t at_ = 0;
};

// One call whose results the daemon describes, as a segment; its outputs are storages of 0 bytes.
Segment open_segment(const Entry& entry, size_t results);
// The needed entries as one graph whose outputs are these views, for a program: it binds weights,
// refs, and inputs of a capture. Preconditions: as Segmenter's, and one model for all.
Segment whole_segment(const Log& log, std::span<const size_t> needed,
                      std::span<const Operand> outputs, bool claims_layouts);
// A copy of a weight's view, contiguous: the one output.
Segment copy_segment(const Operand& view);

// The model whose weights an entry reads; 0: none.
uint64_t model_of(const Entry& entry);

}  // namespace djinn::device
