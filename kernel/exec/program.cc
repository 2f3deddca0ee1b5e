// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/program.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernel/base/checked.h"
#include "kernel/exec/expression.h"
#include "kernel/exec/torch_headers.h"

namespace djinn::exec {
namespace {

Status contiguous_strides(const std::vector<int64_t>& sizes, std::vector<int64_t>& strides) {
  strides.assign(sizes.size(), 1);
  for (size_t i = sizes.size(); i > 1; --i) {
    const auto stride = checked_mul(strides[i - 1], std::max<int64_t>(sizes[i - 1], 1));
    if (!stride) return overflow_error();
    strides[i - 2] = *stride;
  }
  return {};
}

bool any_negative(const std::vector<int64_t>& numbers) {
  return std::any_of(numbers.begin(), numbers.end(), [](int64_t number) { return number < 0; });
}

}  // namespace

std::string describe(const srg::Node& node) {
  const std::string& path = node.annotation.module_path;
  if (path.empty()) return node.op.substr(0, 100);
  return fmt::format("{} at {}", node.op.substr(0, 100), path.substr(0, 100));
}

std::string describe(const srg::Value& value) {
  return value.name.empty() ? "without a name" : value.name.substr(0, 200);
}

Status evaluate_geometry(const srg::Value& value, std::span<const int64_t> symbols, Geometry& out) {
  DJINN_CHECK(evaluate(value.sizes, symbols, out.sizes));
  const bool negative_size = any_negative(out.sizes);
  if (value.strides.empty()) {
    DJINN_CHECK(contiguous_strides(out.sizes, out.strides));
  } else {
    DJINN_CHECK(evaluate(value.strides, symbols, out.strides));
  }
  const auto offset = evaluate(value.offset, symbols);
  if (!offset) return overflow_error();
  out.offset = *offset;
  if (negative_size || any_negative(out.strides) || *offset < 0 ||
      out.strides.size() != out.sizes.size()) {
    return Error{ErrorCode::kOutOfRange,
                 fmt::format("Value {} has a negative size, stride or offset at these symbols.",
                             describe(value))};
  }
  return {};
}

std::optional<uint64_t> elements_reached(const Geometry& geometry) {
  auto last = static_cast<uint64_t>(geometry.offset);
  for (size_t i = 0; i < geometry.sizes.size(); ++i) {
    if (geometry.sizes[i] == 0) return 0;
    const auto step = checked_mul(static_cast<uint64_t>(geometry.sizes[i] - 1),
                                  static_cast<uint64_t>(geometry.strides[i]));
    const auto next = step ? checked_add(last, *step) : std::nullopt;
    if (!next) return std::nullopt;
    last = *next;
  }
  return checked_add<uint64_t>(last, 1);
}

}  // namespace djinn::exec
