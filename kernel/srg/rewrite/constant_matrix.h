// SPDX-License-Identifier: Apache-2.0

// A value that is a weight seen as a matrix, as it lies or turned around. It is told by geometry:
// a capture has aten::as_strided where a builder's graph has a view of its own, or aten::t.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernel/srg/rewrite/draft.h"

namespace djinn::srg {

// How a value shows a weight that is no run of elements (rewrite.h:FormedWeight).
struct ShownForm {
  ValueId base = 0;             // the weight itself, which is bound as this value shows it
  bool base_is_turned = false;  // around
  bool is_whole = false;        // the value shows all of the base; else a part
  bool is_turned = false;       // from how the base lies
};

struct ConstantMatrix {
  DType dtype = DType::kInvalid;
  int64_t row_stride = 0;  // elements
  int64_t column_stride = 0;
  std::optional<ShownForm> form;
};

class ConstantMatrices {
 public:
  explicit ConstantMatrices(const Draft& draft);
  // Nothing where the value is none: it is computed, has other dimensions, or sizes with symbols.
  [[nodiscard]] std::optional<ConstantMatrix> find(ValueId value) const;

 private:
  void add_view(const Draft& draft, ValueId value);
  void add_result(const Draft& draft, const Node& node);

  std::vector<std::optional<ConstantMatrix>> matrices_;  // by value
};

}  // namespace djinn::srg
