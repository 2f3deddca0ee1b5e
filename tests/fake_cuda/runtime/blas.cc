// SPDX-License-Identifier: Apache-2.0

// cuBLAS' handles. What computes is recorded alone; each line shows the handle's settings, for they
// decide with the arguments which kernel a GPU would take.

#include <fmt/format.h>

#include "effects.h"
#include "tests/fake_cuda/runtime/streams.h"

namespace djinn::fake_runtime {
namespace {

constexpr int kVersion = 130'100;

struct Blas : Numbered<Kind::kBlas> {
  using Numbered::Numbered;
  [[nodiscard]] std::string text() const override {
    return fmt::format("blas{} on {} math {} pointers {} workspace {}", number, name_of(stream),
                       static_cast<int>(math), static_cast<int>(pointers), workspace_bytes);
  }
  cudaStream_t stream = nullptr;
  cublasMath_t math = CUBLAS_DEFAULT_MATH;
  cublasPointerMode_t pointers = CUBLAS_POINTER_MODE_HOST;
  size_t workspace_bytes = 0;
};

template <typename Work>
cublasStatus_t with(cublasHandle_t handle, Work work) {
  Blas* const blas = world().find<Blas>(handle);
  if (blas == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  work(*blas);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

cublasStatus_t compute(cudaStream_t stream) {
  return enqueue(stream) == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

cublasStatus_t compute(cublasHandle_t handle) {
  const Blas* const blas = world().find<Blas>(handle);
  return blas == nullptr ? CUBLAS_STATUS_NOT_INITIALIZED : compute(blas->stream);
}

namespace effect {

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  *handle = reinterpret_cast<cublasHandle_t>(world().make<Blas>());
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  return world().drop<Blas>(handle) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  return with(handle, [=](Blas& blas) {
    blas.stream = stream;
    blas.workspace_bytes = 0;  // as cuBLAS documents it: the default workspace again
  });
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void*, size_t bytes) {
  return with(handle, [=](Blas& blas) { blas.workspace_bytes = bytes; });
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  return with(handle, [=](Blas& blas) { blas.math = mode; });
}

cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t* mode) {
  return with(handle, [=](Blas& blas) { *mode = blas.math; });
}

cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
  return with(handle, [=](Blas& blas) { blas.pointers = mode; });
}

cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t* mode) {
  return with(handle, [=](Blas& blas) { *mode = blas.pointers; });
}

size_t cublasLtGetVersion() {
  return kVersion;
}

}  // namespace effect
}  // namespace djinn::fake_runtime
