// SPDX-License-Identifier: Apache-2.0

#include "kernel/srg/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "kernel/base/checked.h"
#include "kernel/srg/expr.h"
#include "kernel/srg/limits.h"

namespace djinn::srg {
namespace {

constexpr uint64_t kWidestBytes = 16;   // of an element
constexpr size_t kNameShownBytes = 60;  // of a name in a message: messages are short

using Names = std::unordered_set<std::string_view>;

Error over_limit(std::string message) {
  return {ErrorCode::kLimitExceeded, std::move(message)};
}
Error malformed(std::string message) {
  return {ErrorCode::kMalformed, std::move(message)};
}
Error out_of_range(std::string message) {
  return {ErrorCode::kOutOfRange, std::move(message)};
}
Error twice(std::string message) {
  return {ErrorCode::kAlreadyExists, std::move(message)};
}
Error contradiction(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}

Status at_most(uint64_t count, uint64_t limit, std::string_view what) {
  if (count <= limit) return {};
  return over_limit(fmt::format("The graph has {} {}; the limit is {}.", count, what, limit));
}

bool is_printable(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || byte == 0x7f;
  });
}

// Precondition: is_printable has passed the name.
std::string shown(std::string_view name) {
  if (name.size() <= kNameShownBytes) return fmt::format("\"{}\"", name);
  return fmt::format("\"{}...\"", name.substr(0, kNameShownBytes));
}

template <typename Enum>
bool in_enum(Enum value, Enum last) {
  return static_cast<unsigned>(value) <= static_cast<unsigned>(last);
}

bool is_dtype(DType dtype) {
  return size_of(dtype) != 0;
}

// Only one NaN is allowed, so that equal graphs have equal bytes.
bool is_canonical_double(double number) {
  if (!std::isnan(number)) return true;
  return std::bit_cast<uint64_t>(number) ==
         std::bit_cast<uint64_t>(std::numeric_limits<double>::quiet_NaN());
}

// Marks a role as seen; gives false if it was. Plain roles (zero) may repeat.
template <typename Role>
bool claim_role(Role role, uint32_t& seen) {
  const uint32_t bit = 1u << static_cast<unsigned>(role);
  const bool free = static_cast<unsigned>(role) == 0 || (seen & bit) == 0;
  seen |= bit;
  return free;
}

class Verifier {
 public:
  explicit Verifier(const Graph& graph) : graph_(graph) {}

  Status run() {
    DJINN_CHECK(check_counts());
    DJINN_CHECK(check_name(graph_.name, "The graph's name"));
    if (!in_enum(graph_.numerics, Numerics::kFastOnly)) {
      return malformed("The graph has unknown numerics. Use a newer djinnd.");
    }
    DJINN_CHECK(check_symbols());
    DJINN_CHECK(check_storages());
    DJINN_CHECK(check_values());
    DJINN_CHECK(check_nodes());
    return check_outputs();
  }

 private:
  Status check_counts() {
    DJINN_CHECK(at_most(graph_.symbols.size(), limits::kSymbols, "symbols"));
    DJINN_CHECK(at_most(graph_.storages.size(), limits::kStorages, "storages"));
    DJINN_CHECK(at_most(graph_.values.size(), limits::kValues, "values"));
    DJINN_CHECK(at_most(graph_.nodes.size(), limits::kNodes, "nodes"));
    return at_most(graph_.outputs.size(), limits::kOutputs, "outputs");
  }

  Status count_items(uint64_t count) {
    items_ += count;
    return at_most(items_, limits::kItems, "arguments, list items and terms");
  }

  Status check_name(std::string_view name, std::string_view what) {
    names_bytes_ += name.size();
    DJINN_CHECK(at_most(names_bytes_, limits::kNamesBytes, "bytes of names"));
    if (name.size() > limits::kNameBytes) {
      return over_limit(
          fmt::format("{} has {} bytes; the limit is {}.", what, name.size(), limits::kNameBytes));
    }
    if (!is_printable(name)) return malformed(fmt::format("{} has control characters.", what));
    return {};
  }

