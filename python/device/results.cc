// SPDX-License-Identifier: Apache-2.0

#include "python/device/results.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "kernel/exec/convert.h"

namespace djinn::device {
namespace {

at::Tensor make_tensor(const StoragePtr& storage, const Product& product) {
  return strided_tensor(c10::DispatchKey::PrivateUse1, as_torch(storage), product.type,
                        product.sizes, product.strides, product.offset);
}

// A view must carry its base's keys, or it becomes an inference tensor.
at::Tensor make_view(const at::Tensor& base, const Product& product) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(),
      c10::scalarTypeToTypeMeta(product.type));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(product.sizes, product.strides,
                                                      product.offset);
  return tensor;
}

}  // namespace

std::string describe(const c10::OperatorHandle& op, const Stack& stack) {
  std::string text = qualified(op.operator_name());
  for (const at::Tensor& tensor : tensors_of(stack)) {
    text += fmt::format(" {}[{}]", c10::toString(tensor.scalar_type()),
                        fmt::join(tensor.sizes(), ", "));
  }
  return text;
}

std::string describe_products(const Recipe* recipe) {
  if (recipe == nullptr) return "gives what djinnd will tell";
  std::string text = "gives";
  for (const Product& product : recipe->products) {
    text += fmt::format(" {}[{}]", c10::toString(product.type), fmt::join(product.sizes, ", "));
  }
  return text;
}

std::vector<at::Tensor> make_results(const Entry& entry, const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < entry.recipe->products.size(); ++i) {
    const Product& product = entry.recipe->products[i];
    switch (product.kind) {
      case Product::Kind::kFresh:
        results.push_back(make_tensor(entry.products[i], product));
        break;
      case Product::Kind::kArgument:
        results.push_back(tensors[product.argument]);
        break;
      case Product::Kind::kView:
        results.push_back(make_view(tensors[product.argument], product));
        break;
      case Product::Kind::kShared:
        results.push_back(make_view(results[product.argument], product));
        break;
      case Product::Kind::kUndefined:
        results.emplace_back();
        break;
    }
  }
  return results;
}

void put_results(const Recipe& recipe, std::vector<at::Tensor> results, Stack& stack) {
  stack.clear();
  if (recipe.list) {
    stack.emplace_back(c10::List<at::Tensor>(std::move(results)));
    return;
  }
  for (at::Tensor& result : results) stack.emplace_back(std::move(result));
}

at::Tensor adopt(Described described) {
  StoragePtr storage = storages().make(0);
  Product product;
  const auto type = exec::to_torch(static_cast<DType>(described.shape.dtype));
  TORCH_CHECK(type.has_value(), "djinnd described a result of no dtype.");
  product.type = *type;
  const auto rank = std::min<uint32_t>(described.shape.rank, limits::kRank);
  product.sizes.assign(described.shape.sizes.begin(), described.shape.sizes.begin() + rank);
  product.strides.assign(described.shape.strides.begin(), described.shape.strides.begin() + rank);
  product.offset = static_cast<int64_t>(described.shape.offset);
  int64_t last = product.offset + 1;
  for (uint32_t d = 0; d < rank; ++d) last += (product.sizes[d] - 1) * product.strides[d];
  storage->type = product.type;
  storage->bytes =
      static_cast<uint64_t>(std::max<int64_t>(last, 0)) * c10::elementSize(product.type);
  become_ref(*storage, std::move(described.ref).detach());
  Held::note(Held::now());
  return make_tensor(storage, product);
}

}  // namespace djinn::device
