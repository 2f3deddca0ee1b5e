// SPDX-License-Identifier: Apache-2.0

#include "kernel/srg/unify.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "kernel/base/assert.h"
#include "kernel/srg/affine.h"
#include "kernel/srg/expr.h"
#include "kernel/srg/names.h"
#include "kernel/srg/sized_views.h"
#include "kernel/srg/verify.h"

namespace djinn::srg {
namespace {

constexpr size_t kTextShownBytes = 60;  // of a text in a message
constexpr size_t kShownValues = 8;      // of one integer in all recordings

// Says what is wrong with a part of a graph, such as " is 7 in one recording and 8 in another". The
// caller writes in front of it which part that is. There is none if nothing is wrong.
using Complaint = std::optional<std::string>;

Complaint in(std::string_view part, Complaint complaint) {
  if (complaint) complaint->insert(0, part);
  return complaint;
}

// --- what messages show

std::string cut(std::string_view text) {
  if (text.size() <= kTextShownBytes) return std::string(text);
  return fmt::format("{}...", text.substr(0, kTextShownBytes));
}

std::string shown(const std::string& text) {
  return fmt::format("\"{}\"", cut(text));
}
std::string shown(bool flag) {
  return flag ? "true" : "false";
}
std::string shown(double number) {
  return fmt::format("{}", number);
}
std::string shown(DType dtype) {
  return std::string(name_of(dtype));
}
std::string shown(StorageKind kind) {
  switch (kind) {
    case StorageKind::kWeight:
      return "a weight";
    case StorageKind::kInput:
      return "an input";
    case StorageKind::kSequence:
      return "a sequence buffer";
  }
  return "of an unknown kind";
}
std::string shown(const std::optional<ValueId>& id) {
  return id ? fmt::format("value {}", *id) : "none";
}
template <typename Integer>
requires(std::integral<Integer> && !std::same_as<Integer, bool>) std::string shown(Integer number) {
  return fmt::format("{}", number);
}
template <typename Enum>
requires(requires(Enum value) { from_name<Enum>(name_of(value)); }) std::string shown(Enum value) {
  return std::string(name_of(value));
}

constexpr std::string_view kKinds[] = {"none",
                                       "a tensor",
                                       "a list of tensors",
                                       "an integer",
                                       "a list of integers",
                                       "a double",
                                       "a list of doubles",
                                       "a bool",
                                       "a list of bools",
                                       "a text",
                                       "a dtype"};
static_assert(std::size(kKinds) == std::variant_size_v<ArgumentValue>);

std::string_view kind_of(const ArgumentValue& value) {
  return kKinds[value.index()];
}

std::string argument_name(const Argument& argument, size_t index) {
  return argument.name.empty() ? fmt::format("argument {}", index)
                               : fmt::format("argument {}", argument.name);
}

std::string node_name(const Graph& graph, size_t index) {
  const Node& node = graph.nodes[index];
  const std::string& path = node.annotation.module_path;
  return fmt::format("Node {}, {}{}{}", index, cut(node.op), path.empty() ? "" : " at ", cut(path));
}

std::string value_name(const Graph& graph, ValueId id) {
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const auto& outputs = graph.nodes[i].outputs;
    const auto found = std::find(outputs.begin(), outputs.end(), id);
    if (found == outputs.end()) continue;
    return fmt::format("{}: result {}", node_name(graph, i), found - outputs.begin());
  }
  const Value& value = graph.values[id];
  const std::string& name =
      value.storage < graph.storages.size() ? graph.storages[value.storage].name : value.name;
  return fmt::format("Value {}, a view of {}", id, shown(name.empty() ? value.name : name));
}

// --- structure: all but the numbers

template <typename T>
bool is_same(const T& a, const T& b) {
  return a == b;
}
// -0.0 differs from 0.0, and a NaN equals itself.
bool is_same(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

// Compares the first graph with another one. Every function tells the first difference that it
// finds. It skips the numbers that unify fits.
class Comparison {
 public:
  // `index` is the place of `other` among the recordings. Precondition: verify() has passed
  // `first`.
  Comparison(const Graph& first, const Graph& other, size_t index)
      : first_(first), other_(other), index_(index) {}

  // Operators are compared first: if the code took another branch, all other differences follow
  // from that.
  [[nodiscard]] Complaint run() const {
    if (auto complaint = operators()) return complaint;
    if (auto complaint = in("The graph's name", same(first_.name, other_.name))) return complaint;
    if (auto complaint = storages()) return complaint;
    if (auto complaint = nodes()) return complaint;
    if (auto complaint = values()) return complaint;
    return in("The list of outputs", list(first_.outputs, other_.outputs));
  }

 private:
  template <typename T>
  [[nodiscard]] Complaint same(const T& a, const T& b) const {
    if (is_same(a, b)) return std::nullopt;
    return fmt::format(" is {} in recording 0 and {} in recording {}", shown(a), shown(b), index_);
  }

  [[nodiscard]] Complaint same_count(size_t a, size_t b, std::string_view what) const {
    if (a == b) return std::nullopt;
    return fmt::format(" has {} {} in recording 0 and {} in recording {}", a, what, b, index_);
  }

  template <typename T>
  [[nodiscard]] Complaint list(const std::vector<T>& a, const std::vector<T>& b) const {
    if (auto complaint = same_count(a.size(), b.size(), "items")) return complaint;
    for (size_t i = 0; i < a.size(); ++i) {
      auto complaint = same<T>(a[i], b[i]);
      if (complaint) return in(fmt::format("[{}]", i), std::move(complaint));
    }
    return std::nullopt;
  }

  [[nodiscard]] Complaint operators() const {
    const size_t common = std::min(first_.nodes.size(), other_.nodes.size());
    for (size_t i = 0; i < common; ++i) {
      const Node& a = first_.nodes[i];
      const Node& b = other_.nodes[i];
      if (a.op == b.op && a.annotation.module_path == b.annotation.module_path) continue;
      return fmt::format("{} in recording 0 is {} in recording {}", node_name(first_, i),
                         node_name(other_, i), index_);
    }
    if (first_.nodes.size() == other_.nodes.size()) return std::nullopt;
    const Graph& longer = first_.nodes.size() > common ? first_ : other_;
    return fmt::format("{} is the first of {} nodes that only recording {} has",
                       node_name(longer, common), longer.nodes.size() - common,
                       &longer == &first_ ? 0 : index_);
  }

  [[nodiscard]] Complaint storages() const {
    const auto& a = first_.storages;
    const auto& b = other_.storages;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      if (a[i] == b[i]) continue;
      return in(fmt::format("Storage {}", i), storage(a[i], b[i]));
    }
    return in("The graph", same_count(a.size(), b.size(), "storages"));
  }

  [[nodiscard]] Complaint storage(const Storage& a, const Storage& b) const {
    if (auto complaint = same(a.kind, b.kind)) return complaint;
    if (auto complaint = in(": its name", same(a.name, b.name))) return complaint;
    if (auto complaint = in(": its role", same(a.role, b.role))) return complaint;
    if (auto complaint = in(": its layer", same(a.layer, b.layer))) return complaint;
    if (auto complaint = in(": its part", same(a.part, b.part))) return complaint;
    return in(": whether its first view is the whole", same(a.is_declared, b.is_declared));
  }

  [[nodiscard]] Complaint nodes() const {
    for (size_t i = 0; i < first_.nodes.size(); ++i) {
      auto complaint = node(first_.nodes[i], other_.nodes[i]);
      if (complaint) return in(node_name(first_, i), std::move(complaint));
    }
    return std::nullopt;
  }

  [[nodiscard]] Complaint node(const Node& a, const Node& b) const {
    const auto& arguments = a.arguments;
    if (auto complaint = same_count(arguments.size(), b.arguments.size(), "arguments")) {
      return complaint;
    }
    for (size_t i = 0; i < arguments.size(); ++i) {
      auto complaint = argument(arguments[i], b.arguments[i]);
      if (!complaint) continue;
      return in(fmt::format(": {}", argument_name(arguments[i], i)), std::move(complaint));
    }
    if (auto complaint = in(": its list of results", list(a.outputs, b.outputs))) return complaint;
    return in(": its ", annotation(a.annotation, b.annotation));
  }

  [[nodiscard]] Complaint argument(const Argument& a, const Argument& b) const {
    if (auto complaint = in("'s name", same(a.name, b.name))) return complaint;
    if (a.value.index() != b.value.index()) {
      return fmt::format(" is {} in recording 0 and {} in recording {}", kind_of(a.value),
                         kind_of(b.value), index_);
    }
    return std::visit(
        [&](const auto& value) {
          return content(value, *std::get_if<std::decay_t<decltype(value)>>(&b.value));
        },
        a.value);
  }

  [[nodiscard]] Complaint content(const None&, const None&) const { return std::nullopt; }
  [[nodiscard]] Complaint content(const Expr&, const Expr&) const { return std::nullopt; }
  [[nodiscard]] Complaint content(const ExprList& a, const ExprList& b) const {
    return same_count(a.items.size(), b.items.size(), "items");
  }
  [[nodiscard]] Complaint content(const ValueRef& a, const ValueRef& b) const {
    return same(std::optional(a.id), std::optional(b.id));
  }
  [[nodiscard]] Complaint content(const ValueList& a, const ValueList& b) const {
    return list(a.ids, b.ids);
  }
  [[nodiscard]] Complaint content(double a, double b) const { return hint(same(a, b)); }
  [[nodiscard]] Complaint content(const DoubleList& a, const DoubleList& b) const {
    return hint(list(a.items, b.items));
  }
  [[nodiscard]] Complaint content(const BoolList& a, const BoolList& b) const {
    return list(a.items, b.items);
  }
  template <typename T>
  [[nodiscard]] Complaint content(const T& a, const T& b) const {
    return same(a, b);
  }

  static Complaint hint(Complaint complaint) {
    if (complaint) {
      *complaint +=
          "; only integers are fitted, so a double that depends on a size must be computed by "
          "operators";
    }
    return complaint;
  }

  // Costs are not compared: unify drops those that differ.
  [[nodiscard]] Complaint annotation(const Annotation& a, const Annotation& b) const {
    if (auto complaint = in("role", same(a.role, b.role))) return complaint;
    if (auto complaint = in("phase", same(a.phase, b.phase))) return complaint;
    if (auto complaint = in("residency", same(a.residency, b.residency))) return complaint;
    if (auto complaint = in("modality", same(a.modality, b.modality))) return complaint;
    if (auto complaint = in("colocation group", same(a.colocation_group, b.colocation_group))) {
      return complaint;
    }
    return in("priority", same(a.priority, b.priority));
  }

  [[nodiscard]] Complaint values() const {
    const auto& a = first_.values;
    const auto& b = other_.values;
    for (ValueId id = 0; id < std::min(a.size(), b.size()); ++id) {
      auto complaint = value(a[id], b[id]);
      if (complaint) return in(value_name(first_, id), std::move(complaint));
    }
    return in("The graph", same_count(a.size(), b.size(), "values"));
  }

  [[nodiscard]] Complaint value(const Value& a, const Value& b) const {
    if (auto complaint = in(": its dtype", same(a.dtype, b.dtype))) return complaint;
    if (auto complaint = same_count(a.sizes.size(), b.sizes.size(), "sizes")) return complaint;
    if (auto complaint = same_count(a.strides.size(), b.strides.size(), "strides")) {
      return complaint;
    }
    if (auto complaint = in(": its storage", same(a.storage, b.storage))) return complaint;
    if (auto complaint = in(": that its sizes are claimed", same(a.claims_sizes, b.claims_sizes))) {
      return complaint;
    }
    if (auto complaint = in(": its name", same(a.name, b.name))) return complaint;
    return in(": its criticality", same(a.criticality, b.criticality));
  }

  const Graph& first_;
  const Graph& other_;
  const size_t index_;
};

// --- numbers

// Fits the numbers of recordings that have the same structure. result_ begins as the first of them
// and gets one expression after the other.
class Fitting {
 public:
  Fitting(std::span<const Recording> recordings, const AffineFit& fit, std::vector<Symbol> symbols)
      : recordings_(recordings),
        fit_(fit),
        result_(*recordings[0].graph),
        numbers_(recordings.size()) {
    result_.symbols = std::move(symbols);
  }