  // --- symbols

  Status check_symbols() {
    Names names;
    uint32_t roles = 0;
    for (const Symbol& symbol : graph_.symbols) {
      DJINN_CHECK(check_symbol_name(symbol, names));
      DJINN_CHECK(check_symbol_range(symbol));
      if (!in_enum(symbol.role, SymbolRole::kCapacity)) {
        return malformed(fmt::format("Symbol {} has an unknown role.", shown(symbol.name)));
      }
      if (!claim_role(symbol.role, roles)) {
        return twice(
            fmt::format("Symbol {} has a role that an earlier symbol has. Each occurs at "
                        "most once.",
                        shown(symbol.name)));
      }
    }
    return {};
  }

  Status check_symbol_name(const Symbol& symbol, Names& names) {
    DJINN_CHECK(check_name(symbol.name, "A symbol's name"));
    if (!is_identifier(symbol.name) || is_reserved_word(symbol.name)) {
      return malformed(
          fmt::format("{} cannot name a symbol. Use letters, digits and underscores, "
                      "and no word of the text form.",
                      shown(symbol.name)));
    }
    if (names.insert(symbol.name).second) return {};
    return twice(fmt::format("Two symbols are named {}.", shown(symbol.name)));
  }

  static Status check_symbol_range(const Symbol& symbol) {
    if (0 <= symbol.min && symbol.min <= symbol.max && symbol.max <= limits::kSymbolMax) return {};
    return out_of_range(
        fmt::format("Symbol {} has the range {}..{}. It must ascend, from 0 to at "
                    "most {}.",
                    shown(symbol.name), symbol.min, symbol.max, limits::kSymbolMax));
  }

  // --- storages

  struct StoragesSeen {
    Names weights;
    Names inputs;
    uint32_t input_roles = 0;
    std::unordered_set<uint64_t> buffers;
  };

  Status check_storages() {
    StoragesSeen seen;
    for (const Storage& storage : graph_.storages) {
      DJINN_CHECK(check_name(storage.name, "A storage's name"));
      DJINN_CHECK(check_storage(storage, seen));
      DJINN_CHECK(check_unused_fields(storage));
    }
    return {};
  }

  static Status check_storage(const Storage& storage, StoragesSeen& seen) {
    switch (storage.kind) {
      case StorageKind::kWeight:
        return check_named(storage, seen.weights, "weights");
      case StorageKind::kInput:
        DJINN_CHECK(check_named(storage, seen.inputs, "inputs"));
        return check_input_role(storage, seen.input_roles);
      case StorageKind::kSequence:
        return check_sequence(storage, seen.buffers);
    }
    return malformed("A storage is of an unknown kind.");
  }

  static Status check_named(const Storage& storage, Names& names, std::string_view what) {
    if (storage.name.empty()) return malformed(fmt::format("One of the {} has no name.", what));
    if (names.insert(storage.name).second) return {};
    return twice(fmt::format("Two {} are named {}. Give one storage two values instead.", what,
                             shown(storage.name)));
  }

  static Status check_input_role(const Storage& storage, uint32_t& roles) {
    if (!in_enum(storage.role, InputRole::kAttentionMask)) {
      return malformed(fmt::format("Input {} has an unknown role.", shown(storage.name)));
    }
    if (claim_role(storage.role, roles)) return {};
    return twice(
        fmt::format("Input {} has a role that an earlier input has.", shown(storage.name)));
  }

