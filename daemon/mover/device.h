// SPDX-License-Identifier: Apache-2.0

// Device: the GPU that a mover works on, opened in one go or refused in one sentence.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernel/base/result.h"
#include "kernel/pal/cuda/cuda_pal.h"
#include "kernel/pal/cuda/nvml_api.h"
#include "kernel/pal/cuda/staging.h"

namespace djinn::mover {

struct Device {
  std::unique_ptr<pal::cuda::CudaPal> pal;
  std::unique_ptr<pal::cuda::Staging> staging;
  std::unique_ptr<pal::cuda::DeviceHealth> health;  // null: there is no NVML
  pal::cuda::DeviceNames names;

  // The device of this ordinal, in the order of the PCI bus. Errors: those of load_driver() and
  // CudaPal::make(), each with a message of its own.
  static Result<Device> open(int ordinal);

  // The driver's version as its maker counts, or CUDA's where NVML does not say.
  [[nodiscard]] std::string driver_version() const;
};

// The driver's nodes under a directory, which exporting an extent opens again: of GPUs, whose names
// end with a number, only that of this minor number, where it is known.
[[nodiscard]] std::vector<std::string> driver_nodes(std::optional<uint32_t> minor,
                                                    const std::string& directory = "/dev");

}  // namespace djinn::mover
