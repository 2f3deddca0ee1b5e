// SPDX-License-Identifier: Apache-2.0

// MetricsSnapshot: all that metrics tell, as plain numbers at one moment. The loop makes it, and
// never touches it again; the metrics' thread reads it.
//
// Counts are since djinnd's start, and never go down before its end.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "daemon/djinnd/events/events.h"
#include "daemon/djinnd/host/service.h"
#include "daemon/djinnd/loop/traffic.h"
#include "daemon/djinnd/programs/programs.h"
#include "daemon/djinnd/sessions/session.h"
#include "ipc/event_kind.h"
#include "ipc/messages.h"
#include "ipc/time_histogram.h"
#include "kernel/base/device_id.h"

namespace djinn::daemon {

// What a GPU's driver says of it, and what djinnd has copied there.
struct GpuSnapshot {
  uint64_t hardware_bytes = 0;
  uint64_t hardware_free_bytes = 0;
  uint64_t uploaded_bytes = 0;
};

// What is granted of one device's memory, and to whom.
struct DeviceSnapshot {
  DeviceId device;
  uint64_t limit_bytes = 0;
  uint64_t model_bytes = 0;  // granted to each kind of holder
  uint64_t load_bytes = 0;
  uint64_t session_bytes = 0;
  uint64_t slab_bytes = 0;
  uint64_t heap_bytes = 0;
  std::array<ipc::MemoryReport, 3> pools{};
  bool ready = true;         // its workers start; a GPU can be used
  uint64_t huge_bytes = 0;   // of the models there
  std::string huge_pages{};  // what the host allows; or empty
  std::optional<GpuSnapshot> gpu{};
};

struct MetricsSnapshot {
  uint64_t taken_ns = 0;       // monotonic
  uint64_t loop_delay_ns = 0;  // from the question for it to the loop's ear
  uint64_t started_wall_ns = 0;

  // --- honest answers to two questions; the text says why not, in a line
  bool healthy = true;  // the loop turns, and the books of granted memory balance
  std::string unhealthy_why;
  bool ready = true;  // healthy, and who connects now will be served
  std::string unready_why;
  bool draining = false;

  // --- sessions, memory, models
  std::array<uint64_t, ipc::kSessionStates> sessions{};
  uint64_t session_quota_bytes = 0;
  uint64_t stated_local_models = 0;  // by the clients of all sessions
  std::vector<DeviceSnapshot> devices;
  uint64_t memory_waiting = 0;  // requests, for memory of all of them
  std::array<uint64_t, ipc::kModelStates> models{};
  uint64_t models_pinned = 0;
  uint64_t model_leases = 0;
  uint64_t loads = 0;
  uint64_t loads_failed = 0;
  uint64_t load_bytes = 0;  // read from files
  uint64_t buffered_reads = 0;
  uint64_t compared_opens = 0;
  ipc::TimeHistogram load_time{};  // of loads that became models
  std::array<uint64_t, kEvictReasons> evictions{};
  uint64_t evicted_bytes = 0;

  // --- sequence groups
  std::array<uint64_t, kGroupPlaces> groups{};
  uint64_t groups_on_disk_bytes = 0;
  uint64_t spilled_bytes = 0;   // of all that went to disk
  uint64_t restored_bytes = 0;  // of all that came back

  // --- programs, workers
  std::array<uint64_t, 2> programs{};  // by ipc::ProgramState
  uint64_t program_graph_bytes = 0;
  Programs::Counts definitions{};
  std::array<uint64_t, 4> workers{};  // by ipc::WorkerState
  uint64_t worker_restarts = 0;
  ipc::WorkerStats counts{};  // of all domains

  // --- djinnd itself
  Traffic clients{};
  Traffic worker_traffic{};
  Traffic loader_traffic{};
  uint64_t kept_descriptors = 0;
  uint64_t kept_descriptors_max = 0;
  uint64_t models_not_kept = 0;
  uint64_t closing_descriptors = 0;
  uint64_t log_lost = 0;     // lines and journal messages
  uint64_t notify_lost = 0;  // words for systemd
  Service::Watchdog watchdog{};
  std::array<uint64_t, ipc::kEventKinds> events{};
};

static_assert(std::tuple_size_v<decltype(DeviceSnapshot::pools)> ==
              static_cast<size_t>(ipc::MemoryPool::kLanes) + 1);
static_assert(std::tuple_size_v<decltype(MetricsSnapshot::programs)> ==
              static_cast<size_t>(ipc::ProgramState::kAdmitted) + 1);
static_assert(std::tuple_size_v<decltype(MetricsSnapshot::workers)> ==
              static_cast<size_t>(ipc::WorkerState::kFailed) + 1);
// A program is counted by its phase, and told by its state.
static_assert(static_cast<size_t>(ProgramPhase::kAdmitted) ==
              static_cast<size_t>(ipc::ProgramState::kAdmitted));

}  // namespace djinn::daemon
