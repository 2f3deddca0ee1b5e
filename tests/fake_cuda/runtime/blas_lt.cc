// SPDX-License-Identifier: Apache-2.0

// cublasLt's descriptors, and a heuristic that knows one algorithm. What a GPU's heuristic is asked
// is in the log: the same question gets the same answer there.

#include <fmt/format.h>
#include <string.h>

#include <span>
#include <vector>

#include "effects.h"
#include "tests/fake_cuda/runtime/streams.h"

namespace djinn::fake_runtime {
namespace {

// Of a product, a matrix or a preference: what it was made with, and its attributes by number.
struct Descriptor : Numbered<Kind::kDescriptor> {
  Descriptor(uint64_t its_number, std::string with)
      : Numbered(its_number), made_with(std::move(with)) {}
  [[nodiscard]] std::string text() const override {
    std::string text = made_with;
    for (const auto& [attribute, value] : attributes)
      fmt::format_to(std::back_inserter(text), " {}:{}", attribute, shown(value));
    return text;
  }
  static std::string shown(const std::vector<unsigned char>& value) {
    uint64_t number = 0;
    if (value.size() > sizeof number) return fmt::format("{:02x}", fmt::join(value, ""));
    ::memcpy(&number, value.data(), value.size());
    const bool may_be_address = value.size() == sizeof(void*) && number != 0;
    size_t offset = 0;
    const void* const address = reinterpret_cast<const void*>(number);
    const bool is_address = may_be_address && (world().find_block(address, offset) != nullptr ||
                                               find_mapped(address).has_value());
    return is_address ? name_of(address) : fmt::format("{}", number);
  }

  std::string made_with;
  std::map<int, std::vector<unsigned char>> attributes;
};

template <typename Handle>
cublasStatus_t make(Handle* handle, std::string made_with) {
  *handle = reinterpret_cast<Handle>(world().make<Descriptor>(std::move(made_with)));
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t drop(const void* handle) {
  return world().drop<Descriptor>(handle) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t set(const void* handle, int attribute, const void* value, size_t bytes) {
  Descriptor* const descriptor = world().find<Descriptor>(handle);
  if (descriptor == nullptr || value == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  const auto* const first = static_cast<const unsigned char*>(value);
  descriptor->attributes[attribute].assign(first, first + bytes);
  note("to", Descriptor::shown(descriptor->attributes[attribute]));
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

namespace effect {

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* descriptor,
                                        cublasComputeType_t compute, cudaDataType_t scale) {
  return make(descriptor,
              fmt::format("product {} {}", static_cast<int>(compute), static_cast<int>(scale)));
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t descriptor) {
  return drop(descriptor);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t descriptor,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  return set(descriptor, attribute, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t leading) {
  return make(layout,
              fmt::format("matrix {} {}x{} by {}", static_cast<int>(type), rows, columns, leading));
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return drop(layout);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t bytes) {
  return set(layout, attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return make(preference, "preference");
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return drop(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  return set(preference, attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* found) {
  *found = wanted < 1 ? 0 : 1;
  if (*found == 1) *results = {};
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace effect
}  // namespace djinn::fake_runtime