  static Status check_sequence(const Storage& storage, std::unordered_set<uint64_t>& buffers) {
    if (storage.layer >= limits::kLayers) {
      return over_limit(fmt::format("A sequence buffer is of layer {}; the limit is {} layers.",
                                    storage.layer, limits::kLayers));
    }
    if (!in_enum(storage.part, SequencePart::kValue)) {
      return malformed("A sequence buffer holds neither keys nor values.");
    }
    const uint64_t key = uint64_t{storage.layer} * 2 + static_cast<uint64_t>(storage.part);
    if (buffers.insert(key).second) return {};
    return twice(
        fmt::format("Layer {} has the same sequence buffer twice. Give one storage two "
                    "values instead.",
                    storage.layer));
  }

  static Status check_unused_fields(const Storage& storage) {
    const bool sequence = storage.kind == StorageKind::kSequence;
    const bool input = storage.kind == StorageKind::kInput;
    const bool plain_buffer = storage.layer == 0 && storage.part == SequencePart::kKey;
    const bool weight = storage.kind == StorageKind::kWeight;
    if ((input || storage.role == InputRole::kUser) && (sequence || plain_buffer) &&
        (!sequence || storage.name.empty()) && (weight || !storage.is_declared)) {
      return {};
    }
    return contradiction(
        "A storage has fields that its kind does not use: names are for weights and inputs, roles "
        "for inputs, layer and part for sequences, and only a weight is declared whole.");
  }

  // --- values

  Status check_values() {
    Names names;
    std::vector<bool> viewed(graph_.storages.size());
    StorageIndex next = 0;
    for (size_t id = 0; id < graph_.values.size(); ++id) {
      const Value& value = graph_.values[id];
      DJINN_CHECK(check_name(value.name, "A value's name"));
      if (!value.name.empty() && !names.insert(value.name).second) {
        return twice(fmt::format("Two values are named {}.", shown(value.name)));
      }
      DJINN_CHECK(check_dimensions(value, id));
      DJINN_CHECK(value.storage == kLocalStorage ? check_local(value, id)
                                                 : check_view(value, id, viewed));
      if (value.storage == kLocalStorage) continue;
      // As in the text form, a weight must be declared before the views of later storages.
      DJINN_CHECK(check_declared(viewed, next, value.storage));
    }
    return check_declared(viewed, next, static_cast<StorageIndex>(viewed.size()));
  }

  Status check_declared(const std::vector<bool>& viewed, StorageIndex& next,
                        StorageIndex end) const {
    for (; next < end; ++next) {
      if (graph_.storages[next].is_declared && !viewed[next]) {
        return contradiction(fmt::format(
            "Weight {} is declared by its first view, which comes too late or not at all.",
            shown(graph_.storages[next].name)));
      }
    }
    return {};
  }

  Status check_dimensions(const Value& value, size_t id) {
    if (value.sizes.size() > limits::kRank || value.strides.size() > limits::kRank) {
      return over_limit(fmt::format("Value {} has more than {} dimensions.", id, limits::kRank));
    }
    if (!value.strides.empty() && value.strides.size() != value.sizes.size()) {
      return contradiction(
          fmt::format("Value {} has {} sizes and {} strides. Give one stride a "
                      "dimension, or none if it is contiguous.",
                      id, value.sizes.size(), value.strides.size()));
    }
    for (const Expr& size : value.sizes) DJINN_CHECK(check_expr(size));
    for (const Expr& stride : value.strides) DJINN_CHECK(check_expr(stride));
    return check_expr(value.offset);
  }

  Status check_local(const Value& value, size_t id) const {
    if (value.dtype != DType::kInvalid && !is_dtype(value.dtype)) {
      return malformed(fmt::format("Value {} claims an unknown dtype.", id));
    }
    if (value.offset != Expr(0)) {
      return contradiction(fmt::format("Value {} is on no storage and has an offset.", id));
    }
    if (!value.claims_sizes && !(value.sizes.empty() && value.strides.empty())) {
      return contradiction(fmt::format("Value {} has sizes but does not claim them.", id));
    }
    return value.strides.empty() ? Status() : check_extent(value, id);
  }

