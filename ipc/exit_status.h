// SPDX-License-Identifier: Apache-2.0

// What djinnd's children say by their exit status. A worker says what it was doing as it crashed:
// only it knows which of its threads did. A mover, or a GPU's worker, says that its device is lost,
// a GPU's worker that its device is another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace djinn::ipc {

// Where a worker looks at graphs: one at a time at each.
enum class AdmissionDesk : uint8_t { kQuick, kLong };
inline constexpr size_t kAdmissionDesks = 2;

// Of a crash of the thread of a desk: from EX_SOFTWARE of sysexits.h on, which nothing else in a
// child gives.
constexpr int status_of_crash_at(AdmissionDesk desk) {
  return 70 + static_cast<int>(desk);
}
constexpr std::optional<AdmissionDesk> desk_of_crash(int status) {
  for (const AdmissionDesk desk : {AdmissionDesk::kQuick, AdmissionDesk::kLong}) {
    if (status == status_of_crash_at(desk)) return desk;
  }
  return std::nullopt;
}

// Of a child that can do nothing more with its device, since the driver answers every call with the
// same error from now on: EX_OSFILE of sysexits.h.
inline constexpr int kDeviceLostStatus = 72;

// Of a child that does not find the device that djinnd named: EX_CONFIG of sysexits.h.
inline constexpr int kOtherDeviceStatus = 78;

}  // namespace djinn::ipc
