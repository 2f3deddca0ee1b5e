// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/list_results.h"

#include <c10/core/WrapDimMinimal.h>

#include <algorithm>
#include <array>

namespace djinn::exec {
namespace {

using Stack = std::vector<c10::IValue>;
using Count = std::optional<int64_t>;

int64_t size_along(const Stack& stack, size_t dim) {
  const at::Tensor& tensor = stack[0].toTensor();
  return tensor.size(c10::maybe_wrap_dim(stack[dim].toInt(), tensor.dim()));
}

Count slices(const Stack& stack) {
  return size_along(stack, 1);
}

// Counts parts of this length: at least one, and one of a dimension without elements, whatever the
// length.
Count parts(const Stack& stack) {
  const int64_t size = size_along(stack, 2);
  const int64_t part = stack[1].toInt();
  if (part < 0 || (part == 0 && size != 0)) return std::nullopt;
  return part == 0 ? 1 : std::max<int64_t>(1, (size - 1) / part + 1);
}

Count named_parts(const Stack& stack) {
  return static_cast<int64_t>(stack[1].toListRef().size());
}

// Counts chunks: no more than are asked for, and as many as that of a dimension without elements.
Count chunks(const Stack& stack) {
  const int64_t size = size_along(stack, 2);
  const int64_t wanted = stack[1].toInt();
  if (wanted <= 0) return std::nullopt;
  if (size == 0) return wanted;
  const int64_t part = (size - 1) / wanted + 1;
  return (size - 1) / part + 1;
}

Count sections(const Stack& stack) {
  return stack[1].toInt();
}

Count between_indices(const Stack& stack) {
  return static_cast<int64_t>(stack[1].toListRef().size()) + 1;
}

// A tensor of no dimension holds the number of sections, which nobody knows on meta.
Count by_tensor(const Stack& stack) {
  const at::Tensor& given = stack[1].toTensor();
  if (given.dim() > 1 || given.scalar_type() != at::kLong) return std::nullopt;
  if (given.dim() == 1) return given.numel() + 1;
  return given.is_cpu() ? *given.const_data_ptr<int64_t>() : Count();
}

struct Row {
  std::string_view op;
  ListCount count;
};

// The operators are sorted.
constexpr auto kCounts = std::to_array<Row>({
    {"aten::chunk", chunks},
    {"aten::split.Tensor", parts},
    {"aten::split.sizes", named_parts},
    {"aten::split_copy.Tensor", parts},
    {"aten::split_with_sizes", named_parts},
    {"aten::split_with_sizes_copy", named_parts},
    {"aten::tensor_split.indices", between_indices},
    {"aten::tensor_split.sections", sections},
    {"aten::tensor_split.tensor_indices_or_sections", by_tensor},
    {"aten::unbind.int", slices},
    {"aten::unbind_copy.int", slices},
    {"aten::unsafe_split.Tensor", parts},
    {"aten::unsafe_split_with_sizes", named_parts},
});

static_assert(std::ranges::is_sorted(kCounts, {}, &Row::op));

}  // namespace

ListCount list_count_of(std::string_view op) {
  const auto* const row = std::ranges::lower_bound(kCounts, op, {}, &Row::op);
  return row != kCounts.end() && row->op == op ? row->count : nullptr;
}

}  // namespace djinn::exec
