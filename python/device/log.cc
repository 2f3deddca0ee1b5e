// SPDX-License-Identifier: Apache-2.0

#include "python/device/log.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "kernel/exec/convert.h"
#include "python/device/chains.h"

namespace djinn::device {
namespace {

// A run has at most this many inputs and outputs: half of what a binding table holds.
constexpr size_t kBindingsMax = 900;
constexpr size_t kEntriesMax = 8 * 1024;
// A run writes at most this many ranges of bound storages in place. Each is saved first, and a
// worker keeps 256.
constexpr size_t kWritesMax = 192;

using StorageSet = std::unordered_set<const Storage*>;

std::vector<srg::Expr> exprs(c10::IntArrayRef numbers) {
  return {numbers.begin(), numbers.end()};
}

bool is_contiguous(const Operand& view) {
  int64_t expected = 1;
  for (size_t d = view.sizes.size(); d-- > 0;) {
    if (view.sizes[d] != 1 && view.strides[d] != expected) return false;
    expected *= view.sizes[d];
  }
  return true;
}

DType dtype_of(at::ScalarType type) {
  const DType dtype = exec::from_torch(type);
  TORCH_CHECK_NOT_IMPLEMENTED(dtype != DType::kInvalid, "Tensors of ", type,
                              " do not cross to djinnd; convert them on the CPU first.");
  return dtype;
}

bool is_local(const Storage& storage) {
  return storage.location == Location::kLogged || storage.location == Location::kZero;
}

// Counts what is saved first of the storages that a run writes and did not make. A storage that is
// written as a whole is one range, however often that happens; of others each write may be a range.
class Saves {
 public:
  void add(const Operand& written) {
    if (whole_.contains(written.storage.get())) return;
    const uint64_t bytes = hull_bytes(written);
    if (bytes == written.storage->bytes) whole_.insert(written.storage.get());
    ++ranges_;
    bytes_ += bytes;
  }
  // An entry that writes more than a run may write has a run of its own.
  [[nodiscard]] bool has_room_for(const Entry& entry) const {
    uint64_t bytes = bytes_;
    size_t ranges = ranges_;
    for (const uint32_t w : entry.recipe->written) {
      const Operand& written = entry.operands[w];
      if (is_local(*written.storage) || whole_.contains(written.storage.get())) continue;
      ++ranges;
      bytes += hull_bytes(written);
    }
    if (ranges == ranges_ || ranges_ == 0) return true;
    return ranges <= kWritesMax && bytes <= kWrittenBytesMax;
  }
  [[nodiscard]] bool are_enough() const { return bytes_ >= kWrittenBytesEnough; }

 private:
  StorageSet whole_;
  size_t ranges_ = 0;
  uint64_t bytes_ = 0;
};

// Writes entries as a graph.
class GraphWriter {
 public:
  // If claims_layouts, contiguous results are claimed to be so. With symbols to come they are not,
  // because products of two symbols are no affine strides.
  explicit GraphWriter(bool claims_layouts = true) : claims_layouts_(claims_layouts) {
    segment_.graph.name = "recorded";
  }

  void write(const Entry& entry) {
    srg::Node node;
    node.op = entry.recipe->op;
    node.arguments = bind(entry);
    node.annotation.phase = entry.phase;
    node.annotation.residency = entry.residency;
    const size_t index = segment_.graph.nodes.size();
    segment_.graph.nodes.push_back(std::move(node));
    for (size_t i = 0; i < entry.recipe->products.size(); ++i) define(entry, i, index);
    segment_.numbers.resize(segment_.graph.nodes.size(), entry.number);
    ++segment_.operators;
  }

  [[nodiscard]] bool is_full(const Entry& next) const {
    return segment_.inputs.size() + next.operands.size() > kBindingsMax ||
           order_.size() + next.products.size() > kBindingsMax || !saves_.has_room_for(next);
  }

  [[nodiscard]] bool has_written_enough() const { return saves_.are_enough(); }

  // `keep` tells which storages outlive the graph.
  template <typename Keep>
  Segment finish(Keep&& keep) && {
    for (const Storage* const storage : order_) {
      const Local& local = locals_.at(storage);
      if (!local.changed || storage->bytes == 0 || !keep(*storage)) continue;
      if (local.was)
        segment_.before.push_back({segment_.outputs.size(), *local.was, local.written});
      segment_.graph.outputs.push_back(local.value);
      segment_.outputs.push_back(local.storage);
    }
    segment_.graph.numerics = srg::Numerics::kExact;  // as operators are that run one by one
    return std::move(segment_);
  }

