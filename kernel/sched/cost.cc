// SPDX-License-Identifier: Apache-2.0

#include "kernel/sched/cost.h"

#include <algorithm>

#include "kernel/base/checked.h"
#include "kernel/base/int8_rows.h"
#include "kernel/sched/operators.h"
#include "kernel/srg/expr.h"

namespace djinn::sched {
namespace {

using srg::ArgumentValue;
using srg::Node;
using srg::ValueId;
using srg::ValueList;
using srg::ValueRef;

uint64_t saturating_add(uint64_t a, uint64_t b) {
  return checked_add(a, b).value_or(UINT64_MAX);
}
uint64_t saturating_mul(uint64_t a, uint64_t b) {
  return checked_mul(a, b).value_or(UINT64_MAX);
}

using Shapes = std::span<const std::optional<Shape>>;

const Shape* shape_of(const ArgumentValue& value, Shapes shapes) {
  const auto* ref = std::get_if<ValueRef>(&value);
  return ref != nullptr && shapes[ref->id] ? &*shapes[ref->id] : nullptr;
}

// Gives the shape of positional argument i, if there is one.
const Shape* shape_at(const Node& node, size_t i, Shapes shapes) {
  return i < node.arguments.size() ? shape_of(node.arguments[i].value, shapes) : nullptr;
}

// Gives the bytes of a value; nothing if its shape is not known.
std::optional<uint64_t> bytes_of(ValueId id, Shapes shapes) {
  return shapes[id] ? std::optional(byte_count(*shapes[id])) : std::nullopt;
}

// Gives the bytes of the operands from the first that counts; nothing if a shape is missing.
std::optional<uint64_t> bytes_read(const Node& node, size_t first, Shapes shapes) {
  uint64_t bytes = 0;
  const auto add = [&](ValueId id) {
    const auto more = bytes_of(id, shapes);
    bytes = saturating_add(bytes, more.value_or(0));
    return more.has_value();
  };
  for (size_t i = first; i < node.arguments.size(); ++i) {
    const auto* ref = std::get_if<ValueRef>(&node.arguments[i].value);
    if (ref != nullptr && !add(ref->id)) return std::nullopt;
    const auto* list = std::get_if<ValueList>(&node.arguments[i].value);
    if (list == nullptr) continue;
    for (const auto& id : list->ids) {
      if (id && !add(*id)) return std::nullopt;
    }
  }
  return bytes;
}

// Results beside the first are often left out, and then nobody says how large they are.
std::optional<uint64_t> bytes_written(const Node& node, Shapes shapes) {
  if (node.outputs.empty()) return 0;
  auto bytes = bytes_of(node.outputs[0], shapes);
  for (size_t i = 1; bytes && i < node.outputs.size(); ++i) {
    bytes = saturating_add(*bytes, bytes_of(node.outputs[i], shapes).value_or(0));
  }
  return bytes;
}

using MaybeCost = std::optional<Cost>;

// Of a table, and of what is gathered from, the rows that are taken are read, and the indices, but
// not the whole.
MaybeCost gather_cost(const Node& node, Shapes shapes) {
  const auto indices = bytes_read(node, 1, shapes);
  const auto rows = bytes_written(node, shapes);
  if (!indices || !rows) return std::nullopt;
  const Shape* const table = shape_at(node, 0, shapes);
  uint64_t taken = *rows;
  if (table != nullptr && table->form != srg::WeightForm::kPlain && !node.outputs.empty()) {
    Shape as_stored = *shapes[node.outputs[0]];
    as_stored.form = table->form;
    taken = byte_count(as_stored);
  }
  return Cost{0, saturating_add(taken, *indices), *rows};
}

// What is appended is read and written. The rest of the buffer is not touched.
MaybeCost append_cost(const Node& node, Shapes shapes) {
  const Shape* buffer = shape_at(node, 0, shapes);
  const Shape* added = shape_at(node, 1, shapes);
  if (buffer == nullptr || added == nullptr) return std::nullopt;
  const uint64_t written = saturating_mul(element_count(*added), size_of(buffer->dtype));
  return Cost{0, byte_count(*added), written};
}

// copy_(target, source) does not read its target; other copies have one argument.
MaybeCost copy_cost(const Node& node, Shapes shapes) {
  const bool in_place = is_in_place(node.op);
  const Shape* source = shape_at(node, in_place ? 1 : 0, shapes);
  const auto written = bytes_written(node, shapes);
  if (source == nullptr || !written) return std::nullopt;
  return Cost{0, byte_count(*source), *written};
}

// Of what is changed in place only the places of the new elements are written.
MaybeCost scatter_cost(const Node& node, Shapes shapes) {
  const auto read = bytes_read(node, 1, shapes);
  const Shape* target = shape_at(node, 0, shapes);
  if (!read || target == nullptr) return std::nullopt;
  const uint64_t written = std::min(*read, byte_count(*target));
  if (is_in_place(node.op)) return Cost{0, *read, written};
  return Cost{0, saturating_add(*read, byte_count(*target)), byte_count(*target)};
}

// Each row reads its group's weight: no more of them than there are rows.
MaybeCost grouped_cost(const Node& node, const Shape& result, Shapes shapes) {
  const Shape* rows = shape_at(node, 0, shapes);
  const Shape* weights = shape_at(node, 1, shapes);
  const auto read = bytes_read(node, 0, shapes);
  const bool fits = rows != nullptr && weights != nullptr && rows->sizes.size() >= 2 &&
                    rows->sizes.size() <= 3 && weights->sizes.size() == 3 && weights->sizes[0] > 0;
  if (!fits || !read) return std::nullopt;
  const uint64_t all = byte_count(*weights);
  const uint64_t groups = std::min(weights->sizes[0], rows->sizes[0]);
  return Cost{matmul_flops(result, rows->sizes.back()),
              *read - all + all / weights->sizes[0] * groups, byte_count(result)};
}

std::optional<uint64_t> product_flops(const Node& node, size_t x_at, const Shape& result,
                                      Shapes shapes) {
  const Shape* x = shape_at(node, x_at, shapes);
  if (x == nullptr || x->sizes.empty()) return std::nullopt;
  const bool bias = shape_at(node, x_at == 0 ? 2 : 0, shapes) != nullptr;
  return saturating_add(matmul_flops(result, x->sizes.back()), bias ? element_count(result) : 0);
}

// Counts each of several products of one x.
std::optional<uint64_t> linears_flops(const Node& node, Shapes shapes) {
  const Shape* x = shape_at(node, 0, shapes);
  if (x == nullptr || x->sizes.empty()) return std::nullopt;
  uint64_t flops = 0;
  for (const ValueId id : node.outputs) {
    if (!shapes[id]) return std::nullopt;
    flops = saturating_add(flops, matmul_flops(*shapes[id], x->sizes.back()));
  }
  return flops;
}

std::optional<uint64_t> flops_of(const Node& node, const Shape& result, Shapes shapes) {
  const Shape* a = shape_at(node, 0, shapes);
  const Shape* b = shape_at(node, 1, shapes);
  const Shape* c = shape_at(node, 2, shapes);
  switch (family_of(node.op)) {
    case Family::kLinear:
      return product_flops(node, 0, result, shapes);
    case Family::kLinears:
      return linears_flops(node, shapes);
    case Family::kAddmm:
      return product_flops(node, 1, result, shapes);
    case Family::kMatmul:
      if (a == nullptr || a->sizes.empty()) return std::nullopt;
      return matmul_flops(result, a->sizes.back());
    case Family::kAttention:
      if (a == nullptr || b == nullptr || c == nullptr) return std::nullopt;
      return attention_flops(*a, *b, *c);
    case Family::kConvolution:
      if (b == nullptr) return std::nullopt;
      return convolution_flops(result, *b);
    case Family::kNorm:
      return saturating_mul(kNormFlopsPerElement, element_count(result));
    case Family::kReduction:
    case Family::kPooling:
      return a == nullptr ? 0 : element_count(*a);
    case Family::kUnary:
    case Family::kAngle:
    case Family::kActivation:
    case Family::kSoftmax:
    case Family::kBinary:
      return element_count(result);
    case Family::kGate:
      return saturating_mul(2, element_count(result));
    case Family::kRope:
      return saturating_mul(3, element_count(result));
    default:
      return 0;
  }
}

MaybeCost computed_cost(const Node& node, Shapes shapes) {
  const auto read = bytes_read(node, 0, shapes);
  const auto written = bytes_written(node, shapes);
  if (!read || !written || node.outputs.empty()) return std::nullopt;
  const auto flops = flops_of(node, *shapes[node.outputs[0]], shapes);
  return flops ? MaybeCost(Cost{*flops, *read, *written}) : std::nullopt;
}

}  // namespace

Cost operator+(Cost a, Cost b) {
  return {saturating_add(a.flops, b.flops), saturating_add(a.read, b.read),
          saturating_add(a.written, b.written)};
}

uint64_t Cost::bytes() const {
  return saturating_add(read, written);
}

uint64_t element_count(const Shape& shape) {
  return checked_product(shape.sizes).value_or(UINT64_MAX);
}

uint64_t byte_count(const Shape& shape) {
  const uint64_t elements = element_count(shape) / std::max<uint64_t>(shape.repeats, 1);
  if (shape.form == srg::WeightForm::kPlain) return saturating_mul(elements, size_of(shape.dtype));
  constexpr uint64_t kScaleBytes = 2;
  return saturating_add(elements, kScaleBytes * (elements / kInt8Block));
}

uint64_t matmul_flops(const Shape& result, uint64_t inner) {
  return saturating_mul(2, saturating_mul(element_count(result), inner));
}

uint64_t attention_flops(const Shape& q, const Shape& k, const Shape& v) {
  if (q.sizes.size() < 2 || k.sizes.size() < 2 || v.sizes.empty()) return 0;
  const uint64_t d = q.sizes.back();
  if (d == 0) return 0;
  const uint64_t rows = element_count(q) / d;  // b h t
  const uint64_t scores = saturating_mul(rows, k.sizes[k.sizes.size() - 2]);
  return saturating_mul(2, saturating_mul(scores, saturating_add(d, v.sizes.back())));
}

uint64_t convolution_flops(const Shape& result, const Shape& weight) {
  if (weight.sizes.empty() || weight.sizes[0] == 0) return 0;
  return saturating_mul(
      2, saturating_mul(element_count(result), element_count(weight) / weight.sizes[0]));
}

std::optional<Cost> cost_of(const Node& node, Shapes shapes) {
  switch (family_of(node.op)) {
    case Family::kView:
      return Cost{};
    case Family::kEmbedding:
    case Family::kGather:
      return gather_cost(node, shapes);
    case Family::kAppend:
      return append_cost(node, shapes);
    case Family::kCopy:
      return copy_cost(node, shapes);
    case Family::kFill:
      if (const auto written = bytes_written(node, shapes)) return Cost{0, 0, *written};
      return std::nullopt;
    case Family::kScatter:
      return scatter_cost(node, shapes);
    case Family::kGroupedMm:
      if (node.outputs.empty() || !shapes[node.outputs[0]]) return std::nullopt;
      return grouped_cost(node, *shapes[node.outputs[0]], shapes);
    default:
      return computed_cost(node, shapes);
  }
}

GraphCost cost_at(const srg::Graph& graph, std::span<const int64_t> symbols,
                  const srg::WeightForms& forms) {
  const auto shapes = shapes_at(graph, symbols, forms);
  GraphCost cost;
  cost.nodes.reserve(graph.nodes.size());
  for (const Node& node : graph.nodes) {
    cost.nodes.push_back(cost_of(node, shapes));
    if (cost.nodes.back()) {
      cost.total = cost.total + *cost.nodes.back();
    } else {
      ++cost.unknown;
    }
  }
  return cost;
}

}  // namespace djinn::sched
