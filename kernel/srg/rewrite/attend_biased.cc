// SPDX-License-Identifier: Apache-2.0

#include "kernel/srg/rewrite/attend_biased.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "kernel/srg/expr.h"
#include "kernel/srg/operands.h"
#include "kernel/srg/rewrite/attend_sinks.h"
#include "kernel/srg/rewrite/match.h"

namespace djinn::srg {
namespace {

using Sizes = std::vector<Expr>;

// --- what is known of values

// Whether it is the whole of what it is a view of, or the whole of a client's storage, in order.
bool lies_contiguous(const Draft& draft, ValueId value) {
  if (draft.contiguous_sizes(value) != nullptr) return true;
  const Value& claimed = draft.value(value);
  return claimed.storage != kLocalStorage && claimed.strides.empty() && claimed.offset == Expr(0);
}

// Where there is one element alone, no step is taken.
bool shows_in_order(const Sizes& sizes, const Sizes& strides) {
  const auto wanted = contiguous_strides(sizes);
  if (!wanted) return false;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] != Expr(1) && strides[d] != (*wanted)[d]) return false;
  }
  return true;
}

// Rows and heads, which may be one dimension.
std::optional<Expr> rows_and_heads(const Sizes& sizes) {
  if (sizes.size() == 3) return sizes[0];
  return sizes.size() == 4 ? product(sizes[0], sizes[1]) : std::nullopt;
}

// Whether they differ in whether rows and heads are one dimension, if at all.
bool are_one_but_for_rows(const Sizes& one, const Sizes& other) {
  const auto rows = rows_and_heads(one);
  return rows && rows == rows_and_heads(other) &&
         std::equal(one.end() - 2, one.end(), other.end() - 2);
}

// What the node looks at, if it shows all of that in order, whose sizes may only differ so. Whether
// it lies in order is not looked at.
std::optional<ValueId> seen_otherwise(const Draft& draft, ValueId value) {
  const auto view = view_of(draft, value);
  const auto base = view ? shape_of(draft, view->base) : std::nullopt;
  if (!base || view->offset != Expr(0) || !shows_in_order(view->sizes, view->strides)) return {};
  return are_one_but_for_rows(view->sizes, *base) ? std::optional(view->base) : std::nullopt;
}

bool is_broadcast_to(const Sizes& bias, const Sizes& sizes) {
  if (bias.size() > sizes.size()) return false;
  return std::equal(bias.rbegin(), bias.rend(), sizes.rbegin(),
                    [](const Expr& a, const Expr& b) { return a == b || a == Expr(1); });
}

// A bound at which PyTorch's attention masks hide keys, in any dtype, and below it.
constexpr double kLeast = -0x1.fep+127;

// --- from the softmax to the second product

// One that took a reader's place reads something else, and may even make the value.
bool still_reads(const Draft& draft, NodeIndex reader, ValueId value) {
  bool reads = false;
  for_each_operand(draft.node(reader), [&](ValueId id) { reads = reads || id == value; });
  return draft.is_there(reader) && reads;
}

struct WayOn {
  std::vector<NodeIndex> nodes;     // with the product, which is the last
  ValueId weights = 0;              // as the product has them
  bool are_seen = false;            // as views
  bool are_all = true;              // of those, each shows all weights in order,
  bool have_sinks = false;          // but for one that shows all without the last
  bool are_read_elsewhere = false;  // too: the way ends before the product
};

bool multiplies(const Node& node) {
  return node.op == "aten::matmul" || node.op == "aten::bmm";
}

