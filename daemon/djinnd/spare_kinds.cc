// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/spare_kinds.h"

#include <optional>
#include <string>
#include <variant>

#include "ipc/codec/control_codec.h"

namespace djinn::daemon {
namespace {

// The next spare worker starts after this pause, because a domain that just lost its worker needs
// the cores more.
constexpr uint64_t kNextWorkerAfterMs = 100;
// In this time a loader may find that a model is resident, and then it comes back as a spare.
constexpr uint64_t kNextLoaderAfterMs = 10;

std::optional<ChildReady> read_worker_ready(const ipc::Datagram& message) {
  const auto event = ipc::decode_worker_event(message.bytes);
  if (!event.ok()) return std::nullopt;
  const auto* ready = std::get_if<ipc::WorkerReady>(&event.value().body);
  if (ready == nullptr) return std::nullopt;
  return ChildReady{ready->threads, ready->landlock_abi, ready->seccomp, ready->isa,
                    ready->kernels};
}

std::optional<ChildReady> read_loader_ready(const ipc::Datagram& message) {
  const auto event = ipc::decode_loader_event(message.bytes);
  if (!event.ok()) return std::nullopt;
  const auto* ready = std::get_if<ipc::LoaderReady>(&event.value().body);
  if (ready == nullptr) return std::nullopt;
  return ChildReady{0, ready->landlock_abi, ready->seccomp};
}

}  // namespace

SparePool::Kind SpareKinds::workers(DeviceId device) {
  return {"worker",
          ErrorCode::kWorkerLost,
          kNextWorkerAfterMs,
          [this, device] { return worker_program(device); },
          [this, device](const ipc::Datagram& message) {
            auto ready = read_worker_ready(message);
            const bool measures = device == kHostDevice && options_.measures_kernels;
            const auto level = ready ? isa_level_of(ready->isa) : std::nullopt;
            if (level && ready->kernels && measures) kernels_.take(*level, *ready->kernels);
            return ready;
          },
          worker_traffic_,
          device.kind == DeviceKind::kCuda};
}

SparePool::Kind SpareKinds::loaders() {
  return {"loader",           ErrorCode::kLoaderLost,
          kNextLoaderAfterMs, [this] { return ChildProgram{options_.loader, {}, {}, true}; },
          &read_loader_ready, loader_traffic_};
}

// Threads that spin for long take cores from everybody else. libgomp reads these variables when it
// is loaded, so they must be in the environment. If a host's settings bound threads to cores, those
// of all users would share the same ones, and a confined worker may not change that.
ChildProgram SpareKinds::worker_program(DeviceId device) {
  if (device.kind == DeviceKind::kCuda) return cuda_worker_program(device);
  const uint64_t memory_bytes =
      device == kTestDevice ? options_.test_device_bytes : options_.memory_bytes;
  ChildProgram program{
      device == kTestDevice ? options_.test_device_worker : options_.worker,
      {"--device", text_of(device), "--threads", std::to_string(options_.threads), "--policy",
       std::string(name_of(options_.policy)), "--isa", std::string(name_of(options_.isa)),
       "--memory-bytes", std::to_string(memory_bytes)},
      {"GOMP_SPINCOUNT=5000", "OMP_DYNAMIC=false", "OMP_PROC_BIND=false",
       "OMP_NUM_THREADS=" + std::to_string(options_.threads)}};
  if (device == kHostDevice && options_.measures_kernels) {
    const KernelTable* const known = kernels_.table();
    program.arguments.insert(program.arguments.end(),
                             {"--kernels", known != nullptr ? text_of(*known) : "measure",
                              "--kernels-isa", std::string(name_of(kernels_.level()))});
  }
  const bool first = workers_started_++ == 0;
  if (options_.test_fault_at > 0 && (first || options_.test_fault_every)) {
    program.arguments.insert(program.arguments.end(),
                             {"--fault-at", std::to_string(options_.test_fault_at)});
  }
  if (options_.test_pal_fault_at > 0 && first) {
    program.arguments.insert(program.arguments.end(),
                             {"--pal-fault-at", std::to_string(options_.test_pal_fault_at)});
  }
  return program;
}

// It sees its own GPU alone, by the number that its mover knows that by, and compares the UUID:
// numbers may change as devices come and go. The host's memory bounds what it takes there.
ChildProgram SpareKinds::cuda_worker_program(DeviceId device) const {
  return {
      .path = options_.cuda_worker,
      .arguments = {"--device", text_of(device), "--uuid", uuid_of_(device), "--policy",
                    std::string(name_of(options_.policy)), "--memory-bytes",
                    std::to_string(options_.memory_bytes)},
      .environment = {"CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_CACHE_DISABLE=1",
                      "CUDA_VISIBLE_DEVICES=" + std::to_string(device.index), "OMP_NUM_THREADS=1"},
      .withheld = {"CUDA_VISIBLE_DEVICES", "CUDA_MPS_"}};
}

}  // namespace djinn::daemon
