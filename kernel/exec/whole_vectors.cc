// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/whole_vectors.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "kernel/exec/allocator_hook.h"

namespace djinn::exec {
namespace {

using Stack = std::vector<c10::IValue>;

// A multiple of what any kernel takes at once: two vectors, each of 32 elements at most.
constexpr int64_t kElements = 64;
constexpr size_t kElementBytesMax = 16;

struct Operands {
  c10::SmallVector<size_t, 3> places;  // in the stack: tensors with dimensions
  at::DimVector sizes;                 // of all together
  int64_t count = 0;                   // of elements
};

Operands operands_of(const Stack& stack) {
  Operands found;
  for (size_t i = 0; i < stack.size(); ++i) {
    if (!stack[i].isTensor()) continue;
    const at::Tensor& tensor = stack[i].toTensor();
    if (!tensor.defined() || tensor.dim() == 0) continue;
    found.places.push_back(i);
    found.sizes = at::infer_size_dimvector(found.sizes, tensor.sizes());
  }
  found.count = found.places.empty() ? 0 : c10::multiply_integers(found.sizes);
  return found;
}

// One number for all elements.
bool is_scalar(const Operands& all, const at::Tensor& tensor) {
  return tensor.numel() == 1 && all.count > 1;
}

// Whether kernels go along the last dimension, and vectors fill it.
bool are_whole(const Operands& all, const Stack& stack) {
  if (all.sizes.back() % kElements != 0) return false;
  return std::ranges::all_of(all.places, [&](size_t place) {
    const at::Tensor& tensor = stack[place].toTensor();
    const int64_t width = tensor.size(-1);
    if (width == 1 || tensor.stride(-1) == 0) return true;  // one for a row
    if (tensor.stride(-1) != 1) return false;
    for (int64_t d = 0; d + 1 < tensor.dim(); ++d) {
      const int64_t stride = tensor.stride(d);
      if (tensor.size(d) > 1 && stride != 0 && stride < width) return false;
    }
    return true;
  });
}

bool lie_alike(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return false;
  for (int64_t d = 0; d < a.dim(); ++d) {
    if (a.size(d) > 1 && a.stride(d) != b.stride(d)) return false;
  }
  return true;
}

// The first operand, where all lie side by side in its order, so that kernels take them as one row.
const at::Tensor* one_row(const Operands& all, const Stack& stack) {
  const at::Tensor* first = nullptr;
  for (const size_t place : all.places) {
    const at::Tensor& tensor = stack[place].toTensor();
    if (is_scalar(all, tensor)) continue;
    if (first == nullptr) first = &tensor;
    if (tensor.sizes() != all.sizes || !lie_alike(tensor, *first)) return nullptr;
  }
  return first != nullptr && first->is_non_overlapping_and_dense() ? first : nullptr;
}

// What is left of an operand behind its vectors, and zeros.
struct alignas(kElementBytesMax) Rest {
  std::array<std::byte, kElements * kElementBytesMax> bytes{};
};

void call_again_of_rest(const c10::OperatorHandle& op, const Operands& all, const at::Tensor& first,
                        Stack& stack) {
  const int64_t count = all.count % kElements, begin = all.count - count;
  const auto bytes_of = [](const at::Tensor& tensor, int64_t elements) {
    return static_cast<size_t>(elements) * tensor.element_size();
  };
  std::vector<Rest> rests(all.places.size());
  Stack again = stack;  // its operands are read before the call, which may write them
  for (size_t i = 0; i < all.places.size(); ++i) {
    const at::Tensor& tensor = stack[all.places[i]].toTensor();
    if (is_scalar(all, tensor)) continue;
    std::byte* const rest = rests[i].bytes.data();
    const auto* const data = static_cast<const std::byte*>(tensor.const_data_ptr());
    std::memcpy(rest, data + bytes_of(tensor, begin), bytes_of(tensor, count));
    again[all.places[i]] = at::from_blob(rest, {kElements}, tensor.options());
  }
  const at::Tensor order = first;  // the call takes the stack's
  op.callBoxed(&stack);
  const ScopedSink aside;  // a plan that was made at another count has no place for it
  op.callBoxed(&again);
  for (size_t i = 0; i < stack.size(); ++i) {
    const at::Tensor& result = stack[i].toTensor();
    TORCH_CHECK(lie_alike(result, order), op.operator_name(), " gave a result in another order");
    auto* const data = static_cast<std::byte*>(result.mutable_data_ptr());
    std::memcpy(data + bytes_of(result, begin), again[i].toTensor().const_data_ptr(),
                bytes_of(result, count));
  }
  again.clear();
}

// As one row, with zeros behind it.
at::Tensor row_of(const Operands& all, const at::Tensor& tensor) {
  const int64_t padded = (all.count + kElements - 1) / kElements * kElements;
  const at::Tensor row = at::empty({padded}, tensor.options());
  row.narrow(0, 0, all.count).view(all.sizes).copy_(tensor.expand(all.sizes));
  row.narrow(0, all.count, padded - all.count).zero_();
  return row;
}

void call_again_of_copies(const c10::OperatorHandle& op, const Operands& all, Stack& stack) {
  Stack again = stack;  // as above
  for (const size_t place : all.places) {
    const at::Tensor& tensor = stack[place].toTensor();
    again[place] = is_scalar(all, tensor) ? tensor.view({1}) : row_of(all, tensor);
  }
  op.callBoxed(&stack);
  op.callBoxed(&again);
  for (size_t i = 0; i < stack.size(); ++i) {
    const at::Tensor& result = stack[i].toTensor();
    result.copy_(again[i].toTensor().narrow(0, 0, all.count).view(all.sizes));
  }
}

}  // namespace

bool rounds_apart(Splits splits, const Stack& stack) {
  if (splits == Splits::kNever) return false;
  return std::ranges::any_of(stack, [splits](const c10::IValue& argument) {
    if (!argument.isTensor() || !argument.toTensor().defined()) return false;
    const at::Tensor& tensor = argument.toTensor();
    return tensor.is_complex() || (splits == Splits::kFloats && tensor.is_floating_point());
  });
}

void call_in_vectors(const c10::OperatorHandle& op, Stack& stack) {
  const Operands all = operands_of(stack);
  if (all.count == 0 || are_whole(all, stack)) return op.callBoxed(&stack);
  const at::Tensor* const first = one_row(all, stack);
  if (first == nullptr) return call_again_of_copies(op, all, stack);
  if (all.count % kElements == 0) return op.callBoxed(&stack);
  call_again_of_rest(op, all, *first, stack);
}

}  // namespace djinn::exec