std::optional<WayOn> way_on(const Draft& draft, NodeIndex softmax) {
  const Node& node = draft.node(softmax);
  if (node.op != "aten::_softmax" || node.outputs.size() != 1) return {};
  WayOn way{{softmax}, node.outputs[0]};
  while (draft.uses(way.weights) == 1) {
    const auto reader = std::ranges::find_if(draft.readers(way.weights), [&](NodeIndex index) {
      return still_reads(draft, index, way.weights);
    });
    if (reader == draft.readers(way.weights).end()) return {};
    const Node& next = draft.node(*reader);
    way.nodes.push_back(*reader);
    if (multiplies(next)) return way;
    const bool passes_on = next.op == "aten::as_strided" || next.op == "aten::_to_copy";
    if (!passes_on || next.outputs.size() != 1) return {};
    const bool are_in_part = next.op == "aten::as_strided" && !way.have_sinks &&
                             seen_but_for_the_last(draft, next.outputs[0]) == way.weights;
    if (are_in_part) {
      way.have_sinks = true;
    } else if (next.op == "aten::as_strided") {
      way.are_seen = true;
      way.are_all = way.are_all && seen_otherwise(draft, next.outputs[0]) == way.weights;
    }
    way.weights = next.outputs[0];
  }
  way.are_read_elsewhere = std::ranges::any_of(draft.readers(way.weights), [&](NodeIndex index) {
    return still_reads(draft, index, way.weights) && multiplies(draft.node(index));
  });
  return way.are_read_elsewhere ? std::optional(std::move(way)) : std::nullopt;
}

// --- what is multiplied

struct Source {
  ValueId value = 0;
  std::vector<NodeIndex> copies;  // views and copies between, which nobody else needs
};

// What a matrix of rows was copied from, as long as it has the dtype: [rows, heads, count, width],
// or with rows and heads as one. A turned one is seen as [.., width, count].
std::optional<Source> source_of(const Draft& draft, ValueId value, bool is_turned, DType dtype) {
  Source source{value, {}};
  std::vector<NodeIndex> nodes;
  bool is_lone = true;  // nobody else needs what was passed
  if (auto view = view_of(draft, value)) {
    const auto base = shape_of(draft, view->base);
    const size_t rank = view->sizes.size();
    if (is_turned && rank >= 2) {
      std::swap(view->sizes[rank - 1], view->sizes[rank - 2]);
      std::swap(view->strides[rank - 1], view->strides[rank - 2]);
    }
    const bool is_all = base && view->offset == Expr(0) && lies_contiguous(draft, view->base) &&
                        shows_in_order(view->sizes, view->strides) &&
                        are_one_but_for_rows(view->sizes, *base);
    if (!is_all) return is_turned ? std::nullopt : std::optional(source);
    is_lone = draft.uses(value) == 1;
    nodes.push_back(*draft.maker(value));
    value = view->base;
  } else if (is_turned) {
    return {};
  }
  bool is_found = false;
  while (true) {
    if (dtype_of(draft, value) == dtype) {
      is_found = true;
      source.value = value;
      if (is_lone) source.copies = nodes;
    }
    const auto maker = draft.lone_maker(value);
    if (!is_lone || !maker || !dtype_of_cast(draft.node(*maker))) break;
    const ValueId from = *value_at(draft.node(*maker), 0);
    if (!has_kernels(dtype_of(draft, from))) break;
    nodes.push_back(*maker);
    value = from;
  }
  return is_found ? std::optional(std::move(source)) : std::nullopt;
}

// Whether keys that were copied otherwise, as to the heads that share them, can be read as they
// are.
bool lies_turned(const Draft& draft, ValueId key, DType dtype) {
  const auto view = view_of(draft, key);
  if (!view || view->sizes.size() < 3 || dtype_of(draft, key) != dtype) return false;
  return view->strides[view->strides.size() - 2] == Expr(1);
}

// The query itself may be float32.
Source source_of_query(const Draft& draft, ValueId query, DType dtype) {
  const auto maker = draft.lone_maker(query);
  const auto cast = maker ? cast_to(draft.node(*maker), DType::kFloat32) : std::nullopt;
  if (!cast || dtype_of(draft, cast->from) != dtype) return {query, {}};
  return {cast->from, {*maker}};
}

// --- from the softmax back to the first product

// A sum that masks hide by is not to be made small by what comes after it.
constexpr double kFactorMin = 1.0 / 64;

class WayBack {
 public:
  // needs_order: weights are seen otherwise than in order behind the softmax, too. sinks: of these
  // scores; or null.
  WayBack(const Draft& draft, bool needs_order, const Sinks* sinks)
      : draft_(draft), needs_order_(needs_order), sinks_(sinks) {}

