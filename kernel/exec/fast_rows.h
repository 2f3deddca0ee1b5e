// SPDX-License-Identifier: Apache-2.0

// What our own operators share: how a tensor's rows lie, and the kernels of this machine.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

#include "kernel/base/isa_level.h"
#include "kernel/exec/crew.h"
#include "kernel/exec/kernels/kernels.h"
#include "kernel/exec/shares.h"
#include "kernel/exec/torch_headers.h"

namespace djinn::exec {

// The level that was chosen at the start.
[[nodiscard]] IsaLevel fast_isa();
// All of that level.
[[nodiscard]] const kernels::Kernels& fast_kernels();

// Nothing where our kernels do not compute on the type.
[[nodiscard]] std::optional<kernels::Element> element_of(at::ScalarType type);

// The distance of two rows where those of [..., K] lie at even distances, dense in themselves.
[[nodiscard]] std::optional<int64_t> row_stride(const at::Tensor& tensor);

// The distance of two places in a dimension; 0 where it has one alone, which others meet in each.
[[nodiscard]] inline int64_t step_of(const at::Tensor& tensor, int64_t dimension) {
  return tensor.size(dimension) == 1 ? 0 : tensor.stride(dimension);
}

// Whether each dimension steps over all that are behind it: what is computed of such tensors,
// element by element, is contiguous.
[[nodiscard]] bool lies_in_order(const at::Tensor& tensor);

// Whether a norm's weight or bias, if there is one, is dense, and has a number of x's type for each
// of a row's.
[[nodiscard]] bool is_dense_like(const std::optional<at::Tensor>& vector, const at::Tensor& x);

// Whether each row of x, of [rows, heads, tokens, width], has a row of the other, broadcast.
[[nodiscard]] bool has_row_for_each(const at::Tensor& x, const at::Tensor& other);

// Calls f(i, thread) for each i of [0, count), each once, on this lane's threads (shares.h), of
// which no two have one number below lane_threads(). Who is done fetches what is ahead, of each
// thread, if it is told (crew.h). f throws nothing.
template <typename F>
void for_each_share(int64_t count, const F& f, std::span<const Ahead> ahead = {}) {
  const int64_t threads = std::min<int64_t>(count, at::get_num_threads());
  if (threads == 0) return;
  Shares shares(count, threads);
  Crew::mine().call(
      static_cast<int>(threads),
      [&](int thread) {
        while (const auto share = shares.take(thread)) f(*share, thread);
      },
      ahead);
}

// Calls f(begin, end, thread) for parts that make [0, count) together, on this lane's threads, each
// of which has so many at least.
template <typename F>
void for_each_part(int64_t count, int64_t grain, const F& f, std::span<const Ahead> ahead = {}) {
  const int64_t worth = (count + grain - 1) / grain;
  const int64_t threads = std::min<int64_t>(worth, at::get_num_threads());
  if (threads == 0) return;
  const int64_t each = (count + threads - 1) / threads;
  Crew::mine().call(
      static_cast<int>(threads),
      [&](int i) {
        if (i * each < count) f(i * each, std::min((i + 1) * each, count), i);
      },
      ahead);
}

}  // namespace djinn::exec
