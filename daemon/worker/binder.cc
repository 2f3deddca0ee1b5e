// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/binder.h"

#include <fmt/format.h>
#include <string.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "kernel/base/alignment.h"
#include "kernel/base/assert.h"
#include "kernel/base/checked.h"
#include "kernel/srg/expr.h"

namespace djinn::worker {
namespace {

// Copies are kept for the next run up to this size: to a run that needs more, making them anew adds
// less than 1 %.
constexpr uint64_t kKeptBytesMax = uint64_t{64} << 20;

Error unbound(const std::string& name) {
  return {ErrorCode::kInvalidArgument,
          "The input '" + name + "' has no bytes. Give it data, or a ref."};
}

// Writes values that are computed here to the device, a piece at a time.
class Writer {
 public:
  Writer(exec::Lane& lane, DeviceAddress to) : lane_(lane), to_(to) {}

  template <typename T>
  void put(T value) {
    if (used_ + sizeof value > piece_.size()) flush();
    memcpy(piece_.data() + used_, &value, sizeof value);
    used_ += sizeof value;
  }
  void flush() {
    lane_.copy_in(std::span(piece_).first(used_), to_);
    to_ = to_ + used_;
    used_ = 0;
  }

 private:
  exec::Lane& lane_;
  DeviceAddress to_;
  size_t used_ = 0;
  std::array<std::byte, 16384> piece_;
};

// Writes int64 [rows, tokens]: what the group's slots [past, past + tokens) hold.
Status write_token_ids(Writer& out, const SequenceUse& sequence) {
  std::array<int32_t, 512> part;
  for (uint32_t row = 0; row < sequence.entry.rows; ++row) {
    for (uint64_t at = 0; at < sequence.tokens; at += part.size()) {
      const auto ids = std::span(part).first(std::min(part.size(), sequence.tokens - at));
      DJINN_CHECK(sequence.group->read_tokens(sequence.entry.bank, row, sequence.past() + at, ids));
      for (const int32_t id : ids) out.put(int64_t{id});
    }
  }
  return {};
}

// Writes int64 [rows, tokens]: a token's position in its row, without the padding on its left.
void write_positions(Writer& out, const SequenceUse& sequence) {
  for (uint32_t row = 0; row < sequence.entry.rows; ++row) {
    const uint64_t padding = sequence.entry.padding[row];
    for (uint64_t slot = sequence.past(); slot < sequence.past() + sequence.tokens; ++slot) {
      out.put(static_cast<int64_t>(slot < padding ? 0 : slot - padding));
    }
  }
}

// Writes bool [rows, 1, tokens, past + tokens]: it is causal, so each token sees itself and what is
// before it, but no padding.
void write_mask(Writer& out, const SequenceUse& sequence) {
  const uint64_t keys = sequence.past() + sequence.tokens;
  for (uint32_t row = 0; row < sequence.entry.rows; ++row) {
    for (uint64_t slot = sequence.past(); slot < keys; ++slot) {
      for (uint64_t key = 0; key < keys; ++key) {
        out.put(std::byte{key >= sequence.entry.padding[row] && key <= slot});
      }
    }
  }
}

// Gives the bytes of an output on a storage of its own, or nothing where only the run will tell.
std::optional<uint64_t> bytes_of(const exec::OutputInfo& output, std::span<const int64_t> symbols) {
  if (!output.sizes_known) return std::nullopt;
  uint64_t bytes = size_of(output.dtype);
  for (const srg::Expr& expr : output.sizes) {
    const auto size = srg::evaluate(expr, symbols);
    const auto product =
        size && *size >= 0 ? checked_mul(bytes, static_cast<uint64_t>(*size)) : std::nullopt;
    if (!product) return std::nullopt;
    bytes = *product;
  }
  return bytes;
}

// Tells whether the buffer's elements lie where those of the group's rows, heads and tokens do.
Result<bool> is_of_group(const srg::Value& buffer, std::span<const int64_t> symbols,
                         const ipc::SequenceGeometry& group) {
  DJINN_ASSERT(buffer.sizes.size() == 4);
  const int64_t dim = group.head_dim;
  const int64_t head = dim * static_cast<int64_t>(group.capacity);
  const std::array<int64_t, 4> strides{group.kv_heads * head, head, dim, 1};
  const std::array<int64_t, 4> most{group.rows, group.kv_heads,
                                    static_cast<int64_t>(group.capacity), dim};
  int64_t contiguous = 1;
  bool fits = size_of(buffer.dtype) == size_of(group.dtype);
  for (size_t i = 4; i-- > 0 && fits;) {
    DJINN_TRY(const int64_t size, srg::evaluate(buffer.sizes[i], symbols));
    int64_t stride = contiguous;
    if (!buffer.strides.empty()) {
      DJINN_TRY(stride, srg::evaluate(buffer.strides[i], symbols));
    }
    fits = size <= most[i] && (size <= 1 || stride == strides[i]);
    contiguous *= size;
  }
  return fits;
}

// Checks that a program that stays within its tokens has buffers, by their shapes, that fit the
// group.
Status check_buffers(const srg::Graph& graph, std::span<const int64_t> symbols,
                     const ipc::SequenceGeometry& group) {
  for (const srg::Value& value : graph.values) {
    if (value.storage == srg::kLocalStorage) continue;
    if (graph.storages[value.storage].kind != srg::StorageKind::kSequence) continue;
    DJINN_TRY(const bool fits, is_of_group(value, symbols, group));
    if (fits) continue;
    return Error{
        ErrorCode::kShapeMismatch,
        fmt::format("The program's buffer {} is not of the sequence group's shape: {} rows "
                    "at most, {} heads of {} tokens of {} {}.",
                    graph.storages[value.storage].name, group.rows, group.kv_heads, group.capacity,
                    group.head_dim, name_of(group.dtype))};
  }
  return {};
}

}  // namespace

Error binds_no_input() {
  return {ErrorCode::kInvalidArgument, "A binding names a storage that is not an input."};
}

Status check_padding(std::span<const uint32_t> padding, uint64_t tokens) {
  if (std::ranges::all_of(padding, [&](uint32_t n) { return n < tokens; })) return {};
  return Error{ErrorCode::kInvalidArgument, "A row is all padding. Give each row a token."};
}

std::optional<int64_t> symbol_of(srg::SymbolRole role, const SequenceUse& sequence) {
  switch (role) {
    case srg::SymbolRole::kBatch:
      return sequence.entry.rows;
    case srg::SymbolRole::kTokens:
      return static_cast<int64_t>(sequence.tokens);
    case srg::SymbolRole::kPast:
      return static_cast<int64_t>(sequence.past());
    case srg::SymbolRole::kCapacity:
      return static_cast<int64_t>(sequence.group->layout().capacity());
    case srg::SymbolRole::kPlain:
      break;
  }
  return std::nullopt;
}

Status Binder::begin(const exec::Program& program, std::span<const int64_t> given,
                     const SequenceUse* sequence) {
  const srg::Graph& graph = program.graph();
  program_ = &program;
  symbols_.resize(graph.symbols.size());
  storages_.assign(graph.storages.size(), {});
  bound_refs_.assign(graph.storages.size(), {});
  ref_offsets_.assign(graph.storages.size(), 0);
  places_.clear();
  tokens_begin_ = 0;
  tokens_end_ = std::numeric_limits<int64_t>::max();
  staged_bytes_ = 0;
  if (kept_bytes_ > kKeptBytesMax) clear();
  copies_.resize(std::max(copies_.size(), graph.storages.size()));
  for (size_t i = 0; i < symbols_.size(); ++i) {
    const srg::Symbol& symbol = graph.symbols[i];
    const auto decided = sequence ? symbol_of(symbol.role, *sequence) : std::nullopt;
    if (!decided && i >= given.size()) {
      return Error{ErrorCode::kInvalidArgument, "The symbol '" + symbol.name + "' has no value."};
    }
    symbols_[i] = decided ? *decided : given[i];
    if (symbols_[i] < symbol.min || symbols_[i] > symbol.max) {
      return Error{ErrorCode::kOutOfRange,
                   "The symbol '" + symbol.name + "' is " + std::to_string(symbols_[i]) +
                       ", and the program was admitted for " + std::to_string(symbol.min) + " to " +
                       std::to_string(symbol.max) + "."};
    }
  }
  return {};
}

Outcome<DeviceAddress> Binder::private_copy(size_t slot, uint64_t bytes) {
  DJINN_ASSERT(slot < copies_.size());
  Copy& copy = copies_[slot];
  if (copy.capacity < bytes || !copy.data) {
    const auto capacity = align_up(std::max<uint64_t>(bytes, 1), kTensorAlignment);
    if (!capacity || *capacity > limits::kStagingBytesMax) {
      return Error{ErrorCode::kLimitExceeded,
                   "An input of the run is larger than 1 GiB. Use fewer rows or tokens at a time."};
    }
    DJINN_ASSERT(kept_bytes_ >= copy.capacity);
    kept_bytes_ -= copy.capacity;
    copy = {};
    DJINN_TRY(copy.data, lane_.allocate(*capacity));
    copy.capacity = *capacity;
    kept_bytes_ += *capacity;
  }
  DJINN_ASSERT(copy.data && copy.capacity >= bytes);
  return copy.data.get();
}

Outcome<void> Binder::bind(Step& step, const ipc::InputBinding& input) {
  DJINN_ASSERT(program_ != nullptr);
  const srg::Graph& graph = program_->graph();
  if (input.storage >= graph.storages.size() ||
      graph.storages[input.storage].kind != srg::StorageKind::kInput) {
    return binds_no_input();
  }
  if (storages_[input.storage].data != nullptr) {
    return Error{ErrorCode::kInvalidArgument,
                 "The input '" + graph.storages[input.storage].name + "' is bound twice."};
  }
  if (input.kind == ipc::InputKind::kRef) return bind_ref(step, input);
  return bind_staging(step, input);
}

Outcome<void> Binder::bind_staging(Step& step, const ipc::InputBinding& input) {
  DJINN_TRY(const auto source, step.session.staged(input.staging));
  staged_bytes_ += source.size();
  if (staged_bytes_ > step.session.staging().size()) {
    return Error{ErrorCode::kLimitExceeded,
                 "The run binds more bytes than its staging slab has: some of them twice. Put what "
                 "several inputs share into a ref."};
  }
  DJINN_TRY(const DeviceAddress copy, private_copy(input.storage, source.size()));
  lane_.copy_in(source, copy);
  storages_[input.storage] = {copy, source.size(), false};
  return {};
}

Status Binder::bind_ref(Step& step, const ipc::InputBinding& input) {
  if (std::ranges::find(bound_refs_, input.ref) != bound_refs_.end()) {
    return Error{ErrorCode::kInvalidArgument,
                 "One ref is bound to two inputs. Use two values on one storage instead."};
  }
  DJINN_TRY(const Refs::Storage storage, step.session.refs().find(step.session.state(), input.ref));
  storages_[input.storage] = {storage.data, storage.bytes, true};
  bound_refs_[input.storage] = input.ref;
  ref_offsets_[input.storage] = storage.offset;
  return {};
}

Status Binder::doom_written(Step& step, std::span<const exec::WrittenRange> ranges) const {
  for (const exec::WrittenRange& range : ranges) {
    DJINN_ASSERT(range.storage < bound_refs_.size());
    if (!bound_refs_[range.storage].valid()) {
      return Error{ErrorCode::kInvalidArgument,
                   "The program writes the input '" +
                       program_->graph().storages[range.storage].name +
                       "', which is bound to staging. Bind it to a ref."};
    }
    if (step.is_of_series()) continue;
    const RefHandle changed = bound_refs_[range.storage];
    if (std::ranges::find(step.doomed, changed) == step.doomed.end())
      step.doomed.push_back(changed);
  }
  return {};
}

Result<std::vector<Refs::Written>> Binder::in_extent(
    std::span<const exec::WrittenRange> ranges) const {
  std::vector<Refs::Written> written;
  for (const exec::WrittenRange& range : ranges) {
    DJINN_ASSERT(bound_refs_[range.storage].valid());
    if (!range_fits(range.offset, range.bytes, storages_[range.storage].bytes)) {
      return Error{ErrorCode::kOutOfRange,
                   "The program writes beyond the ref that is bound to the input '" +
                       program_->graph().storages[range.storage].name + "'. Bind a larger one."};
    }
    written.push_back({ref_offsets_[range.storage] + range.offset, range.bytes});
  }
  return written;
}

// Gives the bytes that each output takes as a ref: 0 for one that becomes none, or whose size only
// the run will tell.
std::vector<uint64_t> Binder::bytes_of_refs(std::span<const ipc::OutputBinding> outputs) const {
  DJINN_ASSERT(outputs.empty() || outputs.size() == program_->outputs().size());
  std::vector<uint64_t> bytes;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const bool is_ref = outputs[i].kind == ipc::OutputKind::kRef;
    bytes.push_back(is_ref ? bytes_of(program_->outputs()[i], symbols_).value_or(0) : 0);
  }
  return bytes;
}

