// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/scratch.h"

#include <ATen/Parallel.h>
#include <ATen/WrapDimUtils.h>

#include <algorithm>
#include <array>
#include <optional>

#include "kernel/base/checked.h"

namespace djinn::exec {
namespace {

using Stack = std::vector<c10::IValue>;

// An element with its index takes this much where kernels that select or sort keep them side by
// side.
constexpr uint64_t kPairBytes = 16;

uint64_t product(uint64_t a, uint64_t b) {
  return checked_mul(a, b).value_or(UINT64_MAX);
}

// Each thread takes the pairs of one row along `dim`; there are at most as many threads as rows.
uint64_t pairs_of_rows(const at::Tensor& self, int64_t dim) {
  if (self.dim() == 0 || self.numel() == 0) return 0;
  const auto length = static_cast<uint64_t>(self.size(at::maybe_wrap_dim(dim, self.dim())));
  const uint64_t rows = static_cast<uint64_t>(self.numel()) / length;
  const uint64_t threads = std::min<uint64_t>(rows, static_cast<uint64_t>(at::get_num_threads()));
  return product(product(length, threads), kPairBytes);
}

// topk(self, k, dim, ...), in TopKImpl.h, takes a std::vector<std::pair<scalar_t, int64_t>> of a
// row.
uint64_t topk(const Stack& stack) {
  return pairs_of_rows(stack[0].toTensor(), stack[2].toInt());
}

// mode(self, dim, ...), in TensorCompareKernel.cpp, takes the same.
uint64_t mode(const Stack& stack) {
  return pairs_of_rows(stack[0].toTensor(), stack[1].toInt());
}

// sort(self, stable, dim, descending), in SortingKernel.cpp, takes std::stable_sort's buffer, or a
// radix sort's.
uint64_t sort(const Stack& stack) {
  return pairs_of_rows(stack[0].toTensor(), stack[2].toInt());
}

// embedding_dense_backward(grad_output, indices, num_weights, padding_idx, scale_grad_by_freq), in
// Embedding.cpp, counts how often each weight was used.
uint64_t embedding_counts(const Stack& stack) {
  if (!stack[4].toBool()) return 0;
  return product(static_cast<uint64_t>(std::max<int64_t>(stack[2].toInt(), 0)), sizeof(int64_t));
}

struct ScratchRow {
  std::string_view op;
  Scratch scratch;
};

constexpr auto kScratch = std::to_array<ScratchRow>({
    {"aten::embedding_dense_backward", embedding_counts},
    {"aten::mode", mode},
    {"aten::sort.stable", sort},
    {"aten::topk", topk},
});
static_assert(std::ranges::is_sorted(kScratch, {}, &ScratchRow::op));

}  // namespace

std::vector<std::string_view> operators_with_scratch() {
  std::vector<std::string_view> names;
  for (const ScratchRow& row : kScratch) names.push_back(row.op);
  return names;
}

Scratch scratch_of(std::string_view op) {
  const auto row = std::ranges::lower_bound(kScratch, op, {}, &ScratchRow::op);
  return row != kScratch.end() && row->op == op ? row->scratch : nullptr;
}

}  // namespace djinn::exec