  void write_open(const Entry& entry, size_t results) {
    write(entry);
    for (size_t i = 0; i < results; ++i) {
      const srg::ValueId id = new_local();
      segment_.graph.nodes.back().outputs.push_back(id);
      segment_.graph.outputs.push_back(id);
      segment_.outputs.push_back(storages().make(0));
    }
  }

  void write_output(const Operand& view) {
    segment_.graph.outputs.push_back(value_of(view));
    segment_.outputs.push_back(view.storage);
  }

  void write_copy(const Operand& view) {
    srg::Node node;
    node.op = "aten::alias";
    node.arguments.push_back({"", srg::ValueRef{value_of(view)}});
    segment_.graph.outputs.push_back(add(std::move(node)));
    segment_.outputs.push_back(nullptr);
  }

 private:
  // Holds a storage that the graph makes, with the value that covers it.
  struct Local {
    StoragePtr storage;
    srg::ValueId value = 0;
    Operand geometry;
    bool changed = false;                                     // made or written by an operator
    std::optional<std::shared_ptr<const NamedTensor>> was{};  // as Before::weight
    uint64_t written = 0;                                     // as Before::written
  };

  std::vector<srg::Argument> bind(const Entry& entry) {
    std::vector<srg::ValueId> ids;
    for (const Operand& operand : entry.operands) ids.push_back(value_of(operand));
    for (const uint32_t i : entry.recipe->written) {
      const auto local = locals_.find(entry.operands[i].storage.get());
      if (local != locals_.end()) {
        if (!local->second.changed) local->second.written = entry.number;
        local->second.changed = true;
      } else {
        saves_.add(entry.operands[i]);
      }
    }
    std::vector<srg::Argument> arguments = entry.recipe->arguments;
    for (srg::Argument& argument : arguments) {
      if (auto* ref = std::get_if<srg::ValueRef>(&argument.value)) ref->id = ids[ref->id];
      if (auto* list = std::get_if<srg::ValueList>(&argument.value)) {
        for (auto& id : list->ids) {
          if (id) id = ids[*id];
        }
      }
    }
    return arguments;
  }

  void define(const Entry& entry, size_t number, size_t node) {
    const Product& product = entry.recipe->products[number];
    const srg::ValueId id = new_local();
    segment_.graph.nodes[node].outputs.push_back(id);
    if (product.kind != Product::Kind::kFresh) return;
    claim(id, {entry.products[number], product.type, product.sizes, product.strides, 0});
    const StoragePtr& storage = entry.products[number];
    Local local{storage, id, {storage, product.type, product.sizes, product.strides, 0}, true};
    const Storage& source = *entry.operands.front().storage;
    if (entry.is_fork && source.location == Location::kWeight) local.was = source.named;
    add_local(std::move(local));
  }

  // The value covers a storage of its own, and has the geometry of `all`.
  void claim(srg::ValueId id, const Operand& all) {
    srg::Value& value = segment_.graph.values[id];
    value.dtype = dtype_of(all.type);
    value.claims_sizes = true;
    value.sizes = exprs(all.sizes);
    if (claims_layouts_ || !is_contiguous(all)) value.strides = exprs(all.strides);
  }

  const Local& add_local(Local local) {
    const Storage* const storage = local.storage.get();
    order_.push_back(storage);
    return locals_[storage] = std::move(local);
  }

  srg::ValueId new_local() {
    segment_.graph.values.emplace_back();
    return static_cast<srg::ValueId>(segment_.graph.values.size() - 1);
  }

  srg::ValueId value_of(const Operand& operand) {
    auto& known = views_[operand.storage.get()];
    std::vector<int64_t> key{static_cast<int64_t>(operand.type), operand.offset};
    key.insert(key.end(), operand.sizes.begin(), operand.sizes.end());
    key.insert(key.end(), operand.strides.begin(), operand.strides.end());
    const auto found = known.find(key);
    if (found != known.end()) return found->second;
    const srg::ValueId id = view_of(operand);
    views_[operand.storage.get()].emplace(std::move(key), id);
    return id;
  }

  srg::ValueId view_of(const Operand& operand) {
    if (is_local(*operand.storage)) return view_local(operand);
    if (operand.storage->location == Location::kInput) return view_input(operand);
    return view_bound(operand);
  }

