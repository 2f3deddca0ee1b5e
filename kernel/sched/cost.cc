// SPDX-License-Identifier: Apache-2.0

#include "kernel/sched/cost.h"

#include <algorithm>

#include "kernel/base/checked.h"
#include "kernel/sched/operators.h"
#include "kernel/srg/expr.h"

namespace djinn::sched {
namespace {

using srg::Argument;
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

// Gives the bytes of all operands and results; nothing if a shape is missing.
std::optional<uint64_t> bytes_moved(const Node& node, Shapes shapes) {
  uint64_t bytes = 0;
  const auto add = [&](ValueId id) {
    if (shapes[id]) bytes = saturating_add(bytes, byte_count(*shapes[id]));
    return shapes[id].has_value();
  };
  for (const Argument& argument : node.arguments) {
    const auto* ref = std::get_if<ValueRef>(&argument.value);
    if (ref != nullptr && !add(ref->id)) return std::nullopt;
    const auto* list = std::get_if<ValueList>(&argument.value);
    if (list == nullptr) continue;
    for (const auto& id : list->ids) {
      if (id && !add(*id)) return std::nullopt;
    }
  }
  const bool known = std::all_of(node.outputs.begin(), node.outputs.end(), add);
  return known ? std::optional(bytes) : std::nullopt;
}

// Counts the rows that are read, those that are written, and the indices, but not the whole table.
std::optional<Cost> embedding_cost(const Node& node, Shapes shapes) {
  const Shape* indices = shape_at(node, 1, shapes);
  if (indices == nullptr || node.outputs.empty() || !shapes[node.outputs[0]]) return std::nullopt;
  const uint64_t rows = byte_count(*shapes[node.outputs[0]]);
  return Cost{0, saturating_add(saturating_mul(2, rows), byte_count(*indices))};
}

// Counts what is appended, which is read and written. The rest of the buffer is not touched.
std::optional<Cost> append_cost(const Node& node, Shapes shapes) {
  const Shape* added = shape_at(node, 1, shapes);
  if (added == nullptr) return std::nullopt;
  return Cost{0, saturating_mul(2, byte_count(*added))};
}

std::optional<uint64_t> linear_flops(const Node& node, const Shape& result, Shapes shapes) {
  const Shape* x = shape_at(node, 0, shapes);
  if (x == nullptr || x->sizes.empty()) return std::nullopt;
  const uint64_t products = matmul_flops(result, x->sizes.back());
  const bool bias = shape_at(node, 2, shapes) != nullptr;
  return saturating_add(products, bias ? element_count(result) : 0);
}

std::optional<uint64_t> flops_of(const Node& node, const Shape& result, Shapes shapes) {
  const Shape* a = shape_at(node, 0, shapes);
  const Shape* b = shape_at(node, 1, shapes);
  const Shape* c = shape_at(node, 2, shapes);
  switch (family_of(node.op)) {
    case Family::kLinear:
      return linear_flops(node, result, shapes);
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
      return a == nullptr ? 0 : element_count(*a);
    case Family::kUnary:
    case Family::kActivation:
    case Family::kSoftmax:
    case Family::kBinary:
      return element_count(result);
    default:
      return std::nullopt;
  }
}

}  // namespace

Cost operator+(Cost a, Cost b) {
  return {saturating_add(a.flops, b.flops), saturating_add(a.bytes, b.bytes)};
}

uint64_t element_count(const Shape& shape) {
  return checked_product(shape.sizes).value_or(UINT64_MAX);
}

uint64_t byte_count(const Shape& shape) {
  return saturating_mul(element_count(shape), size_of(shape.dtype));
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
  const Family family = family_of(node.op);
  if (family == Family::kView) return Cost{};
  if (family == Family::kEmbedding) return embedding_cost(node, shapes);
  if (family == Family::kAppend) return append_cost(node, shapes);
  if (node.outputs.empty() || !shapes[node.outputs[0]]) return std::nullopt;
  const auto flops = flops_of(node, *shapes[node.outputs[0]], shapes);
  const auto bytes = bytes_moved(node, shapes);
  if (!flops || !bytes) return std::nullopt;
  return Cost{*flops, *bytes};
}

}  // namespace djinn::sched
