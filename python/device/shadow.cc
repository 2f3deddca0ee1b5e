// SPDX-License-Identifier: Apache-2.0

#include "python/device/shadow.h"

#include <c10/core/CPUAllocator.h>

#include <cstring>

#include "kernel/exec/guard_dispatch.h"
#include "python/device/capture.h"

namespace djinn::device {
namespace {

constexpr uint64_t kShadowBytes = 128 * 1024;

bool all_have_shadows(const Entry& entry) {
  for (const Operand& operand : entry.operands) {
    if (!operand.storage->shadow) return false;
  }
  return true;
}

// All that is made of these depends on the same inputs of a capture as they do.
void pass_taint(const Entry& entry, uint64_t taint) {
  for (const uint32_t i : entry.recipe->written) entry.operands[i].storage->taint |= taint;
  for (const StoragePtr& product : entry.products) {
    if (product) product->taint |= taint;
  }
}

uint64_t taint_of(const Entry& entry) {
  uint64_t taint = 0;
  for (const Operand& operand : entry.operands) taint |= operand.storage->taint;
  return taint;
}

}  // namespace

bool may_have_shadow(at::ScalarType type, uint64_t bytes) {
  return c10::isIntegralType(type, true) && bytes <= kShadowBytes;
}

at::Tensor shadow_view(const Operand& operand) {
  return strided_tensor(c10::DispatchKey::CPU, operand.storage->shadow, operand.type, operand.sizes,
                        operand.strides, operand.offset);
}

c10::Storage make_zero_shadow(uint64_t bytes) {
  c10::Storage storage(c10::Storage::use_byte_size_t{}, bytes, c10::GetDefaultCPUAllocator(),
                       false);
  std::memset(storage.mutable_data(), 0, bytes);
  return storage;
}

c10::Storage make_shadow(std::span<const std::byte> bytes) {
  c10::Storage storage = make_zero_shadow(bytes.size());
  if (!bytes.empty()) std::memcpy(storage.mutable_data(), bytes.data(), bytes.size());
  return storage;
}

c10::Storage shadow_of(const at::Tensor& result, const Product& product, uint64_t bytes) {
  c10::Storage shadow = make_zero_shadow(bytes);
  strided_tensor(c10::DispatchKey::CPU, shadow, product.type, product.sizes, product.strides, 0)
      .copy_(result);
  return shadow;
}

std::vector<at::Tensor> tensors_in(const Stack& stack) {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) {
      tensors.push_back(value.toTensor());
    } else {
      for (const at::Tensor& item : value.toTensorVector()) tensors.push_back(item);
    }
  }
  return tensors;
}

void compute_shadows(const c10::OperatorHandle& op, const std::vector<c10::IValue>& stack,
                     const Entry& entry) {
  const Recipe& recipe = *entry.recipe;
  const bool writes = !recipe.written.empty();
  if (!writes && !recipe.small_integers) return;
  if (!all_have_shadows(entry)) {
    for (const uint32_t i : recipe.written) entry.operands[i].storage->shadow = {};
    return;
  }
  const uint64_t taint = taint_of(entry);
  if (taint != 0 && Capture::active()) Capture::active()->looks.compute(op, stack, entry);
  auto operand = entry.operands.begin();
  Stack here = on_cpu(stack, [&] { return shadow_view(*operand++); });
  const exec::GuardedCalls guarded;  // a trap would end the user's process
  op.callBoxed(&here);
  pass_taint(entry, taint);
  if (writes) return;
  const std::vector<at::Tensor> results = tensors_in(here);
  for (size_t i = 0; i < results.size(); ++i) {
    const StoragePtr& storage = entry.products[i];
    storage->shadow = shadow_of(results[i], recipe.products[i], storage->bytes);
  }
}

}  // namespace djinn::device