  // An input with a role has one value, of the role's shape.
  srg::ValueId view_input(const Operand& operand) {
    Operand all{operand.storage, operand.storage->type, {}, {}, 0};
    const std::vector<int64_t>& sizes = operand.storage->named->sizes;
    all.sizes.assign(sizes.begin(), sizes.end());
    all.strides.resize(sizes.size(), 1);
    for (size_t d = sizes.size(); d-- > 1;) all.strides[d - 1] = all.strides[d] * sizes[d];
    const auto known = inputs_.find(operand.storage.get());
    const srg::ValueId base = known != inputs_.end() ? known->second : view_bound(all);
    inputs_[operand.storage.get()] = base;
    if (operand.type == all.type && operand.sizes == all.sizes && operand.strides == all.strides &&
        operand.offset == 0) {
      return base;
    }
    TORCH_CHECK_NOT_IMPLEMENTED(operand.type == all.type, "An input is seen as another dtype.");
    return strided(base, operand.sizes, operand.strides, operand.offset);
  }

  srg::ValueId view_bound(const Operand& operand) {
    srg::Value value;
    value.storage = bound(operand.storage);
    value.dtype = dtype_of(operand.type);
    value.sizes = exprs(operand.sizes);
    if (!is_contiguous(operand)) value.strides = exprs(operand.strides);
    value.offset = operand.offset;
    segment_.graph.values.push_back(std::move(value));
    return static_cast<srg::ValueId>(segment_.graph.values.size() - 1);
  }

  srg::StorageIndex bound(const StoragePtr& storage) {
    const auto known = bound_.find(storage.get());
    if (known != bound_.end()) return known->second;
    srg::Storage out;
    if (storage->location == Location::kInput || storage->location == Location::kSequence) {
      return bound_[storage.get()] = bound_by_role(*storage);
    }
    if (storage->location == Location::kWeight) {
      out.kind = srg::StorageKind::kWeight;
      out.name = storage->named->name;
      const auto same = weights_.find(out.name);  // tied, or frozen before a write
      if (same != weights_.end()) return bound_[storage.get()] = same->second;
      segment_.model = storage->named->owner;
    } else {
      out.kind = srg::StorageKind::kInput;
      out.name = "x" + std::to_string(segment_.inputs.size());
    }
    const auto index = static_cast<srg::StorageIndex>(segment_.graph.storages.size());
    if (out.kind == srg::StorageKind::kWeight) weights_[out.name] = index;
    segment_.inputs.push_back(out.kind == srg::StorageKind::kInput ? storage : nullptr);
    segment_.graph.storages.push_back(std::move(out));
    return bound_[storage.get()] = index;
  }

  srg::StorageIndex bound_by_role(const Storage& storage) {
    srg::Storage out;
    if (storage.location == Location::kInput) {
      out.kind = srg::StorageKind::kInput;
      out.role = static_cast<srg::InputRole>(storage.named->owner);
      out.name = storage.named->name;
    } else {
      out.kind = srg::StorageKind::kSequence;
      out.layer = static_cast<uint32_t>(storage.named->owner >> 1);
      out.part = static_cast<srg::SequencePart>(storage.named->owner & 1);
    }
    segment_.inputs.push_back(nullptr);
    segment_.graph.storages.push_back(std::move(out));
    return static_cast<srg::StorageIndex>(segment_.graph.storages.size() - 1);
  }

  srg::ValueId view_local(const Operand& operand) {
    const Local& local = local_of(operand.storage);
    srg::ValueId base = local.value;
    if (local.geometry.type != operand.type) {
      base = as_type(local, operand.type);
    } else if (operand.offset == 0 && local.geometry.sizes == operand.sizes &&
               local.geometry.strides == operand.strides) {
      return base;
    }
    return strided(base, operand.sizes, operand.strides, operand.offset);
  }

  const Local& local_of(const StoragePtr& storage) {
    const auto known = locals_.find(storage.get());
    if (known != locals_.end()) return known->second;
    // A local storage is zeros here, or has no bytes, and then no run has made it.
    TORCH_INTERNAL_ASSERT(storage->location == Location::kZero || storage->bytes == 0);
    const Operand all = whole(storage);
    srg::Node zeros;
    zeros.op = "aten::zeros";
    zeros.arguments.push_back({"", srg::ExprList{exprs(all.sizes)}});
    zeros.arguments.push_back({"dtype", dtype_of(all.type)});
    const srg::ValueId id = add(std::move(zeros));
    claim(id, all);
    return add_local({storage, id, all, false, nullptr});
  }

