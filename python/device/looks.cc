// SPDX-License-Identifier: Apache-2.0

#include "python/device/looks.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <ranges>

#include "kernel/exec/guard_dispatch.h"
#include "python/device/shadow.h"

namespace djinn::device {
namespace {

// Gives the number in a name such as "given3".
std::optional<uint32_t> number_given(const Storage& storage) {
  constexpr std::string_view kName = "given";
  if (storage.location != Location::kInput || !storage.named->name.starts_with(kName))
    return std::nullopt;
  return static_cast<uint32_t>(std::stoul(storage.named->name.substr(kName.size())));
}

at::Tensor tensor_on(const c10::Storage& bytes, const Operand& shape) {
  return strided_tensor(c10::DispatchKey::CPU, bytes, shape.type, shape.sizes, shape.strides,
                        shape.offset);
}

c10::Storage copy_of(const void* bytes, size_t count) {
  return make_shadow({static_cast<const std::byte*>(bytes), count});
}

}  // namespace

// --- as the capture goes

void Looks::compute(const c10::OperatorHandle& op, const Stack& stack, const Entry& entry) {
  const auto& written = entry.recipe->written;
  Step step{
      op, on_cpu(stack, [] { return at::detail::empty_meta({0}, at::kByte); }), {}, written, {}};
  for (uint32_t i = 0; i < entry.operands.size(); ++i) {
    const bool is_written = std::ranges::find(written, i) != written.end();
    step.views.push_back(view_of(entry.operands[i], is_written));
  }
  for (size_t i = 0; written.empty() && i < entry.products.size(); ++i) {
    const StoragePtr& product = entry.products[i];
    numbers_[product] = slots_.size();
    step.made.push_back({slots_.size(), entry.recipe->products[i], product->bytes});
    slots_.emplace_back();
  }
  acts_.emplace_back(std::move(step));
}

void Looks::look(const Operand& view, const at::Tensor& elements) {
  acts_.emplace_back(Look{view_of(view, false), elements.clone()});
}

Looks::View Looks::view_of(const Operand& operand, bool is_written) {
  View view{slot_of(operand.storage, is_written), operand};
  view.shape.storage = nullptr;
  return view;
}

// A storage that does not depend on the inputs may be written later, so each use gets a copy.
Looks::SlotNumber Looks::slot_of(const StoragePtr& storage, bool is_written) {
  const auto found = numbers_.find(storage);
  if (found != numbers_.end()) return found->second;
  const auto given = number_given(*storage);
  TORCH_CHECK_NOT_IMPLEMENTED(given || storage->taint == 0,
                              "The model looks at values whose origin was not seen.");
  if (given || is_written) numbers_[storage] = slots_.size();
  slots_.push_back(
      {given, given ? c10::Storage() : copy_of(storage->shadow.data(), storage->shadow.nbytes())});
  return slots_.size() - 1;
}

void Looks::finish() {
  std::vector<bool> needed(slots_.size());
  std::vector<Act> kept;
  for (Act& act : std::ranges::reverse_view(acts_)) {
    if (const auto* const look = std::get_if<Look>(&act)) {
      needed[look->view.slot] = true;
    } else {
      const Step& step = std::get<Step>(act);
      if (!leads_to(step, needed)) continue;
      for (const View& view : step.views) needed[view.slot] = true;
    }
    kept.push_back(std::move(act));
  }
  std::ranges::reverse(kept);
  acts_ = std::move(kept);
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (!needed[i]) slots_[i].known = {};
  }
  numbers_.clear();
}

bool Looks::leads_to(const Step& step, const std::vector<bool>& needed) {
  return std::ranges::any_of(step.made, [&](const Made& made) { return needed[made.slot]; }) ||
         std::ranges::any_of(step.written, [&](uint32_t i) { return needed[step.views[i].slot]; });
}

// --- on other values

class Looks::Again {
 public:
  Again(const std::vector<Slot>& slots, const std::vector<at::Tensor>& given) {
    for (const Slot& slot : slots) bytes_.push_back(begin(slot, given));
  }

  // Tells whether a look sees the same value. A step is carried out.
  bool operator()(const Step& step) {
    auto view = step.views.begin();
    Stack stack = on_cpu(step.stack, [&] { return tensor_of(*view++); });
    const exec::GuardedCalls guarded;
    step.op.callBoxed(&stack);
    std::vector<at::Tensor> results = tensors_in(stack);
    for (size_t i = 0; i < step.made.size(); ++i) {
      const Made& made = step.made[i];
      bytes_[made.slot] = shadow_of(results.at(i), made.product, made.bytes);
    }
    return true;
  }
  bool operator()(const Look& look) { return tensor_of(look.view).equal(look.elements); }

 private:
  static c10::Storage begin(const Slot& slot, const std::vector<at::Tensor>& given) {
    if (slot.known) return copy_of(slot.known.data(), slot.known.nbytes());
    if (!slot.given || !given.at(*slot.given).defined()) return {};
    const at::Tensor values = given[*slot.given].contiguous();
    return copy_of(values.const_data_ptr(), values.nbytes());
  }
  at::Tensor tensor_of(const View& view) { return tensor_on(bytes_[view.slot], view.shape); }

  std::vector<c10::Storage> bytes_;
};

bool Looks::are_same_for(const std::vector<at::Tensor>& given) const {
  const at::AutoDispatchBelowADInplaceOrView plain;
  Again again(slots_, given);
  return std::ranges::all_of(acts_, [&](const Act& act) { return std::visit(again, act); });
}

}  // namespace djinn::device