  // Compares in program order, so that the first difference is not the consequence of another one.
  [[nodiscard]] Complaint run() {
    for (ValueId id = 0; id < result_.values.size(); ++id) {
      if (result_.values[id].storage == kLocalStorage) continue;
      if (auto complaint = value(id)) return complaint;
    }
    for (size_t i = 0; i < result_.nodes.size(); ++i) {
      if (auto complaint = node(i)) return complaint;
    }
    return std::nullopt;
  }

  [[nodiscard]] Graph take() && { return std::move(result_); }

 private:
  // of(graph) gives the expression in each recording.
  template <typename Of>
  [[nodiscard]] Complaint fit(Of&& of) {
    for (size_t i = 0; i < recordings_.size(); ++i) {
      const Expr& expr = of(*recordings_[i].graph);
      if (!expr.is_constant()) return fmt::format(" is no number in recording {}", i);
      numbers_[i] = expr.constant;
    }
    auto expr = fit_.through(numbers_);
    if (!expr) return not_affine();
    of(result_) = *std::move(expr);
    return std::nullopt;
  }

  [[nodiscard]] Complaint not_affine() const {
    const size_t count = std::min(numbers_.size(), kShownValues);
    std::vector<std::string_view> names;
    for (const Symbol& symbol : result_.symbols) {
      if (symbol.min < symbol.max) names.push_back(symbol.name);
    }
    const std::string list =
        fmt::format(" is {}{}", fmt::join(std::span(numbers_).first(count), ", "),
                    count < numbers_.size() ? ", ..." : "");
    if (names.empty()) return list + " and there is no symbol on which it could depend";
    return fmt::format("{} and no affine function of {} with integer coefficients", list,
                       fmt::join(names, ", "));
  }

