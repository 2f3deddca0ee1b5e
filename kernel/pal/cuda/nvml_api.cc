// SPDX-License-Identifier: Apache-2.0
#include "kernel/pal/cuda/nvml_api.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace djinn::pal::cuda {
namespace {

constexpr const char* kNvmlLibrary = "libnvidia-ml.so.1";

// What fell off the bus has no Xid that could still be read from it.
constexpr uint32_t kFellOffTheBus = 79;

// Memory with errors that cannot be repaired in use, a broken controller, link or bus.
constexpr std::array<uint64_t, 9> kFatalXids{48, 62, 64, 74, kFellOffTheBus, 95, 119, 120, 140};

Status expect(NvmlCode code, const char* what) {
  if (code == NvmlCode::kSuccess) return {};
  return Error{ErrorCode::kSystem,
               fmt::format("{}: NVML answers {}", what, static_cast<int>(code))};
}

}  // namespace

Result<NvmlApi> load_nvml() {
  void* const library = ::dlopen(kNvmlLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return Error{ErrorCode::kNotFound,
                 fmt::format("{} does not open ({})", kNvmlLibrary, ::dlerror())};
  NvmlApi api;
#define DJINN_NVML_FIND(name, symbol, arguments)                              \
  api.name = reinterpret_cast<decltype(api.name)>(::dlsym(library, #symbol)); \
  if (api.name == nullptr)                                                    \
    return Error{ErrorCode::kUnsupported, fmt::format("{} has no {}", kNvmlLibrary, #symbol)};
  DJINN_NVML_FUNCTIONS(DJINN_NVML_FIND)
#undef DJINN_NVML_FIND
  return api;
}

bool needs_reset(uint64_t xid) noexcept {
  return std::ranges::find(kFatalXids, xid) != kFatalXids.end();
}

Result<std::unique_ptr<DeviceHealth>> DeviceHealth::watch(const NvmlApi& api,
                                                          const std::string& uuid) {
  std::unique_ptr<DeviceHealth> health(new DeviceHealth(api));
  DJINN_CHECK(health->open(uuid));
  return health;
}

Status DeviceHealth::open(const std::string& uuid) {
  DJINN_CHECK(expect(api_.init(), "start NVML"));
  initialised_ = true;
  std::array<char, 80> version{};
  DJINN_CHECK(
      expect(api_.driver_version(version.data(), version.size()), "ask for the driver's version"));
  driver_version_ = version.data();
  NvmlDevice device = nullptr;
  DJINN_CHECK(expect(api_.device_by_uuid(uuid.c_str(), &device), "find the device"));
  unsigned minor = 0;
  if (api_.device_minor(device, &minor) == NvmlCode::kSuccess) minor_ = minor;
  NvmlEventSet events = nullptr;
  DJINN_CHECK(expect(api_.event_set_create(&events), "make a set of events"));
  events_ = events;
  const NvmlCode registered = api_.register_events(device, kNvmlXidEvent, events_);
  if (registered == NvmlCode::kNotSupported) {
    (void)api_.event_set_free(events_);
    events_ = nullptr;
    return {};
  }
  return expect(registered, "wait for faults of the device");
}

DeviceHealth::~DeviceHealth() {
  if (events_ != nullptr) (void)api_.event_set_free(events_);
  if (initialised_) (void)api_.shutdown();
}

uint32_t DeviceHealth::fatal_xid() {
  NvmlEvent event;
  while (events_ != nullptr && fatal_xid_ == 0) {
    const NvmlCode code = api_.event_set_wait(events_, &event, 0);
    if (code == NvmlCode::kGpuIsLost) fatal_xid_ = kFellOffTheBus;
    if (code != NvmlCode::kSuccess) break;
    const bool is_fatal = event.type == kNvmlXidEvent && needs_reset(event.data);
    if (is_fatal) fatal_xid_ = static_cast<uint32_t>(event.data);
  }
  return fatal_xid_;
}

}  // namespace djinn::pal::cuda
