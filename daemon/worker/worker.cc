// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/worker.h"

#include <fmt/format.h>
#include <stdio.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <future>

#include "daemon/child/channel.h"
#include "daemon/child/confinement.h"
#include "daemon/child/memory_bound.h"
#include "daemon/worker/admission_mark.h"
#include "daemon/worker/control_loop.h"
#include "daemon/worker/heap.h"
#include "daemon/worker/slab.h"
#include "ipc/build_identity.h"
#include "ipc/exit_status.h"
#include "kernel/base/checked.h"
#include "kernel/base/isa_level.h"
#include "kernel/base/kernel_table.h"
#include "kernel/pal/faulty_pal.h"

namespace djinn::worker {
namespace {

struct Options {
  std::string build;
  int channel_fd = -1;
  std::string device;
  std::string uuid;
  int threads = 1;
  SchedulePolicy policy = SchedulePolicy::kFair;
  IsaLevel isa = kHighestIsa;
  std::string kernels;
  std::string kernels_isa;
  uint64_t memory_bytes = UINT64_MAX;
  uint64_t fault_at = 0;
  uint64_t pal_fault_at = 0;
};

// This is for private memory beside the granted heap: graphs and plans, what libraries take for
// themselves (oneDNN packs a weight matrix), stacks and malloc's arenas of the threads to come.
constexpr uint64_t kUngrantedBytes = uint64_t{512} << 20;
constexpr uint64_t kUngrantedBytesPerThread = uint64_t{32} << 20;

// The heap cannot be granted more than the device has. Beyond that the kernel refuses, so an
// operator that takes memory past the grants fails alone.
Status bound_memory(const Options& options) {
  const uint64_t ungranted =
      kUngrantedBytes + static_cast<uint64_t>(options.threads) * kUngrantedBytesPerThread;
  return child::bound_private_memory(
      checked_add(options.memory_bytes, ungranted).value_or(UINT64_MAX));
}

Result<std::unique_ptr<Device>> open_device(const Options& options, Grants& grants,
                                            const OpenDevice& open) {
  const auto device = device_from(options.device);
  if (!device) {
    return Error{ErrorCode::kInvalidArgument, "'" + options.device + "' is no device."};
  }
  DJINN_TRY(auto opened, open(*device, grants));
  DJINN_TRY(const std::string uuid, opened->uuid());
  if (options.uuid.empty() || uuid.empty() || uuid == options.uuid) return opened;
  fmt::print(stderr, "djinn-worker: {} is {} here, and djinnd has {} in mind.\n", options.device,
             uuid, options.uuid);
  // At once, because djinnd kills who closes the channel, and would not hear the status.
  ::_exit(ipc::kOtherDeviceStatus);
}

// In place of a table.
constexpr std::string_view kMeasure = "measure";

// A table of workers whose instructions are others says nothing of this one's.
bool is_measured_here(const Options& options, const exec::Executor& executor) {
  const bool has_table = !options.kernels.empty() && options.kernels != kMeasure;
  const bool is_others = !options.kernels_isa.empty() && options.kernels_isa != executor.isa();
  return options.kernels == kMeasure || (has_table && is_others);
}

// Takes the table that djinnd gave, if it did.
Status take_kernels(const Options& options, exec::Executor& executor) {
  const bool has_table = executor.kernels() && !options.kernels.empty();
  if (!has_table || is_measured_here(options, executor)) return {};
  DJINN_TRY(const KernelTable table, kernel_table_of(options.kernels));
  executor.take_kernels(table);
  return {};
}

exec::LaneOptions lane_options_of(const Options& options, exec::HeapOwner& heap, Slab& slab) {
  exec::LaneOptions lane_options;
  lane_options.threads = options.threads;
  lane_options.heap = &heap;
  lane_options.grow_slab = [&slab](uint64_t bytes, const exec::OnProgress& on_progress) {
    return slab.grow(bytes, on_progress);
  };
  return lane_options;
}

Status serve(const Options& options, child::Role role, const OpenDevice& open) {
  DJINN_CHECK(child::become_child());
  child::Channel channel{Fd(options.channel_fd)};
  const SystemClock clock;
  gc::FaultPoints faults(options.fault_at);
  Outbox outbox(channel);
  std::unique_ptr<LaneLoop> loop;
  Waits waits([&loop] { loop->wake(); });
  Grants grants(outbox, waits);
  DJINN_TRY(const auto device, open_device(options, grants, open));
  exec::Executor& executor = device->executor();
  pal::FaultyPal faulty(device->pal());
  faulty.fail_call(options.pal_fault_at, {ErrorCode::kOutOfMemory, "A test made this call fail."});
  pal::DevicePal& pal = options.pal_fault_at > 0 ? faulty : device->pal();
  executor.limit_isa(options.isa);
  DJINN_CHECK(take_kernels(options, executor));
  executor.warm_up(1);  // more would start a thread before the confinement
  AdmissionMark::install();
  DJINN_CHECK(bound_memory(options));
  DJINN_TRY(const child::Confinement confinement, child::confine(role));

  Slab slab(pal, grants);
  GrantedHeap heap(grants);
  exec::HeapOwner& heap_owner = device->heap() != nullptr ? *device->heap() : heap;
  DJINN_TRY(const auto lane, executor.make_lane(lane_options_of(options, heap_owner, slab)));
  DJINN_TRY(loop, LaneLoop::make(executor, *lane, clock, {waits, grants, slab, heap},
                                 options.policy, [&](SessionId id, const Error& error) {
                                   outbox.send({ipc::SessionBroken{id, error.code, error.message}});
                                 }));
  SequencePager pager(grants, outbox, waits);
  loop->on_model_wanted([&](ModelId model) { outbox.send({ipc::ModelWanted{model}}); });
  loop->start(pager);
  std::promise<void> warm;
  loop->post([&](LaneLoop::State&) {
    executor.warm_up(options.threads);
    if (is_measured_here(options, executor)) executor.measure_kernels(options.threads);
    warm.set_value();
  });
  warm.get_future().wait();
  loop->post([&](LaneLoop::State&) { device->begin(); });

  outbox.send(
      {ipc::WorkerReady{static_cast<uint32_t>(options.threads), confinement.landlock_abi,
                        confinement.seccomp, std::string(executor.isa()), executor.kernels()}});
  ControlLoop control({channel, outbox, grants, *loop, faults, pal, pager, executor, clock});
  Status ended = control.run();
  grants.close();
  loop->stop();
  return ended;
}

}  // namespace

int run_worker(int argc, char** argv, child::Role role, const OpenDevice& open) {
  Options options;
  std::string policy(name_of(options.policy));
  std::string isa(name_of(options.isa));
  CLI::App app("djinn-worker: runs the graphs of one trust domain; djinnd starts it");
  app.add_option(ipc::kBuildOption, options.build, "build of djinnd")->required();
  app.add_option("--channel-fd", options.channel_fd, "socket to djinnd")->required();
  app.add_option("--device", options.device, "whose memory it computes on")->required();
  app.add_option("--uuid", options.uuid, "of the device, as djinnd knows it");
  app.add_option("--threads", options.threads, "threads of the lane")->check(CLI::Range(1, 1024));
  app.add_option("--policy", policy, "order of steps: fair or fifo");
  app.add_option("--isa", isa, "level of instructions of our own kernels, at most");
  app.add_option("--kernels", options.kernels,
                 "what products give here: a table of another worker's, or \"measure\"");
  app.add_option("--kernels-isa", options.kernels_isa, "level of the worker that measured those");
  app.add_option("--memory-bytes", options.memory_bytes, "what djinnd may grant in all");
  app.add_option("--fault-at", options.fault_at, "die at this fault point (tests)");
  app.add_option("--pal-fault-at", options.pal_fault_at, "fail this call of the pal (tests)");
  CLI11_PARSE(app, argc, argv);
  const auto known = schedule_policy_of(policy);
  if (!known) {
    fmt::print(stderr, "djinn-worker: '{}' is no policy.\n", policy);
    return 1;
  }
  options.policy = *known;
  const auto level = isa_level_of(isa);
  if (!level) {
    fmt::print(stderr, "djinn-worker: '{}' is no level of instructions.\n", isa);
    return 1;
  }
  options.isa = *level;

  const Status ended = serve(options, role, open);
  // The channel closing is how djinnd ends a worker.
  if (ended.error().code == ErrorCode::kDisconnected) return 0;
  fmt::print(stderr, "djinn-worker: {}\n", ended.error().message);
  return 1;
}

}  // namespace djinn::worker
