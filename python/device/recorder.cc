// SPDX-License-Identifier: Apache-2.0

#include "python/device/recorder.h"

#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include "python/device/capture.h"
#include "python/device/shadow.h"

namespace djinn::device {
namespace {

// Notes what autograd does with the call: it computes gradients, or will.
void annotate(const std::vector<at::Tensor>& tensors, Entry& entry) {
  const auto wants_gradient = [](const at::Tensor& tensor) { return tensor.requires_grad(); };
  if (Recorder::is_amid_backward()) {
    entry.phase = srg::Phase::kTraining;
    entry.residency = srg::Residency::kGradient;
  } else if (at::GradMode::is_enabled() && std::ranges::any_of(tensors, wants_gradient)) {
    entry.phase = srg::Phase::kTraining;
  }
}

}  // namespace

bool Recorder::is_amid_backward() {
  return torch::autograd::get_current_graph_task_id() >= 0;
}

Entry Recorder::make_entry(std::shared_ptr<const Recipe> recipe,
                           const std::vector<at::Tensor>& tensors) {
  Entry entry;
  entry.operands.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) entry.operands.push_back(operand_of(tensor));
  session_.refuse_lost(entry);
  annotate(tensors, entry);
  for (const Product& product : recipe->products) {
    entry.products.emplace_back();
    if (product.kind != Product::Kind::kFresh) continue;
    entry.products.back() = storages().make(product.bytes, product.type);
    entry.products.back()->location = Location::kLogged;
  }
  entry.recipe = std::move(recipe);
  return entry;
}

// Records that a new storage is a copy of a view.
StoragePtr Recorder::append_copy(const Operand& source) {
  const uint64_t bytes = dense_bytes(source.sizes, source.type);
  auto recipe = std::make_shared<Recipe>();
  recipe->op = "aten::clone";
  recipe->arguments.push_back({"", srg::ValueRef{0}});
  Product product;
  product.type = source.type;
  product.sizes = source.sizes;
  product.strides = source.strides;
  product.bytes = bytes;
  recipe->products.push_back(std::move(product));
  Entry entry;
  entry.recipe = std::move(recipe);
  entry.operands.push_back(source);
  entry.products.push_back(storages().make(bytes, source.type));
  entry.products[0]->location = Location::kLogged;
  log_.append(entry);
  return entry.products[0];
}

// A weight is sealed, and a tensor of a file belongs to the file. So an operator that writes one
// gets a copy, to which every view and tied name moves.
void Recorder::fork_written(Entry& entry) {
  for (const uint32_t i : entry.recipe->written) {
    const StoragePtr storage = entry.operands[i].storage;
    if (storage->location != Location::kWeight && storage->location != Location::kSource) continue;
    StoragePtr frozen = storages().make(storage->bytes, storage->type);
    frozen->location = storage->location;
    frozen->named = storage->named;
    frozen->held = false;
    log_.rename(storage, frozen);
    append_copy(whole(frozen));
    log_.rename_product(storage);
    storage->location = Location::kLogged;
    storage->named = nullptr;
    ++stats_.forks;
    storages().note_move();
  }
}

void Recorder::keep_to_one_model(Entry& entry) {
  const uint64_t model = model_of(entry);
  for (Operand& operand : entry.operands) {
    if (operand.storage->location != Location::kWeight || operand.storage->named->owner == model)
      continue;
    const StoragePtr copy = append_copy(whole(operand.storage));
    copy->held = false;
    operand.storage = copy;
  }
}

bool Recorder::append(const c10::OperatorHandle& op, const Stack& stack, Entry& entry) {
  compute_shadows(op, stack, entry);
  ++stats_.recorded;
  if (Capture* const capture = Capture::active()) {
    capture->append(entry);
    return false;
  }
  fork_written(entry);
  keep_to_one_model(entry);
  log_.append(entry);
  return true;
}

}  // namespace djinn::device