Outcome<void> Binder::prepare_refs(Step& step, std::span<const ipc::OutputBinding> outputs) {
  DJINN_TRY(const auto ranges, program_->written_ranges(symbols_));
  // Every changed ref is doomed before the first is saved, so that a failure poisons all of them.
  DJINN_CHECK(doom_written(step, ranges));
  // It says more than a lack of room for the results.
  DJINN_CHECK(lane_.check_size(*program_, symbols_));
  DJINN_TRY(const auto written, in_extent(ranges));
  Refs& refs = step.session.refs();
  DJINN_CHECK(refs.prepare(step.session.state(), written, bytes_of_refs(outputs), lane_));
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Refs::Storage place = refs.place_of(i);
    places_.push_back({place.data, place.bytes});
  }
  return {};
}

Outcome<void> Binder::bind_sequence(const SequenceUse& sequence) {
  DJINN_ASSERT(program_ != nullptr && sequence.group != nullptr);
  const srg::Graph& graph = program_->graph();
  const Sequence& group = *sequence.group;
  if (!program_->reaches_capacity()) {
    DJINN_CHECK(check_buffers(graph, symbols_, group.geometry()));
  }
  tokens_begin_ = static_cast<int64_t>(sequence.past());
  tokens_end_ = static_cast<int64_t>(sequence.past() + sequence.tokens);
  for (srg::StorageIndex i = 0; i < graph.storages.size(); ++i) {
    const srg::Storage& storage = graph.storages[i];
    if (storage.kind == srg::StorageKind::kSequence) {
      if (storage.layer >= group.layout().layers()) {
        return Error{ErrorCode::kInvalidArgument,
                     "The program has more layers than the sequence group."};
      }
      const uint32_t bank = sequence.entry.bank;
      const DeviceAddress data = storage.part == srg::SequencePart::kKey
                                     ? group.key(bank, storage.layer)
                                     : group.value(bank, storage.layer);
      storages_[i] = {data, group.bank_bytes(), true};
    } else if (storage.role != srg::InputRole::kUser && storages_[i].data == nullptr) {
      DJINN_CHECK(fill_role(i, sequence));
    }
  }
  return {};
}