  Status check_view(const Value& value, size_t id, std::vector<bool>& viewed) {
    if (value.storage >= graph_.storages.size()) {
      return out_of_range(
          fmt::format("Value {} views storage {}, which does not exist.", id, value.storage));
    }
    if (!is_dtype(value.dtype)) {
      return malformed(fmt::format("Value {} views a storage and has no known dtype.", id));
    }
    if (value.claims_sizes) {
      return contradiction(
          fmt::format("Value {} views a storage and claims sizes. Only values "
                      "that nodes make claim them.",
                      id));
    }
    if (!viewed[value.storage]) {
      DJINN_CHECK(check_role(graph_.storages[value.storage], value));
      DJINN_CHECK(check_whole(graph_.storages[value.storage], value));
    }
    viewed[value.storage] = true;
    return check_extent(value, id);
  }

  // The generation loop fills the first view of an input with a role.
  static Status check_role(const Storage& storage, const Value& value) {
    if (storage.kind != StorageKind::kInput || storage.role == InputRole::kUser) return {};
    const bool mask = storage.role == InputRole::kAttentionMask;
    const bool dtype_fits = value.dtype == (mask ? DType::kBool : DType::kInt64);
    if (dtype_fits && value.sizes.size() == (mask ? 4u : 2u)) return {};
    return contradiction(
        fmt::format("Input {} must be {} for its role.", shown(storage.name),
                    mask ? "bool[batch, 1, tokens, past + tokens]" : "int64[batch, tokens]"));
  }

  static Status check_whole(const Storage& storage, const Value& value) {
    if (!storage.is_declared || (value.strides.empty() && value.offset == Expr())) return {};
    return contradiction(fmt::format(
        "Weight {} is declared whole by a view with strides or an offset.", shown(storage.name)));
  }

  // The farthest byte of a view at the symbols' upper bounds must not overflow.
  Status check_extent(const Value& value, size_t id) const {
    DJINN_TRY(auto sizes, naturals(value.sizes, id, "size"));
    DJINN_TRY(auto strides, naturals(value.strides, id, "stride"));
    DJINN_TRY(uint64_t offset, natural(value.offset, id, "offset"));
    const auto elements = strides.empty() ? checked_product(sizes) : std::optional<uint64_t>(1);
    auto last = elements ? checked_add(offset, *elements) : std::nullopt;
    for (size_t i = 0; i < strides.size() && last; ++i) {
      const auto reach = checked_mul(strides[i], sizes[i] == 0 ? 0 : sizes[i] - 1);
      last = reach ? checked_add(*last, *reach) : std::nullopt;
    }
    // A value without a dtype may get the widest one.
    const uint64_t element = is_dtype(value.dtype) ? size_of(value.dtype) : kWidestBytes;
    const auto bytes = last ? checked_mul(*last, element) : std::nullopt;
    if (bytes && *bytes <= limits::kTensorBytes) return {};
    return out_of_range(
        fmt::format("Value {} reaches beyond {} bytes at its symbols' upper "
                    "bounds. Use smaller ranges.",
                    id, limits::kTensorBytes));
  }

  Result<std::vector<uint64_t>> naturals(const std::vector<Expr>& exprs, size_t id,
                                         std::string_view what) const {
    std::vector<uint64_t> uppers;
    for (const Expr& expr : exprs) {
      DJINN_TRY(uint64_t upper, natural(expr, id, what));
      uppers.push_back(upper);
    }
    return uppers;
  }

  // Gives the upper bound of an expression that must never be negative.
  Result<uint64_t> natural(const Expr& expr, size_t id, std::string_view what) const {
    DJINN_TRY(Bounds range, bounds(expr, graph_.symbols));
    if (range.min >= 0) return static_cast<uint64_t>(range.max);
    return out_of_range(
        fmt::format("Value {} has a {} of {} at its symbols' bounds. It must not "
                    "be negative.",
                    id, what, range.min));
  }

