// SPDX-License-Identifier: Apache-2.0

// Domains: the trust domains that have been seen, and the worker of each on a device.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "daemon/djinnd/workers/spare_workers.h"
#include "daemon/djinnd/workers/worker_key.h"
#include "daemon/djinnd/workers/worker_supervisor.h"

namespace djinn::daemon {

class Domains {
 public:
  // Domains with a worker at the same time: each worker costs about 100 MiB of its own.
  static constexpr size_t kDomainsMax = 64;
  // Of these principals': whoever names them may name any. The others are left to users of the
  // machine.
  static constexpr size_t kDomainsOfPrincipals = 48;

  Domains(Loop& loop, const Clock& clock, SpareWorkers& spares, WorkerListener& listener,
          Events& events, uint64_t hang_timeout_ms)
      : loop_(loop),
        clock_(clock),
        spares_(spares),
        listener_(listener),
        events_(events),
        hang_timeout_ms_(hang_timeout_ms) {}

  using InUse = std::function<bool(WorkerKey)>;
  // Sees that there is such a worker. in_use says of another whether it may not be lost. Errors:
  // kLimitExceeded when all that there may be are in use.
  Result<WorkerSupervisor*> need(WorkerKey key, const InUse& in_use);
  // Null if it was never needed.
  [[nodiscard]] WorkerSupervisor* find(WorkerKey key) const;
  // Sends to the worker, if it is ready.
  void send(WorkerKey key, const ipc::WorkerCommand& command, std::span<const int> fds = {});
  // Answers what the worker asked memory for.
  void answer_grant(WorkerKey key, uint64_t request, const Status& granted);
  // Wakes the lane as WorkerSupervisor does.
  void wake_lane(WorkerKey key);
  [[nodiscard]] bool ready(WorkerKey key) const;
  // Whether there is one, or one is to come and workers of its device start.
  [[nodiscard]] bool is_to_be_ready(WorkerKey key) const;
  // Whether another worker of the device is warm, or none can be had.
  [[nodiscard]] bool has_spare(DeviceId device) const {
    return spares_.of(device).has_spare() || spares_fail(device);
  }
  // Workers of the device do not start any more.
  [[nodiscard]] bool spares_fail(DeviceId device) const { return spares_.of(device).fails(); }
  // Why, for clients.
  [[nodiscard]] Error spares_failure(DeviceId device) const { return spares_.of(device).failure(); }
  // What the last of them that started said of itself; null: none has yet.
  [[nodiscard]] const ChildReady* last_spare(DeviceId device) const {
    return spares_.of(device).last_ready();
  }

  [[nodiscard]] std::vector<std::pair<WorkerKey, WorkerSupervisor*>> all() const;
  // Ends those of a device that is lost.
  void abandon(DeviceId device);
  // Ends the workers of those that are not in use; how many those were.
  uint32_t retire_idle(const std::function<bool(WorkerKey)>& in_use);

 private:
  // Of those that compete with it: their number stays below that many, and an idle one gives way.
  Status make_place(WorkerKey key, const InUse& in_use, size_t most,
                    const std::function<bool(Owner)>& competes);

  Loop& loop_;
  const Clock& clock_;
  SpareWorkers& spares_;
  WorkerListener& listener_;
  Events& events_;
  uint64_t hang_timeout_ms_;
  std::map<WorkerKey, std::unique_ptr<WorkerSupervisor>> workers_;
};

}  // namespace djinn::daemon
