// SPDX-License-Identifier: Apache-2.0

// SpareKinds: how workers and loaders are started, as djinnd's options say.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "daemon/djinnd/host/kernel_store.h"
#include "daemon/djinnd/host/options.h"
#include "daemon/djinnd/loop/traffic.h"
#include "daemon/djinnd/workers/spare_pool.h"
#include "kernel/base/device_id.h"

namespace djinn::daemon {

// Loop's thread.
class SpareKinds {
 public:
  // Of a GPU, as djinnd knows it.
  using UuidOf = std::function<std::string(DeviceId)>;

  // kernels: what the host's workers measure and are given. workers, loaders: the traffic with all
  // of the kind. What is given outlives this, which outlives the pools that it describes.
  SpareKinds(const Options& options, KernelStore& kernels, Traffic& workers, Traffic& loaders,
             UuidOf uuid_of)
      : options_(options),
        kernels_(kernels),
        worker_traffic_(workers),
        loader_traffic_(loaders),
        uuid_of_(std::move(uuid_of)) {}

  [[nodiscard]] SparePool::Kind workers(DeviceId device);
  [[nodiscard]] SparePool::Kind loaders();

 private:
  [[nodiscard]] ChildProgram worker_program(DeviceId device);
  [[nodiscard]] ChildProgram cuda_worker_program(DeviceId device) const;

  const Options& options_;
  KernelStore& kernels_;
  Traffic& worker_traffic_;
  Traffic& loader_traffic_;
  const UuidOf uuid_of_;
  uint64_t workers_started_ = 0;
};

}  // namespace djinn::daemon
