// SPDX-License-Identifier: Apache-2.0

// Shadows: copies in this process of small integer tensors, computed beside the recorded operator
// and never instead of it, so that a program's control flow over ids, positions and masks costs no
// round trip. What depends on floating-point data of the device never has one.
#pragma once

#include <span>
#include <vector>

#include "python/device/log.h"

namespace djinn::device {

// Whether storage may have a shadow at all: its type and size.
[[nodiscard]] bool may_have_shadow(at::ScalarType type, uint64_t bytes);

// A CPU tensor over the shadow. Precondition: the storage has one.
at::Tensor shadow_view(const Operand& operand);

// A shadow that holds these bytes, or zeros.
c10::Storage make_shadow(std::span<const std::byte> bytes);
c10::Storage make_zero_shadow(uint64_t bytes);

// A shadow of a product that an operator has given on the CPU; bytes: of its storage.
c10::Storage shadow_of(const at::Tensor& result, const Product& product, uint64_t bytes);
// All tensors that an operator has given, lists flattened.
std::vector<at::Tensor> tensors_in(const Stack& stack);

// The arguments of a call on the CPU: next() gives a tensor for each of the device's, or of the
// meta device's.
template <typename F>
Stack on_cpu(const Stack& stack, F&& next) {
  const auto move = [&](const at::Tensor& tensor) {
    return tensor.defined() && (is_ours(tensor) || tensor.is_meta()) ? at::Tensor(next()) : tensor;
  };
  Stack moved;
  for (const c10::IValue& value : stack) {
    if (value.isDevice()) {
      moved.emplace_back(c10::Device(c10::kCPU));
    } else {
      moved.push_back(value.isGenerator() ? c10::IValue() : with_tensors(value, move));
    }
  }
  return moved;
}

// Computes an entry's products' shadows, or the new contents of those that it writes, where all
// that it reads has shadows; drops the shadows of what it writes where not. stack: as called.
// Throws what the operator throws.
void compute_shadows(const c10::OperatorHandle& op, const std::vector<c10::IValue>& stack,
                     const Entry& entry);

}  // namespace djinn::device