  // Makes the bytes of a local storage another type: puts its elements in a row, then views that as
  // the type.
  srg::ValueId as_type(const Local& local, at::ScalarType type) {
    const int64_t size = static_cast<int64_t>(c10::elementSize(local.geometry.type));
    const std::vector<int64_t> row{static_cast<int64_t>(local.storage->bytes) / size};
    const std::vector<int64_t> one{1};
    srg::Node view;
    view.op = "aten::view.dtype";
    view.arguments.push_back({"", srg::ValueRef{strided(local.value, row, one, 0)}});
    view.arguments.push_back({"", dtype_of(type)});
    return add(std::move(view));
  }

  srg::ValueId strided(srg::ValueId base, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                       int64_t offset) {
    srg::Node node;
    node.op = "aten::as_strided";
    node.arguments.push_back({"", srg::ValueRef{base}});
    node.arguments.push_back({"", srg::ExprList{exprs(sizes)}});
    node.arguments.push_back({"", srg::ExprList{exprs(strides)}});
    node.arguments.push_back({"", srg::Expr(offset)});
    return add(std::move(node));
  }

  srg::ValueId add(srg::Node node) {
    const srg::ValueId id = new_local();
    node.outputs.push_back(id);
    segment_.graph.nodes.push_back(std::move(node));
    return id;
  }

  const bool claims_layouts_;
  Segment segment_;
  std::unordered_map<const Storage*, Local> locals_;
  std::vector<const Storage*> order_;  // of locals_
  std::unordered_map<const Storage*, srg::StorageIndex> bound_;
  std::unordered_map<const Storage*, srg::ValueId> inputs_;  // with a role: the one value
  std::unordered_map<std::string, srg::StorageIndex> weights_;
  Saves saves_;  // of bound_
  std::unordered_map<const Storage*, std::map<std::vector<int64_t>, srg::ValueId>> views_;
};

void note_uses(const Entry& entry, StorageSet& used) {
  for (const Operand& operand : entry.operands) used.insert(operand.storage.get());
}

}  // namespace

uint64_t model_of(const Entry& entry) {
  for (const Operand& operand : entry.operands) {
    if (operand.storage->location == Location::kWeight) return operand.storage->named->owner;
  }
  return 0;
}

Operand operand_of(const at::Tensor& tensor) {
  return {storage_of(tensor),
          tensor.scalar_type(),
          {tensor.sizes().begin(), tensor.sizes().end()},
          {tensor.strides().begin(), tensor.strides().end()},
          tensor.storage_offset()};
}

Operand whole(const StoragePtr& storage) {
  const auto size = static_cast<int64_t>(c10::elementSize(storage->type));
  return {storage, storage->type, {static_cast<int64_t>(storage->bytes) / size}, {1}, 0};
}

void Log::append(Entry entry) {
  entry.number = storages().number_entry();
  for (const Operand& operand : entry.operands) ++operand.storage->log_uses;
  for (const StoragePtr& product : entry.products) {
    if (product) ++product->log_uses;
  }
  entries_.push_back(std::move(entry));
}

void Log::clear() {
  for (const Entry& entry : entries_) count_out(entry);
  entries_.clear();
}

void Log::drop(std::span<const size_t> numbers) {
  std::vector<bool> goes(entries_.size(), false);
  for (const size_t number : numbers) goes[number] = true;
  std::vector<Entry> left;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (goes[i]) {
      count_out(entries_[i]);
    } else {
      left.push_back(std::move(entries_[i]));
    }
  }
  entries_ = std::move(left);
}

void Log::count_out(const Entry& entry) {
  for (const Operand& operand : entry.operands) --operand.storage->log_uses;
  for (const StoragePtr& product : entry.products) {
    if (product) --product->log_uses;
  }
}

void Log::drop_lost() {
  const auto is_lost = [](const StoragePtr& storage) {
    return storage && storage->location == Location::kLost;
  };
  const auto lost_of = [&](const Entry& entry) -> const Storage* {
    const auto operand = std::ranges::find_if(entry.operands, is_lost, &Operand::storage);
    if (operand != entry.operands.end()) return operand->storage.get();
    const auto product = std::ranges::find_if(entry.products, is_lost);
    return product != entry.products.end() ? product->get() : nullptr;
  };
  std::vector<Entry> left = entries_;
  clear();
  for (size_t before = left.size() + 1; left.size() < before;) {
    before = left.size();
    std::erase_if(left, [&](const Entry& entry) {
      const Storage* const lost = lost_of(entry);
      if (lost == nullptr) return false;
      const auto failure = lost->failure;
      for (const StoragePtr& product : entry.products) {
        if (product) lose(*product, failure);
      }
      for (const uint32_t w : entry.recipe->written) {
        if (!failure) lose(*entry.operands[w].storage);
      }
      return true;
    });
  }
  for (Entry& entry : left) append(std::move(entry));
}

