// SPDX-License-Identifier: Apache-2.0

#include "daemon/mover/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

namespace djinn::mover {
namespace {

namespace fs = std::filesystem;

std::unique_ptr<pal::cuda::DeviceHealth> watch(const std::string& uuid) {
  auto health = [&]() -> Result<std::unique_ptr<pal::cuda::DeviceHealth>> {
    DJINN_TRY(const pal::cuda::NvmlApi api, pal::cuda::load_nvml());
    return pal::cuda::DeviceHealth::watch(api, uuid);
  }();
  if (health.ok()) return *std::move(health);
  fmt::print(stderr, "djinn-mover: nobody tells of faults of {}: {}\n", uuid,
             health.error().message);
  return nullptr;
}

}  // namespace

Result<Device> Device::open(int ordinal) {
  DJINN_TRY(const pal::cuda::DriverApi api, pal::cuda::load_driver());
  Device device;
  DJINN_TRY(device.pal, pal::cuda::CudaPal::make(api, ordinal));
  DJINN_TRY(device.names, device.pal->names());
  DJINN_TRY(device.staging, pal::cuda::Staging::make(*device.pal));
  device.health = watch(device.names.uuid);
  return device;
}

std::string Device::driver_version() const {
  if (health != nullptr) return health->driver_version();
  return fmt::format("CUDA {}.{}", names.cuda_version / 1000, names.cuda_version % 1000 / 10);
}

std::vector<std::string> driver_nodes(std::optional<uint32_t> minor, const std::string& directory) {
  constexpr std::string_view kDriver = "nvidia";
  std::vector<std::string> nodes;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(kDriver) || !entry.is_character_file(error)) continue;
    const std::string number = name.substr(kDriver.size());
    const bool is_of_gpu =
        !number.empty() && std::ranges::all_of(number, [](char c) { return c >= '0' && c <= '9'; });
    if (!is_of_gpu || !minor || number == std::to_string(*minor)) nodes.push_back(entry.path());
  }
  return nodes;
}

}  // namespace djinn::mover
