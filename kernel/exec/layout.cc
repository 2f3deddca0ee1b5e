// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/layout.h"

#include <ATen/ops/empty_strided.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "kernel/base/checked.h"
#include "kernel/exec/convert.h"
#include "kernel/exec/expression.h"
#include "kernel/exec/interpreter.h"
#include "kernel/exec/one_thread.h"

namespace djinn::exec {
namespace {

bool is_constant(const srg::Value& value) {
  const auto constant = [](const srg::Expr& expr) { return expr.is_constant(); };
  return std::all_of(value.sizes.begin(), value.sizes.end(), constant) &&
         std::all_of(value.strides.begin(), value.strides.end(), constant);
}

Status evaluate_layout(const srg::Value& value, std::span<const int64_t> symbols, Layout& layout) {
  Geometry geometry;
  DJINN_CHECK(evaluate_geometry(value, symbols, geometry));
  std::optional<uint64_t> elements = 1;
  for (const int64_t size : geometry.sizes) {
    if (elements) elements = checked_mul(*elements, static_cast<uint64_t>(size));
  }
  const auto reached = elements_reached(geometry);
  if (!elements || !reached) return overflow_error();
  layout.sizes.assign(geometry.sizes.begin(), geometry.sizes.end());
  layout.strides.assign(geometry.strides.begin(), geometry.strides.end());
  layout.elements = *elements;
  layout.reached = *reached;
  return {};
}

Status evaluate_constant(const srg::Value& value, Layout& layout) {
  DJINN_CHECK(evaluate_layout(value, {}, layout));
  if (layout.type == at::ScalarType::Undefined || layout.reached > layout.elements) return {};
  const auto bytes = checked_mul<uint64_t>(layout.reached, c10::elementSize(layout.type));
  if (!bytes) return overflow_error();
  layout.bytes = *bytes;
  layout.is_plain = true;
  return {};
}

// Tells whether nobody else sees the tensor or its storage.
bool is_alone(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1;
}

bool fills_its_storage(const Layout& layout, const at::Tensor& tensor) {
  return tensor.storage_offset() == 0 && layout.reached <= layout.elements &&
         tensor.storage().nbytes() == layout.reached * tensor.element_size();
}

// Strides of dimensions of one element, and of tensors of none, place nothing.
bool places_alike(const Layout& layout, at::IntArrayRef strides) {
  for (size_t i = 0; i < strides.size(); ++i) {
    if (layout.sizes[i] != 1 && layout.strides[i] != strides[i]) return false;
  }
  return true;
}

at::Tensor copy_into(const Layout& layout, const at::Tensor& tensor) {
  at::Tensor copy = at::empty_strided(layout.sizes, layout.strides, tensor.options());
  if (layout.reached > layout.elements && copy.is_cpu()) {
    std::memset(copy.storage().mutable_data(), 0, copy.storage().nbytes());
  } else if (layout.reached > layout.elements && !copy.is_meta()) {
    at::empty({0}, copy.options().dtype(at::kByte)).set_(copy.storage()).zero_();
  }
  TORCH_CHECK(layout.elements == 0 || !may_overlap_itself(copy),
              "its result is claimed with strides ", copy.strides(),
              ", by which elements share memory. Claim others, or none.");
  if (layout.elements > 0) copy.copy_(tensor);
  return copy;
}

void settle(const Layout& layout, at::Tensor& tensor) {
  const bool alike = layout.elements == 0 || places_alike(layout, tensor.strides());
  const bool literal = !tensor.is_conj() && !tensor.is_neg();
  if (!alike || !literal || !is_alone(tensor) || !fills_its_storage(layout, tensor)) {
    tensor = copy_into(layout, tensor);
  } else if (!tensor.strides().equals(layout.strides)) {
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(layout.sizes, layout.strides);
  }
}

bool is_of_shape(const Layout& layout, const at::Tensor& tensor) {
  return tensor.defined() && tensor.sizes().equals(layout.sizes) &&
         (layout.type == at::ScalarType::Undefined || layout.type == tensor.scalar_type());
}

Status settle_symbolic(const srg::Value& value, const Layout& layout, Frame& frame,
                       at::Tensor& tensor) {
  Layout now = layout;
  DJINN_CHECK(evaluate_layout(value, frame.symbols, now));
  if (!is_of_shape(now, tensor)) return check_claim(value, tensor, frame.symbols);
  settle(now, tensor);
  return {};
}

}  // namespace

bool claims_layout(const srg::Value& value) {
  return value.claims_sizes && value.strides.size() == value.sizes.size();
}

const Return& return_of(const Step& step, size_t output) {
  return step.op->returns[step.op->list_output ? 0 : output];
}

Status note_layouts(const srg::Graph& graph, Step& step) {
  for (uint32_t i = 0; i < step.outputs.size(); ++i) {
    const srg::Value& value = graph.values[step.outputs[i]];
    if (!claims_layout(value) || return_of(step, i).is_aliased) continue;
    Layout& layout = step.layouts.emplace_back();
    layout.output = i;
    layout.is_symbolic = !is_constant(value);
    layout.type = to_torch(value.dtype).value_or(at::ScalarType::Undefined);
    if (!layout.is_symbolic) DJINN_CHECK(evaluate_constant(value, layout));
  }
  return {};
}

Status settle_layouts(const srg::Graph& graph, const Step& step, Frame& frame) {
  for (const Layout& layout : step.layouts) {
    const srg::ValueId id = step.outputs[layout.output];
    at::Tensor& tensor = frame.values[id];
    if (agrees(layout, tensor)) continue;
    const srg::Value& value = graph.values[id];
    if (layout.is_symbolic) {
      DJINN_CHECK(settle_symbolic(value, layout, frame, tensor));
    } else if (is_of_shape(layout, tensor)) {
      settle(layout, tensor);
    } else {
      return check_claim(value, tensor, frame.symbols);
    }
  }
  return {};
}

}  // namespace djinn::exec
