// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/memory/devices.h"

#include <algorithm>

#include "kernel/base/assert.h"

namespace djinn::daemon {

Devices::Devices(std::span<const DeviceMemory> memories, uint64_t session_quota_bytes,
                 const Quotas& quotas) {
  DJINN_ASSERT(!memories.empty());
  for (const DeviceMemory& one : memories) {
    const bool is_new = extents_.emplace(one.device, &one.extents).second;
    DJINN_ASSERT(is_new);
    auto& list = one.device.kind == DeviceKind::kCuda ? gpus_ : all_;
    list.push_back(std::make_unique<Memory>(one.device, one.bytes, session_quota_bytes, quotas));
  }
  DJINN_ASSERT(!all_.empty());
}

Memory* Devices::known(DeviceId device) const {
  for (const auto* const list : {&all_, &gpus_}) {
    const auto found =
        std::ranges::find_if(*list, [&](const auto& memory) { return memory->device() == device; });
    if (found != list->end()) return found->get();
  }
  return nullptr;
}

Memory& Devices::of(DeviceId device) const {
  Memory* const memory = known(device);
  DJINN_ASSERT(memory != nullptr);
  return *memory;
}

ExtentSource& Devices::extents_of(DeviceId device) const {
  const auto found = extents_.find(device);
  DJINN_ASSERT(found != extents_.end());
  return *found->second;
}

uint64_t Devices::total_bytes() const {
  uint64_t bytes = 0;
  for (const auto& memory : all_) bytes += memory->total_bytes();
  return bytes;
}

uint64_t Devices::granted_bytes() const {
  uint64_t bytes = 0;
  for (const auto& memory : all_) bytes += memory->granted_bytes();
  return bytes;
}

uint64_t Devices::held_by(std::initializer_list<vmu::HolderKind> kinds) const {
  uint64_t bytes = 0;
  for (const auto& memory : all_) {
    for (const vmu::HolderKind kind : kinds) bytes += memory->held_by(kind);
  }
  return bytes;
}

Memory* Devices::find(std::string_view device) const {
  if (device.empty()) return &first();
  const auto wanted = device_from(device);
  return wanted ? known(*wanted) : nullptr;
}

void Devices::set_session_quota(uint64_t bytes) {
  for (const auto& memory : all_) memory->set_session_quota(bytes);
  for (const auto& memory : gpus_) memory->set_session_quota(bytes);
}

void Devices::reconsider() const {
  for (const auto& memory : all_) memory->reconsider();
  for (const auto& memory : gpus_) memory->reconsider();
}

void Devices::freed() const {
  for (const auto& memory : all_) memory->freed();
  for (const auto& memory : gpus_) memory->freed();
}

Status Devices::check() const {
  for (const auto& memory : all_) DJINN_CHECK(memory->check());
  for (const auto& memory : gpus_) DJINN_CHECK(memory->check());
  return {};
}

}  // namespace djinn::daemon
