// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/one_thread.h"

#include <omp.h>

#include <algorithm>
#include <array>

namespace djinn::exec {
namespace {

using Stack = std::vector<c10::IValue>;

bool names_several(const at::Tensor& index) {
  return index.defined() && index.numel() > 1;
}

// (self, dim, index, source), IndexKernel.cpp.
bool index_copy(const Stack& stack) {
  return names_several(stack[2].toTensor());
}

// (self, index, source, accumulate), IndexKernel.cpp.
bool put(const Stack& stack) {
  return names_several(stack[1].toTensor());
}

// (self, indices, values, accumulate), IndexKernel.cpp. A mask names no element twice.
bool index_put(const Stack& stack) {
  const auto may_repeat = [](const c10::IValue& one) {
    if (!one.isTensor() || !names_several(one.toTensor())) return false;
    const at::ScalarType type = one.toTensor().scalar_type();
    return type != at::kBool && type != at::kByte;
  };
  const auto indices = stack[1].toListRef();
  return std::any_of(indices.begin(), indices.end(), may_repeat);
}

struct RaceRow {
  std::string_view op;
  Race race;
};

constexpr auto kRows = std::to_array<RaceRow>({
    {"aten::index_copy", index_copy},
    {"aten::index_copy_", index_copy},
    {"aten::index_put", index_put},
    {"aten::index_put_", index_put},
    {"aten::put", put},
    {"aten::put_", put},
});
static_assert(std::ranges::is_sorted(kRows, {}, &RaceRow::op));

}  // namespace

Race race_of(std::string_view op) {
  const auto row = std::ranges::lower_bound(kRows, op, {}, &RaceRow::op);
  return row != kRows.end() && row->op == op ? row->race : nullptr;
}

std::vector<std::string_view> operators_with_races() {
  std::vector<std::string_view> names;
  for (const RaceRow& row : kRows) names.push_back(row.op);
  return names;
}

// Of this thread alone: at::set_num_threads() would tell libraries and pools of all.
OneThread::OneThread(bool wanted) {
  if (!wanted || omp_get_max_threads() == 1) return;
  former_ = omp_get_max_threads();
  omp_set_num_threads(1);
}

OneThread::~OneThread() {
  if (former_ > 0) omp_set_num_threads(former_);
}

}  // namespace djinn::exec
