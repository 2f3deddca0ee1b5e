// SPDX-License-Identifier: Apache-2.0

#include "python/device/shadow.h"

#include <c10/core/CPUAllocator.h>

#include <cstring>

#include "kernel/exec/guard_dispatch.h"

namespace djinn::device {
namespace {

constexpr uint64_t kShadowBytes = 128 * 1024;

// The call with shadows for its tensors.
class CpuCall {
 public:
  CpuCall(const std::vector<c10::IValue>& stack, const Entry& entry) : entry_(entry) {
    for (const c10::IValue& value : stack) stack_.push_back(to_cpu(value));
  }
  [[nodiscard]] std::vector<c10::IValue>& stack() { return stack_; }

 private:
  c10::IValue to_cpu(const c10::IValue& value) {
    if (value.isDevice()) return c10::Device(c10::kCPU);
    if (value.isGenerator()) return {};
    return with_tensors(value, [this](const at::Tensor& tensor) { return to_cpu(tensor); });
  }

  at::Tensor to_cpu(const at::Tensor& tensor) {
    if (!tensor.defined() || !is_ours(tensor)) return tensor;
    return shadow_view(entry_.operands[next_++]);
  }

  const Entry& entry_;
  std::vector<c10::IValue> stack_;
  size_t next_ = 0;
};

bool all_have_shadows(const Entry& entry) {
  for (const Operand& operand : entry.operands) {
    if (!operand.storage->shadow) return false;
  }
  return true;
}

// Whatever comes of these depends on the same inputs of a capture as they do.
void pass_taint(const Entry& entry) {
  uint64_t taint = 0;
  for (const Operand& operand : entry.operands) taint |= operand.storage->taint;
  if (taint == 0) return;
  for (const uint32_t i : entry.recipe->written) entry.operands[i].storage->taint |= taint;
  for (const StoragePtr& product : entry.products) {
    if (product) product->taint |= taint;
  }
}

void keep_product(const at::Tensor& result, const Product& product, const StoragePtr& storage) {
  storage->shadow = make_zero_shadow(storage->bytes);
  strided_tensor(c10::DispatchKey::CPU, storage->shadow, product.type, product.sizes,
                 product.strides, 0)
      .copy_(result);
}

void keep_products(const std::vector<c10::IValue>& results, const Entry& entry) {
  size_t number = 0;
  const auto keep = [&](const at::Tensor& tensor) {
    keep_product(tensor, entry.recipe->products[number], entry.products[number]);
    ++number;
  };
  for (const c10::IValue& result : results) {
    if (result.isTensor()) {
      keep(result.toTensor());
    } else {
      for (const at::Tensor& item : result.toTensorVector()) keep(item);
    }
  }
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

void compute_shadows(const c10::OperatorHandle& op, const std::vector<c10::IValue>& stack,
                     const Entry& entry) {
  const Recipe& recipe = *entry.recipe;
  const bool writes = !recipe.written.empty();
  if (!writes && !recipe.small_integers) return;
  if (!all_have_shadows(entry)) {
    for (const uint32_t i : recipe.written) entry.operands[i].storage->shadow = {};
    return;
  }
  CpuCall call(stack, entry);
  const exec::GuardedCalls guarded;  // a trap would end the user's process
  op.callBoxed(&call.stack());
  pass_taint(entry);
  if (!writes) keep_products(call.stack(), entry);
}

}  // namespace djinn::device