  // of(graph) gives the list in each recording.
  template <typename Of>
  [[nodiscard]] Complaint fit_list(std::string_view what, Of&& of) {
    for (size_t i = 0; i < of(result_).size(); ++i) {
      auto complaint = fit([&](auto& graph) -> auto& { return of(graph)[i]; });
      if (complaint) return in(fmt::format("{}[{}]", what, i), std::move(complaint));
    }
    return std::nullopt;
  }

  [[nodiscard]] Complaint value(ValueId id) {
    auto complaint = fit_list(
        "sizes", [id](auto& graph) -> auto& { return graph.values[id].sizes; });
    if (!complaint) {
      complaint = fit_list(
          "strides", [id](auto& graph) -> auto& { return graph.values[id].strides; });
    }
    if (!complaint) {
      complaint = in("offset", fit([id](auto& graph) -> auto& { return graph.values[id].offset; }));
    }
    if (!complaint) return std::nullopt;
    return in(fmt::format("{}: ", value_name(result_, id)), std::move(complaint));
  }

  [[nodiscard]] Complaint node(size_t index) {
    drop_unequal_costs(index);
    Node& node = result_.nodes[index];
    for (size_t i = 0; i < node.arguments.size(); ++i) {
      auto complaint = argument(index, i);
      if (!complaint) continue;
      return in(
          fmt::format("{}: {}", node_name(result_, index), argument_name(node.arguments[i], i)),
          std::move(complaint));
    }
    for (const ValueId id : node.outputs) {
      if (auto complaint = value(id)) return complaint;
    }
    return std::nullopt;
  }