Outcome<void> Binder::fill_role(srg::StorageIndex storage, const SequenceUse& sequence) {
  const srg::InputRole role = program_->graph().storages[storage].role;
  DJINN_ASSERT(role != srg::InputRole::kUser && storages_[storage].data == nullptr);
  const uint64_t cells = uint64_t{sequence.entry.rows} * sequence.tokens;
  const uint64_t keys = sequence.past() + sequence.tokens;
  const bool mask = role == srg::InputRole::kAttentionMask;
  const auto bytes = checked_mul<uint64_t>(cells, mask ? keys : sizeof(int64_t));
  if (!bytes) return Error{ErrorCode::kLimitExceeded, "The attention mask is too large."};
  DJINN_TRY(const DeviceAddress copy, private_copy(storage, *bytes));
  Writer out(lane_, copy);
  if (role == srg::InputRole::kTokenIds) DJINN_CHECK(write_token_ids(out, sequence));
  if (role == srg::InputRole::kPositions) write_positions(out, sequence);
  if (mask) write_mask(out, sequence);
  out.flush();
  storages_[storage] = {copy, *bytes, false};
  return {};
}

Status Binder::check_complete() const {
  const srg::Graph& graph = program_->graph();
  DJINN_ASSERT(storages_.size() == graph.storages.size());
  for (size_t i = 0; i < graph.storages.size(); ++i) {
    if (graph.storages[i].kind == srg::StorageKind::kInput && storages_[i].data == nullptr) {
      return unbound(graph.storages[i].name);
    }
    if (graph.storages[i].kind == srg::StorageKind::kSequence && storages_[i].data == nullptr) {
      return Error{ErrorCode::kInvalidArgument,
                   "The program needs a sequence group, and the run names none."};
    }
  }
  return {};
}

}  // namespace djinn::worker