  Status check_expr(const Expr& expr) {
    DJINN_CHECK(count_items(1 + expr.terms.size()));
    if (expr.terms.size() > limits::kTerms) {
      return over_limit(fmt::format("An expression has more than {} terms.", limits::kTerms));
    }
    if (!is_canonical(expr)) {
      return malformed(
          "An expression is not canonical: terms ascend by symbol and none is zero. An overflow "
          "while the graph was built has this effect too.");
    }
    auto range = bounds(expr, graph_.symbols);
    if (!range) return std::move(range).error();
    return {};
  }

  // --- nodes

  Status check_nodes() {
    defined_.assign(graph_.values.size(), false);
    for (size_t id = 0; id < graph_.values.size(); ++id) {
      defined_[id] = graph_.values[id].storage != kLocalStorage;
    }
    for (size_t index = 0; index < graph_.nodes.size(); ++index) {
      auto status = check_node(graph_.nodes[index]);
      if (!status) return in_node(index, std::move(status).error());
    }
    const auto open = std::find(defined_.begin(), defined_.end(), false);
    if (open == defined_.end()) return {};
    return malformed(
        fmt::format("Value {} is on no storage, and no node makes it.", open - defined_.begin()));
  }

  Error in_node(size_t index, Error error) const {
    const std::string& op = graph_.nodes[index].op;
    const bool named = op.size() <= kNameShownBytes && is_operator_name(op);
    const std::string place =
        named ? fmt::format("Node {} ({})", index, op) : fmt::format("Node {}", index);
    return {error.code, fmt::format("{}: {}", place, error.message)};
  }