  // From what the softmax takes. Gives why it is not followed, or nothing.
  std::string_view follow(ValueId scores) {
    while (true) {
      const auto maker = draft_.maker(scores);
      if (!maker) return kOtherForm;
      if (draft_.uses(scores) != readers_of(scores)) return "its scores are read elsewhere, too";
      const auto sizes = shape_of(draft_, scores);
      if (!sizes || (sizes->size() != 3 && sizes->size() != 4)) return "its shapes are not known";
      sizes_ = *sizes;
      nodes_.push_back(*maker);
      const Node& node = draft_.node(*maker);
      if (is_product(node)) return has_met_sinks() ? std::string_view() : kOtherForm;
      const auto before = step_back(node, scores);
      if (!before) return kOtherForm;
      scores = *before;
    }
  }

  [[nodiscard]] const std::vector<NodeIndex>& nodes() const { return nodes_; }
  [[nodiscard]] ValueId query() const { return query_; }
  [[nodiscard]] ValueId key() const { return key_; }
  // Whether what is added or hides is of each row or head, where these are two dimensions.
  [[nodiscard]] bool tells_rows() const { return tells_rows_; }
  // Of query and key, in order: those of the scores, and their width.
  [[nodiscard]] const Sizes& sizes() const { return sizes_; }

  [[nodiscard]] std::vector<Argument> arguments(bool merged) const {
    ArgumentValue seen = None{}, instead = None{};
    if (fill_) {
      seen = ValueRef{fill_->first};
      instead = ValueRef{fill_->second};
    }
    return {{"", biases_}, {"", factors_}, {"", std::move(seen)}, {"", std::move(instead)},
            {"", factor_}, {"", merged}};
  }

 private:
  static constexpr std::string_view kOtherForm = "its scores are of another form";

  // Their own reader is met before anything is done to them.
  uint32_t readers_of(ValueId scores) {
    const bool is_read = sinks_ != nullptr && sinks_->has_other_reader && scores == sinks_->scores;
    const bool is_as_it_was = factor_ == 1 && biases_.ids.empty() && !fill_;
    met_sinks_ |= is_read && is_as_it_was;
    return is_read ? 2 : 1;
  }
  [[nodiscard]] bool has_met_sinks() const {
    return sinks_ == nullptr || !sinks_->has_other_reader || met_sinks_;
  }

  bool is_product(const Node& node) {
    const bool adds = node.op == "aten::baddbmm";
    if (!adds && node.op != "aten::matmul" && node.op != "aten::bmm") return false;
    if (node.arguments.size() != (adds ? 5u : 2u)) return false;
    const auto query = value_at(node, adds ? 1 : 0), key = value_at(node, adds ? 2 : 1);
    if (!query || !key) return false;
    if (adds) {
      const auto bias = value_at(node, 0);
      const ArgumentValue* const beta = argument_named(node, "beta");
      const ArgumentValue* const alpha = argument_named(node, "alpha");
      const auto one = beta == nullptr ? std::nullopt : number_of(*beta);
      const auto factor = alpha == nullptr ? std::nullopt : number_of(*alpha);
      if (!bias || one != 1.0 || !factor) return false;
      if (!are_zeros(*bias) && !add(*bias)) return false;
      factor_ *= *factor;
    }
    query_ = *query;
    key_ = *key;
    return true;
  }

  // What the node takes as scores.
  std::optional<ValueId> step_back(const Node& node, ValueId scores) {
    if (node.op == "aten::as_strided") {
      needs_order_ = true;
      return seen_otherwise(draft_, scores);
    }
    if (node.op == "aten::_to_copy") {
      const auto to = dtype_of_cast(node);
      return to && has_kernels(*to) ? value_at(node, 0) : std::nullopt;
    }
    if (node.op == "aten::mul.Tensor" || node.op == "aten::div.Tensor") return scaled(node);
    if (node.op == "aten::add.Tensor") {
      const auto pair = operands(node);
      return pair && shape_of(draft_, pair->first) == sizes_ && add(pair->second)
                 ? std::optional(pair->first)
                 : std::nullopt;
    }
    if (node.op == "aten::where.self") return filled(node);
    if (node.op == "aten::maximum") return held_above(node);
    return {};
  }

  std::optional<ValueId> scaled(const Node& node) {
    const auto number = number_at(node, 1);
    if (!has_two_arguments(node) || !number || !(*number > 0)) return {};
    factor_ *= node.op == "aten::mul.Tensor" ? *number : 1 / *number;
    return value_at(node, 0);
  }

