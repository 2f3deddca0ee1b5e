// SPDX-License-Identifier: Apache-2.0

// NvmlApi: what djinnd asks NVIDIA's management library: the driver's version, and whether a device
// has had a fault that only a reset ends. As DriverApi: opened at run time, with declarations of
// ours. No header of theirs comes with the tests' Python packages, so nothing compares the two.
//
// The names are the library's, without `nvml`; the documentation is NVIDIA's "NVML API Reference".
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kernel/base/result.h"

namespace djinn::pal::cuda {

// nvmlReturn_t. Only those that are told apart.
enum class NvmlCode : int { kSuccess = 0, kNotSupported = 3, kTimeout = 10, kGpuIsLost = 15 };

using NvmlDevice = struct NvmlDeviceTag*;
using NvmlEventSet = struct NvmlEventSetTag*;

// nvmlEventData_t
struct NvmlEvent {
  NvmlDevice device = nullptr;
  unsigned long long type = 0;
  unsigned long long data = 0;  // an Xid's number
  unsigned gpu_instance = 0;
  unsigned compute_instance = 0;
};

inline constexpr unsigned long long kNvmlXidEvent = 8;  // nvmlEventTypeXidCriticalError

#define DJINN_NVML_FUNCTIONS(F)                                                              \
  F(init, nvmlInit_v2, ())                                                                   \
  F(shutdown, nvmlShutdown, ())                                                              \
  F(driver_version, nvmlSystemGetDriverVersion, (char* version, unsigned bytes))             \
  F(device_by_uuid, nvmlDeviceGetHandleByUUID, (const char* uuid, NvmlDevice* device))       \
  F(device_minor, nvmlDeviceGetMinorNumber, (NvmlDevice device, unsigned* minor))            \
  F(event_set_create, nvmlEventSetCreate, (NvmlEventSet * set))                              \
  F(register_events, nvmlDeviceRegisterEvents,                                               \
    (NvmlDevice device, unsigned long long types, NvmlEventSet set))                         \
  F(event_set_wait, nvmlEventSetWait_v2, (NvmlEventSet set, NvmlEvent * event, unsigned ms)) \
  F(event_set_free, nvmlEventSetFree, (NvmlEventSet set))

// Every pointer is set. The library stays loaded as long as the process lives.
struct NvmlApi {
#define DJINN_NVML_MEMBER(name, symbol, arguments) NvmlCode(*name) arguments = nullptr;
  DJINN_NVML_FUNCTIONS(DJINN_NVML_MEMBER)
#undef DJINN_NVML_MEMBER
};

// Errors: kNotFound where there is no such library, kUnsupported where it lacks a function.
[[nodiscard]] Result<NvmlApi> load_nvml();

// Whether a device needs a reset after a fault of this number, by NVIDIA's "Xid Errors". Others end
// one process, or are repaired by the driver.
[[nodiscard]] bool needs_reset(uint64_t xid) noexcept;

// Watches one device.
class DeviceHealth {
 public:
  // uuid: as CudaPal::names() has it. Errors: those of load_nvml(); kSystem.
  static Result<std::unique_ptr<DeviceHealth>> watch(const NvmlApi& api, const std::string& uuid);
  ~DeviceHealth();
  DeviceHealth(const DeviceHealth&) = delete;
  DeviceHealth& operator=(const DeviceHealth&) = delete;

  [[nodiscard]] const std::string& driver_version() const { return driver_version_; }
  // N of the device's node /dev/nvidiaN; nothing where NVML does not say, as of a part of one.
  [[nodiscard]] std::optional<uint32_t> minor() const { return minor_; }
  // The fault that needs a reset and was told since watch(); 0: none. Does not wait.
  [[nodiscard]] uint32_t fatal_xid();

 private:
  explicit DeviceHealth(const NvmlApi& api) : api_(api) {}
  Status open(const std::string& uuid);

  const NvmlApi api_;
  bool initialised_ = false;
  NvmlEventSet events_ = nullptr;  // null where the device tells of none
  std::string driver_version_;
  std::optional<uint32_t> minor_;
  uint32_t fatal_xid_ = 0;
};

}  // namespace djinn::pal::cuda
