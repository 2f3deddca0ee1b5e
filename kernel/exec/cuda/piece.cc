// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/cuda/piece.h"

#include <algorithm>
#include <optional>

#include "kernel/exec/pieces.h"

namespace djinn::exec {
namespace {

Error not_again(const char* why) {
  return {ErrorCode::kUnsupported, why};
}

bool is_within(const void* memory, uint64_t bytes, std::span<const std::byte> slab) {
  const auto* const first = static_cast<const std::byte*>(memory);
  return first >= slab.data() && first + bytes <= slab.data() + slab.size();
}

// Nothing of the tensor is hidden: neither that its bytes mean their conjugate, nor whose it is.
bool is_plain(const at::Tensor& tensor) {
  return tensor.is_cuda() && tensor.layout() == c10::kStrided && !tensor.is_conj() &&
         !tensor.is_neg() && !tensor._is_zerotensor() &&
         !tensor.unsafeGetTensorImpl()->is_wrapped_number();
}

// As an operator's result has, whose memory goes back when nobody has it any more.
c10::Storage own_storage(void* memory, uint64_t bytes) {
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), c10::SymInt(static_cast<int64_t>(bytes)),
      c10::DataPtr(memory, memory, &release_on_device, c10::Device(c10::kCUDA, 0)),
      c10::GetAllocator(c10::kCUDA), /*resizable=*/true);
}

std::optional<uint32_t> find_bound(std::span<const c10::Storage> storages,
                                   const c10::Storage& storage) {
  const auto found = std::ranges::find_if(
      storages, [&](const c10::Storage& one) { return one.is_alias_of(storage); });
  if (found == storages.end()) return std::nullopt;
  return static_cast<uint32_t>(found - storages.begin());
}

std::optional<srg::ValueId> find_owner(const Owners& owners, const c10::Storage& storage) {
  const auto found = std::ranges::find_if(owners, [&](const auto& owner) {
    return owner.first._unsafe_get_target() == storage.unsafeGetStorageImpl();
  });
  if (found == owners.end()) return std::nullopt;
  return found->second;
}

}  // namespace

std::span<const Step> steps_of(const AdmittedGraph& program, const StepRange& range) {
  return std::span(program.steps).subspan(range.begin, range.end - range.begin);
}

Seen::Seen(srg::ValueId id, const at::Tensor& tensor)
    : id_(id),
      data_(tensor.const_data_ptr()),
      type_(tensor.scalar_type()),
      sizes_(tensor.sizes()),
      strides_(tensor.strides()) {}

bool Seen::is_in(const Frame& frame) const {
  const at::Tensor& tensor = frame.values[id_];
  return tensor.defined() && tensor.const_data_ptr() == data_ && tensor.scalar_type() == type_ &&
         tensor.sizes().equals(sizes_) && tensor.strides().equals(strides_);
}

Result<Made> Made::of(const AdmittedGraph& program, const StepRange& range,
                      std::span<const c10::Storage> storages, const Owners& owners,
                      const Frame& end, const Replayer& places) {
  Made made;
  made.next_ = places.next();
  made.peak_live_bytes_ = places.peak_live_bytes();
  const std::span<const Step> steps = steps_of(program, range);
  for (const srg::ValueId id : values_into(steps)) {
    if (!end.values[id].defined()) made.gone_.push_back(id);
  }
  for (const Step& step : steps) {
    for (const srg::ValueId id : step.outputs) {
      const at::Tensor& tensor = end.values[id];
      if (!tensor.defined()) continue;
      if (!is_plain(tensor)) return not_again("a result is no plain tensor of the GPU");
      const c10::Storage& storage = tensor.storage();
      Memory memory;
      if (const auto bound = find_bound(storages, storage)) {
        memory = {Whose::kBound, *bound, {}};
      } else if (const auto owner = find_owner(owners, storage)) {
        memory = {Whose::kValue, *owner, {}};
      } else if (storage.nbytes() > 0 &&
                 is_within(storage.data(), storage.nbytes(), places.slab())) {
        const auto offset = static_cast<uint64_t>(static_cast<const std::byte*>(storage.data()) -
                                                  places.slab().data());
        memory = {Whose::kOwn, 0, {offset, storage.nbytes()}};
      } else {
        return not_again("a result is not where its plan says");
      }
      const auto known = std::ranges::find(made.memories_, memory);
      const auto index = static_cast<size_t>(known - made.memories_.begin());
      if (known == made.memories_.end()) made.memories_.push_back(memory);
      made.values_.push_back({id, tensor.scalar_type(), at::DimVector(tensor.sizes()),
                              at::DimVector(tensor.strides()), tensor.storage_offset(), index});
    }
  }
  return made;
}