  bool add(ValueId bias) {
    const auto sizes = shape_of(draft_, bias);
    if (fill_ || !sizes || !is_broadcast_to(*sizes, sizes_) || factor_ < kFactorMin) return false;
    if (!has_kernels(dtype_of(draft_, bias))) return false;
    note_rows(*sizes);
    biases_.ids.emplace_back(bias);
    factors_.items.push_back(factor_);
    return true;
  }

  // The condition may decide in which order the result lies.
  std::optional<ValueId> filled(const Node& node) {
    const auto seen = value_at(node, 0), scores = value_at(node, 1), number = value_at(node, 2);
    if (node.arguments.size() != 3 || !seen || !scores || !number) return {};
    if (fill_ || needs_order_ || factor_ != 1 || shape_of(draft_, *scores) != sizes_) return {};
    const auto sizes = shape_of(draft_, *seen), of_number = shape_of(draft_, *number);
    if (!sizes || !is_broadcast_to(*sizes, sizes_) || !of_number || !of_number->empty()) return {};
    if (dtype_of(draft_, *seen) != DType::kBool) return {};
    if (!has_kernels(dtype_of(draft_, *number))) return {};
    note_rows(*sizes);
    fill_ = std::pair(*seen, *number);
    return scores;
  }

  // Of what scores of four dimensions meet.
  void note_rows(const Sizes& sizes) {
    if (sizes_.size() != 4 || sizes.size() < 3) return;
    tells_rows_ |= std::any_of(sizes.begin(), sizes.end() - 2,
                               [](const Expr& size) { return size != Expr(1); });
  }

  // By a number that leaves all finite scores as they are.
  std::optional<ValueId> held_above(const Node& node) {
    const auto scores = value_at(node, 0), bound = value_at(node, 1);
    const auto maker = bound ? draft_.maker(*bound) : std::nullopt;
    if (node.arguments.size() != 2 || !scores || !maker) return {};
    const Node& full = draft_.node(*maker);
    const ExprList* const sizes = list_at(full, 0);
    const auto number = number_at(full, 1);
    if (full.op != "aten::full" || sizes == nullptr || !sizes->items.empty()) return {};
    const bool is_least = number && *number <= kLeast;
    if (!is_least || dtype_of(draft_, *scores) == DType::kFloat16) return {};
    if (draft_.uses(*bound) != 1) return {};  // somebody may fill it with another
    nodes_.push_back(*maker);
    return scores;
  }

  // Which nobody fills.
  bool are_zeros(ValueId value) {
    const auto maker = draft_.maker(value);
    if (!maker || draft_.node(*maker).op != "aten::zeros" || draft_.uses(value) != 1) return false;
    nodes_.push_back(*maker);
    return true;
  }

  const Draft& draft_;
  bool needs_order_;
  const Sinks* sinks_;
  bool met_sinks_ = false;
  Sizes sizes_;
  double factor_ = 1;  // by which what was added and multiplied before is multiplied
  ValueList biases_;
  DoubleList factors_;
  std::optional<std::pair<ValueId, ValueId>> fill_;  // where, and with what else
  bool tells_rows_ = false;
  ValueId query_ = 0;
  ValueId key_ = 0;
  std::vector<NodeIndex> nodes_;
};

// Whether [.., tokens, keys] is query times key turned, each with as many rows and heads; and what
// the values are of. All have one width.
bool are_multiplied(const Draft& draft, const WayBack& back, ValueId weights, ValueId values) {
  const auto query = shape_of(draft, back.query()), turned = shape_of(draft, back.key());
  const auto mean = shape_of(draft, weights), value = shape_of(draft, values);
  if (!query || !turned || !mean || !value) return false;
  const Sizes& scores = back.sizes();
  const size_t rank = scores.size(), other = mean->size();
  if (query->size() != rank || turned->size() != rank || value->size() != other) return false;
  if (!are_one_but_for_rows(scores, *mean)) return false;
  const Expr &tokens = scores[rank - 2], &keys = scores[rank - 1], &width = query->back();
  const auto has = [](const Sizes& sizes, const Sizes& rows, const Expr& first,
                      const Expr& second) {
    Sizes wanted(rows.begin(), rows.end() - 2);
    wanted.insert(wanted.end(), {first, second});
    return sizes == wanted;
  };
  return has(*query, scores, tokens, width) && has(*turned, scores, width, keys) &&
         has(*value, *mean, keys, width);
}