void Log::rename(const StoragePtr& storage, const StoragePtr& frozen) {
  for (Entry& entry : entries_) {
    for (Operand& operand : entry.operands) {
      if (operand.storage != storage) continue;
      operand.storage = frozen;
      --storage->log_uses;
      ++frozen->log_uses;
    }
  }
}

void Log::rename_product(const StoragePtr& storage) {
  StoragePtr& product = entries_.back().products.at(0);
  entries_.back().is_fork = true;
  --product->log_uses;
  product = storage;
  ++product->log_uses;
}

void Log::forget_product(const StoragePtr& storage) {
  const auto forget = [&](StoragePtr& made, Location location) {
    if (made != storage) return;
    --storage->log_uses;
    made = storages().make(storage->bytes, storage->type);
    made->location = location;
    made->held = false;
    ++made->log_uses;
  };
  for (Entry& entry : entries_) {
    for (StoragePtr& product : entry.products) forget(product, Location::kLogged);
    for (const uint32_t w : entry.recipe->written)
      forget(entry.operands[w].storage, Location::kZero);
  }
}

std::vector<size_t> Log::needed() const {
  StorageSet wanted;
  std::vector<size_t> indices;
  const auto is_wanted = [&](const Storage& s) { return s.held || wanted.contains(&s); };
  for (size_t i = entries_.size(); i-- > 0;) {
    const Entry& entry = entries_[i];
    bool keep = false;
    for (const StoragePtr& product : entry.products) keep |= product && is_wanted(*product);
    for (const uint32_t w : entry.recipe->written) keep |= is_wanted(*entry.operands[w].storage);
    if (!keep) continue;
    note_uses(entry, wanted);
    indices.push_back(i);
  }
  std::reverse(indices.begin(), indices.end());
  return indices;
}

std::vector<StoragePtr> uploads_of(const Log& log, std::span<const size_t> needed) {
  std::vector<StoragePtr> found;
  StorageSet seen;
  for (const size_t i : needed) {
    for (const Operand& operand : log.entries()[i].operands) {
      if (operand.storage->location != Location::kHost) continue;
      if (seen.insert(operand.storage.get()).second) found.push_back(operand.storage);
    }
  }
  return found;
}

Segmenter::Segmenter(const Log& log, std::vector<size_t> needed)
    : log_(log), needed_(std::move(needed)), begins_chain_(order_in_chains(log_, needed_)) {}

bool Segmenter::is_cut(bool has_written_enough) const {
  if (!begins_chain_[at_] || at_ == first_) return false;
  return has_written_enough || entry(at_ - 1).phase == srg::Phase::kTraining;
}

std::optional<Segment> Segmenter::next() {
  if (at_ == needed_.size()) return std::nullopt;
  GraphWriter writer;
  uint64_t model = 0;
  first_ = at_;
  for (; at_ < needed_.size() && at_ - first_ < kEntriesMax; ++at_) {
    const uint64_t other = model_of(entry(at_));
    const bool foreign = model != 0 && other != 0 && other != model;
    const bool is_full = at_ > first_ && writer.is_full(entry(at_));
    if (foreign || is_full || is_cut(writer.has_written_enough())) break;
    if (other != 0) model = other;
    writer.write(entry(at_));
  }
  StorageSet later;
  for (size_t i = at_; i < needed_.size(); ++i) note_uses(entry(i), later);
  return std::move(writer).finish(
      [&](const Storage& storage) { return storage.held || later.contains(&storage); });
}

Segment open_segment(const Entry& entry, size_t results) {
  GraphWriter writer;
  writer.write_open(entry, results);
  return std::move(writer).finish([](const Storage&) { return true; });
}

Segment whole_segment(const Log& log, std::span<const size_t> needed,
                      std::span<const Operand> outputs, bool claims_layouts) {
  GraphWriter writer(claims_layouts);
  uint64_t model = 0;
  for (const size_t i : needed) {
    writer.write(log.entries()[i]);
    if (const uint64_t of_entry = model_of(log.entries()[i])) model = of_entry;
  }
  for (const Operand& output : outputs) writer.write_output(output);
  Segment segment = std::move(writer).finish([](const Storage&) { return false; });
  segment.model = model;
  return segment;
}

Segment copy_segment(const Operand& view) {
  GraphWriter writer;
  writer.write_copy(view);
  return std::move(writer).finish([](const Storage&) { return false; });
}

}  // namespace djinn::device
