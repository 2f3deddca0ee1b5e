// SPDX-License-Identifier: Apache-2.0

#include <stdlib.h>

#include <array>

#include "kernel/exec/allocator_hook.h"
#include "kernel/exec/convert.h"
#include "kernel/exec/cpu_executor.h"
#include "kernel/exec/guard_dispatch.h"
#include "kernel/exec/own_operators.h"
#include "kernel/exec/torch_headers.h"

namespace djinn::exec {
namespace {

at::Tensor ones(at::IntArrayRef sizes, at::ScalarType type) {
  return at::full(sizes, 1, at::TensorOptions().dtype(type));
}

// Small and odd shapes take other kernels than large ones; one row is a decode step.
void warm_up_rows(int64_t rows, at::ScalarType type) {
  const at::Tensor input = ones({rows, 256}, type);
  at::linear(input, ones({512, 256}, type), ones({512}, type));
  at::matmul(ones({2, rows, 64}, type), ones({2, 64, 48}, type));
  const at::Tensor heads = ones({1, 4, rows, 32}, type);
  const at::Tensor past = ones({1, 4, rows + 96, 32}, type);
  at::scaled_dot_product_attention(heads, heads, heads, {}, 0.0, true);
  at::scaled_dot_product_attention(heads, past, past);
}

}  // namespace

void initialise(int threads) {
  // oneDNN keeps a kernel for each shape, of up to 1 MiB, and ideep, through which ATen calls it,
  // what it has computed with them: 1,024 of each by default, 740 MiB. That is more than a worker
  // may have beside what is granted, and what it is then refused oneDNN does not look at.
  for (const char* kept : {"ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"}) {
    ::setenv(kept, "128", 0);
  }
  install_allocator();
  at::set_num_threads(threads);
  register_operators();
  register_guards();
}

void CpuExecutor::warm_up(int threads) {
  at::set_num_threads(threads);
  // A dtype without a kernel for one of these has nothing to warm up.
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    for (const int64_t rows : {1, 7, 256}) {
      const Status status = catching([&]() -> Status {
        c10::InferenceMode inference_mode;
        warm_up_rows(rows, type);
        return {};
      });
      (void)status;
    }
  }
}

}  // namespace djinn::exec
