// SPDX-License-Identifier: Apache-2.0
#include "kernel/pal/cuda/staging.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>

namespace djinn::pal::cuda {
namespace {

DevicePtr address_in(const Reservation& reservation, uint64_t offset) {
  return reinterpret_cast<DevicePtr>(reservation.data()) + offset;
}

Status read_whole(const Fd& file, uint64_t from, std::span<std::byte> to) {
  while (!to.empty()) {
    const ssize_t count = ::pread(file.get(), to.data(), to.size(), static_cast<off_t>(from));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error("read what is to be uploaded", errno);
    if (count == 0) return Error{ErrorCode::kIo, "what is to be uploaded ends too early"};
    from += static_cast<uint64_t>(count);
    to = to.subspan(static_cast<size_t>(count));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Staging>> Staging::make(CudaPal& pal) {
  std::unique_ptr<Staging> staging(new Staging(pal));
  DJINN_CHECK(staging->allocate());
  return staging;
}

Status Staging::allocate() {
  DJINN_CHECK(pal_.enter());
  for (Slot& slot : slots_) {
    void* data = nullptr;
    DJINN_CHECK(
        pal_.judge("pin memory", pal_.api_.mem_host_alloc(&data, kSlotBytes, kHostAllocPortable)));
    slot.data = static_cast<std::byte*>(data);
    DJINN_CHECK(
        pal_.judge("make an event", pal_.api_.event_create(&slot.event, kEventDisableTiming)));
  }
  return {};
}

// If the driver refuses, the device is lost to this process, as of everything that it gives back.
Staging::~Staging() {
  for (const Slot& slot : slots_) {
    if (slot.event != nullptr) (void)pal_.judge_release(pal_.api_.event_destroy(slot.event));
    if (slot.data != nullptr) (void)pal_.judge_release(pal_.api_.mem_free_host(slot.data));
  }
}

Status Staging::wait(const Slot& slot) {
  return pal_.judge("wait for a copy", pal_.api_.event_synchronize(slot.event));
}

// After an error copies may be under way that nobody waits for one by one.
Status Staging::finish(const Status& before) {
  if (before) return {};
  if (before.error().code != ErrorCode::kDeviceLost) {
    DJINN_CHECK(pal_.judge_release(pal_.api_.ctx_synchronize()));
  }
  return before.error();
}

Status Staging::upload(const Fd& file, uint64_t from, Reservation& reservation, uint64_t to,
                       uint64_t bytes) {
  DJINN_CHECK(reservation.check_access(to, bytes, Access::kReadWrite));
  DJINN_CHECK(pal_.enter());
  return finish(submit_uploads(file, from, address_in(reservation, to), bytes));
}

Status Staging::submit_uploads(const Fd& file, uint64_t from, DevicePtr to, uint64_t bytes) {
  size_t turn = 0;
  for (uint64_t done = 0; done < bytes; ++turn) {
    const Slot& slot = slots_[turn % kSlots];
    if (turn >= kSlots) DJINN_CHECK(wait(slot));
    const uint64_t count = std::min(bytes - done, kSlotBytes);
    DJINN_CHECK(read_whole(file, from + done, {slot.data, count}));
    DJINN_CHECK(pal_.judge("copy to an extent",
                           pal_.api_.memcpy_htod_async(to + done, slot.data, count, pal_.stream_)));
    DJINN_CHECK(pal_.judge("record a copy", pal_.api_.event_record(slot.event, pal_.stream_)));
    done += count;
  }
  return pal_.judge("wait for the copies", pal_.api_.stream_synchronize(pal_.stream_));
}

Status Staging::download(const Reservation& reservation, uint64_t from, uint64_t bytes,
                         const std::function<void(std::span<const std::byte>)>& read) {
  DJINN_CHECK(reservation.check_access(from, bytes, Access::kRead));
  DJINN_CHECK(pal_.enter());
  return finish(read_slots(address_in(reservation, from), bytes, read));
}

Status Staging::submit_download(const Slot& slot, DevicePtr from, uint64_t bytes) {
  DJINN_CHECK(pal_.judge("copy from an extent",
                         pal_.api_.memcpy_dtoh_async(slot.data, from, bytes, pal_.stream_)));
  return pal_.judge("record a copy", pal_.api_.event_record(slot.event, pal_.stream_));
}

Status Staging::read_slots(DevicePtr from, uint64_t bytes,
                           const std::function<void(std::span<const std::byte>)>& read) {
  const auto count_at = [bytes](uint64_t at) { return std::min(bytes - at, kSlotBytes); };
  uint64_t asked = 0;
  for (uint64_t done = 0; done < bytes; done += count_at(done)) {
    for (; asked < bytes && asked < done + kSlots * kSlotBytes; asked += count_at(asked)) {
      DJINN_CHECK(
          submit_download(slots_[asked / kSlotBytes % kSlots], from + asked, count_at(asked)));
    }
    const Slot& slot = slots_[done / kSlotBytes % kSlots];
    DJINN_CHECK(wait(slot));
    read({slot.data, count_at(done)});
  }
  return {};
}

}  // namespace djinn::pal::cuda