void Made::put_into(Frame& frame, std::span<const c10::Storage> storages, Replayer& places) const {
  std::vector<c10::Storage> memories(memories_.size());
  std::vector<Placement> own;
  for (size_t i = 0; i < memories.size(); ++i) {
    const Memory& memory = memories_[i];
    if (memory.whose == Whose::kBound) memories[i] = storages[memory.index];
    if (memory.whose == Whose::kValue) memories[i] = frame.values[memory.index].storage();
    if (memory.whose == Whose::kOwn) own.push_back(memory.place);
  }
  for (const srg::ValueId id : gone_) frame.values[id].reset();
  places.go_on_at(next_, own, peak_live_bytes_);
  for (size_t i = 0; i < memories.size(); ++i) {
    if (memories_[i].whose != Whose::kOwn) continue;
    const Placement& place = memories_[i].place;
    memories[i] = own_storage(places.slab().data() + place.offset, place.bytes);
  }
  for (const Value& value : values_) {
    frame.values[value.id] =
        view_of(memories[value.memory], value.type, value.sizes, value.strides, value.offset);
  }
}

Rehearsal::Rehearsal(const AdmittedGraph& program, const StepRange& range,
                     std::span<const c10::Storage> storages, const Frame& frame,
                     const Replayer& places)
    : program_(program),
      range_(range),
      storages_(storages),
      places_(places, heap_),
      alive_before_(places.alive().size()) {
  frame_.values.resize(frame.values.size());
  frame_.symbols = frame.symbols;
  frame_.device = frame.device;
  frame_.tokens_begin = frame.tokens_begin;
  frame_.tokens_end = frame.tokens_end;
}

Rehearsal::~Rehearsal() {
  drop();
}

Result<std::unique_ptr<Rehearsal>> Rehearsal::make(const AdmittedGraph& program,
                                                   const StepRange& range,
                                                   std::span<const c10::Storage> storages,
                                                   const Frame& frame, const Replayer& places) {
  std::unique_ptr<Rehearsal> made(new Rehearsal(program, range, storages, frame, places));
  for (const srg::ValueId id : values_into(steps_of(program, range))) {
    const Status stands = made->stand_for(id, frame.values[id]);
    if (!stands) return stands.error();
  }
  made->originals_.clear();
  return made;
}

// Of the run's own memory another storage gives back the same place, in the rehearsal's plan.
Status Rehearsal::stand_for(srg::ValueId id, const at::Tensor& tensor) {
  if (!tensor.defined() || !is_plain(tensor)) return not_again("a value is no plain tensor");
  c10::Storage storage = tensor.storage();
  if (!find_bound(storages_, storage)) {
    const auto known = std::ranges::find_if(
        originals_, [&](const c10::Storage& one) { return one.is_alias_of(storage); });
    if (known != originals_.end()) {
      storage = c10::Storage(owners_[static_cast<size_t>(known - originals_.begin())].first.lock());
    } else {
      if (storage.nbytes() == 0 || !is_within(storage.data(), storage.nbytes(), places_.slab())) {
        return not_again("a value is not where its plan says");
      }
      originals_.push_back(storage);
      storage = own_storage(storage.mutable_data(), storage.nbytes());
      owners_.emplace_back(storage.getWeakStorageImpl(), id);
    }
  }
  frame_.values[id] = view_of(storage, tensor.scalar_type(), tensor.sizes(), tensor.strides(),
                              tensor.storage_offset());
  return {};
}

Status Rehearsal::run(size_t& at) {
  const ScopedSink sink(places_, Where::kDevice);
  Stack stack;
  for (at = range_.begin; at < range_.end; ++at) {
    DJINN_CHECK(run_step(program_, program_.steps[at], storages_, frame_, stack));
  }
  return {};
}

Result<Made> Rehearsal::end() {
  auto made = Made::of(program_, range_, storages_, owners_, frame_, places_);
  drop();
  if (!places_.fits()) return not_again("its allocations are not those of its plan");
  const bool is_empty = places_.alive().size() + owners_.size() == alive_before_;
  if (!is_empty) return not_again("memory of it is kept that is no value's");
  return made;
}

void Rehearsal::drop() {
  const ScopedSink sink(places_, Where::kDevice);
  frame_.values.clear();
}

}  // namespace djinn::exec