  Status check_node(const Node& node) {
    DJINN_CHECK(check_name(node.op, "The operator's name"));
    if (!is_operator_name(node.op)) {
      return malformed("The operator's name is not namespace::name or namespace::name.overload.");
    }
    DJINN_CHECK(at_most(node.arguments.size(), limits::kArguments, "arguments in one node"));
    DJINN_CHECK(at_most(node.outputs.size(), limits::kNodeOutputs, "outputs in one node"));
    DJINN_CHECK(count_items(node.arguments.size() + node.outputs.size()));
    DJINN_CHECK(check_arguments(node));
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (i > 0 && node.outputs[i] != node.outputs[i - 1] + 1) {
        return malformed("Its outputs are not numbered consecutively.");
      }
      DJINN_CHECK(define(node.outputs[i]));
    }
    return check_annotation(node.annotation);
  }

  Status check_arguments(const Node& node) {
    Names names;
    for (const Argument& argument : node.arguments) {
      DJINN_CHECK(check_name(argument.name, "An argument's name"));
      DJINN_CHECK(check_argument_name(argument.name, names));
      DJINN_CHECK(
          std::visit([this](const auto& value) { return check_argument(value); }, argument.value));
    }
    return {};
  }

  static Status check_argument_name(std::string_view name, Names& names) {
    if (name.empty() && names.empty()) return {};
    if (name.empty()) return malformed("A positional argument follows a named one.");
    if (!is_identifier(name)) return malformed("An argument's name is no identifier.");
    if (names.insert(name).second) return {};
    return twice(fmt::format("Two arguments are named {}.", shown(name)));
  }

  Status check_argument(const None&) { return {}; }
  Status check_argument(bool) { return {}; }
  Status check_argument(const ValueRef& ref) { return use(ref.id); }
  Status check_argument(const Expr& expr) { return check_expr(expr); }
  Status check_argument(const BoolList& list) { return count_list(list.items.size()); }

  Status check_argument(const ValueList& list) {
    DJINN_CHECK(count_list(list.ids.size()));
    for (const auto& id : list.ids) {
      if (id) DJINN_CHECK(use(*id));
    }
    return {};
  }

  Status check_argument(const ExprList& list) {
    DJINN_CHECK(count_list(list.items.size()));
    for (const Expr& item : list.items) DJINN_CHECK(check_expr(item));
    return {};
  }

  Status check_argument(double number) {
    if (is_canonical_double(number)) return {};
    return malformed("A number is a NaN other than the canonical one.");
  }

  Status check_argument(const DoubleList& list) {
    DJINN_CHECK(count_list(list.items.size()));
    for (const double item : list.items) DJINN_CHECK(check_argument(item));
    return {};
  }

  Status check_argument(const std::string& text) {
    return at_most(text.size(), limits::kTextArgumentBytes, "bytes in one text argument");
  }

  Status check_argument(DType dtype) {
    if (is_dtype(dtype)) return {};
    return malformed("An argument is an unknown dtype.");
  }

  Status count_list(size_t count) {
    DJINN_CHECK(at_most(count, limits::kListItems, "items in one list"));
    return count_items(count);
  }

  Status use(ValueId id) {
    if (id >= defined_.size()) {
      return out_of_range(fmt::format("It uses value {}, which does not exist.", id));
    }
    if (!defined_[id]) {
      return malformed(fmt::format("It uses value {}, which no earlier node makes.", id));
    }
    least_output_ = std::max<uint64_t>(least_output_, uint64_t{id} + 1);
    return {};
  }

  Status define(ValueId id) {
    if (id >= defined_.size()) {
      return out_of_range(fmt::format("It makes value {}, which does not exist.", id));
    }
    if (graph_.values[id].storage != kLocalStorage) {
      return malformed(fmt::format("It makes value {}, which is a view of a storage.", id));
    }
    if (defined_[id]) return malformed(fmt::format("It makes value {} a second time.", id));
    if (id < least_output_) {
      return malformed(
          fmt::format("It makes value {} after greater ones. Number values in the "
                      "order of their definition.",
                      id));
    }
    defined_[id] = true;
    least_output_ = uint64_t{id} + 1;
    return {};
  }

  Status check_annotation(const Annotation& note) {
    DJINN_CHECK(check_name(note.module_path, "The module path"));
    DJINN_CHECK(check_name(note.role, "The role"));
    if (in_enum(note.phase, Phase::kMultimodalFusion) &&
        in_enum(note.residency, Residency::kOutput) && in_enum(note.modality, Modality::kFusion)) {
      return {};
    }
    return malformed("The annotation has an unknown phase, residency or modality.");
  }

  Status check_outputs() {
    std::vector<bool> seen(graph_.values.size());
    for (const ValueId id : graph_.outputs) {
      if (id >= seen.size()) {
        return out_of_range(fmt::format("Value {} is an output and does not exist.", id));
      }
      if (seen[id]) return twice(fmt::format("Value {} is an output twice.", id));
      seen[id] = true;
    }
    return {};
  }

  const Graph& graph_;
  std::vector<bool> defined_;
  uint64_t least_output_ = 0;  // every later definition has at least this number
  uint64_t items_ = 0;
  uint64_t names_bytes_ = 0;
};

}  // namespace

Status verify(const Graph& graph) {
  return Verifier(graph).run();
}

bool is_identifier(std::string_view name) {
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return !name.empty() && is_letter(name.front()) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return is_letter(c) || is_digit(c); });
}

bool is_operator_name(std::string_view op) {
  const size_t colons = op.find("::");
  if (colons == std::string_view::npos || !is_identifier(op.substr(0, colons))) return false;
  const std::string_view rest = op.substr(colons + 2);
  const size_t dot = rest.find('.');
  if (dot == std::string_view::npos) return is_identifier(rest);
  return is_identifier(rest.substr(0, dot)) && is_identifier(rest.substr(dot + 1));
}

bool is_reserved_word(std::string_view name) {
  return name == "none" || name == "true" || name == "false" || name == "inf" || name == "nan" ||
         dtype_from_name(name).has_value();
}

}  // namespace djinn::srg