bool is_over_the_last(const Draft& draft, const Node& softmax) {
  const ArgumentValue* const widens = argument_at(softmax, 2);
  if (softmax.arguments.size() != 3 || widens == nullptr || *widens != ArgumentValue(false)) {
    return false;
  }
  const auto dimension = number_at(softmax, 1);
  const auto scores = value_at(softmax, 0);
  const auto sizes = scores ? shape_of(draft, *scores) : std::nullopt;
  return dimension == -1.0 || (sizes && dimension == static_cast<double>(sizes->size()) - 1);
}

}  // namespace

bool is_spelled_attention(const Draft& draft, NodeIndex softmax) {
  return way_on(draft, softmax).has_value();
}

std::variant<SpelledAttention, std::string_view> spelled_attention(const Draft& draft,
                                                                   NodeIndex softmax) {
  const auto on = way_on(draft, softmax);
  if (on->are_read_elsewhere) return "its weights are read elsewhere, too";
  const Node& last = draft.node(on->nodes.back());
  const auto pair = operands(last);
  if (!pair || pair->first != on->weights) return "it is another product";
  if (!is_over_the_last(draft, draft.node(softmax))) return "it is over another dimension";
  const ValueId taken = *value_at(draft.node(softmax), 0);
  const auto sinks =
      on->have_sinks ? sinks_among(draft, taken) : sinks_behind(draft, last.outputs[0]);
  if (!on->are_all || (on->have_sinks && !sinks)) return "its weights are seen in part";
  WayBack back(draft, on->are_seen, sinks ? &*sinks : nullptr);
  if (const auto reason = back.follow(on->have_sinks ? sinks->scores : taken); !reason.empty()) {
    return reason;
  }
  if (!are_multiplied(draft, back, on->weights, pair->second)) return "its shapes are of no heads";
  const DType dtype = dtype_of(draft, pair->second);
  const auto value = source_of(draft, pair->second, false, dtype);
  const auto copied = source_of(draft, back.key(), true, dtype);
  const bool stays_turned = !copied && lies_turned(draft, back.key(), dtype);
  if (!value || (!copied && !stays_turned)) {
    return "its keys are turned otherwise, or of another dtype";
  }
  const Source key = copied.value_or(Source{back.key(), {}});
  const Source query = source_of_query(draft, back.query(), dtype);
  const DType of_query = dtype_of(draft, query.value);
  if (!has_kernels(dtype) || (of_query != dtype && of_query != DType::kFloat32)) {
    return "it is of another dtype";
  }
  const auto has_rows = [&](ValueId id) { return shape_of(draft, id)->size() == 4; };
  if (back.tells_rows() && !has_rows(query.value) && !has_rows(key.value) &&
      !has_rows(value->value)) {
    return "its masks alone tell rows from heads";
  }
  const NodeIndex end = sinks && !on->have_sinks ? sinks->nodes.back() : on->nodes.back();
  SpelledAttention made{on->nodes, end, {"djinn::attend_biased", {}, draft.node(end).outputs, {}}};
  if (sinks) made.nodes.insert(made.nodes.end(), sinks->nodes.begin(), sinks->nodes.end());
  for (const auto* const more : {&back.nodes(), &query.copies, &key.copies, &value->copies}) {
    made.nodes.insert(made.nodes.end(), more->begin(), more->end());
  }
  if (!draft.may_move(std::ranges::min(made.nodes), made.last)) {
    return "something is written amid it";
  }
  made.made.arguments = {
      {"", ValueRef{query.value}}, {"", ValueRef{key.value}}, {"", ValueRef{value->value}}};
  std::ranges::move(back.arguments(shape_of(draft, on->weights)->size() == 3),
                    std::back_inserter(made.made.arguments));
  const ArgumentValue none = None{};
  if (sinks || stays_turned) {
    made.made.arguments.push_back({"", sinks ? ValueRef{sinks->value} : none});
  }
  if (stays_turned) made.made.arguments.push_back({"", true});
  return made;
}

}  // namespace djinn::srg