  [[nodiscard]] Complaint argument(size_t node, size_t index) {
    const auto of = [ node, index ](auto& graph) -> auto& {
      return graph.nodes[node].arguments[index].value;
    };
    if (std::holds_alternative<Expr>(of(result_))) {
      return fit([&of](auto& graph) -> auto& { return *std::get_if<Expr>(&of(graph)); });
    }
    if (std::holds_alternative<ExprList>(of(result_))) {
      return fit_list(
          "", [&of](auto& graph) -> auto& { return std::get_if<ExprList>(&of(graph))->items; });
    }
    return std::nullopt;
  }

  void drop_unequal_costs(size_t index) {
    Annotation& note = result_.nodes[index].annotation;
    for (const Recording& recording : recordings_) {
      const Annotation& other = recording.graph->nodes[index].annotation;
      if (other.flops != note.flops) note.flops = 0;
      if (other.bytes != note.bytes) note.bytes = 0;
    }
  }

  std::span<const Recording> recordings_;
  const AffineFit& fit_;
  Graph result_;
  std::vector<int64_t> numbers_;  // of one expression, in each recording
};

// --- the whole

Error invalid(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}

Error mismatch(const std::string& complaint) {
  return {ErrorCode::kShapeMismatch, complaint + "."};
}

Error in_place(std::string_view place, Error error) {
  return {error.code, fmt::format("{}: {}", place, error.message)};
}

Status check_point(std::span<const int64_t> point, std::span<const Symbol> symbols) {
  if (point.size() != symbols.size()) {
    return invalid(fmt::format("The point has {} values; there are {} symbols.", point.size(),
                               symbols.size()));
  }
  for (size_t i = 0; i < symbols.size(); ++i) {
    const Symbol& symbol = symbols[i];
    if (symbol.min <= point[i] && point[i] <= symbol.max) continue;
    return Error{ErrorCode::kOutOfRange, fmt::format("{} is {}; its range is {}..{}.", symbol.name,
                                                     point[i], symbol.min, symbol.max)};
  }
  return {};
}

Status check_recording(const Recording& recording, std::span<const Symbol> symbols) {
  DJINN_ASSERT(recording.graph != nullptr);
  if (recording.graph->symbols.empty()) return check_point(recording.point, symbols);
  return invalid("Its graph has symbols. Only graphs of numbers unify; see substitute().");
}

Status check_recordings(std::span<const Recording> recordings, std::span<const Symbol> symbols) {
  if (recordings.empty()) return invalid("There is no recording to unify.");
  for (size_t i = 0; i < recordings.size(); ++i) {
    auto status = check_recording(recordings[i], symbols);
    if (!status) return in_place(fmt::format("Recording {}", i), std::move(status).error());
  }
  // The other recordings are compared with this one, so their indices are valid as well.
  auto status = verify(*recordings[0].graph);
  if (!status) return in_place("Recording 0", std::move(status).error());
  return {};
}

Status check_structure(std::span<const Recording> recordings) {
  const Graph& first = *recordings[0].graph;
  for (size_t i = 1; i < recordings.size(); ++i) {
    if (auto complaint = Comparison(first, *recordings[i].graph, i).run()) {
      return mismatch(*complaint);
    }
  }
  return {};
}

Result<AffineFit> fit_of(std::span<const Recording> recordings, std::span<const Symbol> symbols) {
  std::vector<std::vector<int64_t>> points;
  for (const Recording& recording : recordings) points.push_back(recording.point);
  return AffineFit::make(std::move(points), symbols);
}

// Calls visit with every expression of value until one fails.
template <typename Visit>
Status visit_value(Value& value, Visit&& visit) {
  for (Expr& size : value.sizes) DJINN_CHECK(visit(size));
  for (Expr& stride : value.strides) DJINN_CHECK(visit(stride));
  return visit(value.offset);
}

template <typename Visit>
Status visit_argument(Argument& argument, Visit&& visit) {
  if (Expr* const expr = std::get_if<Expr>(&argument.value)) return visit(*expr);
  if (ExprList* const list = std::get_if<ExprList>(&argument.value)) {
    for (Expr& item : list->items) DJINN_CHECK(visit(item));
  }
  return {};
}

template <typename Visit>
Status visit_graph(Graph& graph, Visit&& visit) {
  for (Value& value : graph.values) DJINN_CHECK(visit_value(value, visit));
  for (Node& node : graph.nodes) {
    for (Argument& argument : node.arguments) DJINN_CHECK(visit_argument(argument, visit));
  }
  return {};
}

Result<Graph> fitted_as_they_are(std::span<const Recording> recordings, const AffineFit& fit,
                                 const std::vector<Symbol>& symbols) {
  Fitting fitting(recordings, fit, symbols);
  if (auto complaint = fitting.run()) return mismatch(*complaint);
  return std::move(fitting).take();
}

// Views are said by their sizes only where their strides do not fit: they stay as they were
// recorded in all other graphs.
Result<Graph> fitted(std::span<const Recording> recordings, const AffineFit& fit,
                     const std::vector<Symbol>& symbols) {
  auto graph = fitted_as_they_are(recordings, fit, symbols);
  if (graph || graph.error().code != ErrorCode::kShapeMismatch) return graph;
  std::vector<const Graph*> graphs;
  for (const Recording& recording : recordings) graphs.push_back(recording.graph);
  const auto sized = with_sized_views(
      graphs, [&](std::span<const int64_t> values) { return fit.through(values).has_value(); });
  if (!sized) return graph;
  std::vector<Recording> again(recordings.begin(), recordings.end());
  for (size_t i = 0; i < again.size(); ++i) again[i].graph = &(*sized)[i];
  return fitted_as_they_are(again, fit, symbols);
}

}  // namespace

Result<Graph> unify(std::span<const Recording> recordings, std::vector<Symbol> symbols) {
  DJINN_CHECK(check_recordings(recordings, symbols));
  // The structure is checked before the points, because more points would not help recordings that
  // differ.
  DJINN_CHECK(check_structure(recordings));
  DJINN_TRY(const AffineFit fit, fit_of(recordings, symbols));
  DJINN_TRY(Graph graph, fitted(recordings, fit, symbols));
  auto status = verify(graph);
  if (!status) return in_place("The unified graph", std::move(status).error());
  return graph;
}

Result<Graph> substitute(const Graph& graph, std::span<const int64_t> point) {
  DJINN_CHECK(check_point(point, graph.symbols));
  Graph result = graph;
  result.symbols.clear();
  DJINN_CHECK(visit_graph(result, [point](Expr& expr) -> Status {
    DJINN_TRY(const int64_t value, evaluate(expr, point));
    expr = Expr(value);
    return {};
  }));
  return result;
}

}  // namespace djinn::srg
