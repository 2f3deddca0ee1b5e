// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/admitter.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "daemon/worker/admission_mark.h"
#include "ipc/codec/control_codec.h"
#include "ipc/limits.h"
#include "kernel/base/assert.h"

namespace djinn::worker {
namespace {

// An admission that goes on says so after this much processor time, so silence means that one part
// of the graph is slow.
constexpr uint64_t kSignEveryMs = 100;

std::vector<ipc::OutputShape> shapes_of(const exec::Program& program) {
  std::vector<ipc::OutputShape> shapes;
  for (const exec::OutputInfo& output : program.outputs()) {
    shapes.push_back({output.name, output.dtype, output.sizes_known, output.sizes});
  }
  return shapes;
}

}  // namespace

Admitter::Admitter(const Parts& parts) : parts_(parts) {
  for (const Looked which : {Looked::kQuick, Looked::kLong}) {
    at(which).thread = std::thread([this, which] { work(which); });
  }
}

Admitter::~Admitter() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    for (Desk& desk : desks_) desk.given_up = true;
  }
  for (Desk& desk : desks_) {
    desk.changed.notify_all();
    desk.thread.join();
  }
}

void Admitter::admit(Order order) {
  DJINN_ASSERT(order.program.valid() && order.graph);
  Desk& desk = at(Looked::kQuick);
  {
    const std::lock_guard lock(mutex_);
    desk.jobs.push_back({std::move(order)});
  }
  desk.changed.notify_all();
}

void Admitter::drop(ProgramId program) {
  const std::lock_guard lock(mutex_);
  for (Desk& desk : desks_) {
    std::erase_if(desk.jobs, [&](const Job& job) { return job.order.program == program; });
    if (desk.running && desk.running->order.program == program) desk.given_up = true;
  }
}

void Admitter::drop_programs_of(ModelId model, std::function<void()> cleared) {
  DJINN_ASSERT(cleared);
  // `cleared` is called when the last who holds this lets go.
  const std::shared_ptr<void> last(nullptr, [cleared = std::move(cleared)](void*) { cleared(); });
  const std::lock_guard lock(mutex_);
  for (Desk& desk : desks_) {
    std::erase_if(desk.jobs, [&](const Job& job) { return job.is_of(model); });
    if (!desk.running || !desk.running->is_of(model)) continue;
    desk.given_up = true;
    desk.cleared = last;
  }
}

void Admitter::need(ProgramId program) {
  const std::lock_guard lock(mutex_);
  for (Desk& desk : desks_) {
    for (Job& job : desk.jobs) job.is_needed |= job.order.program == program;
    if (desk.running) desk.running->is_needed |= desk.running->order.program == program;
  }
}

void Admitter::work(Looked which) {
  Desk& desk = at(which);
  std::unique_lock lock(mutex_);
  for (;;) {
    desk.changed.wait(lock, [&] { return closing_ || !desk.jobs.empty(); });
    if (closing_) return;
    const auto needed = std::ranges::find(desk.jobs, true, &Job::is_needed);
    const auto next = needed != desk.jobs.end() ? needed : desk.jobs.begin();
    desk.running = std::move(*next);
    desk.jobs.erase(next);
    desk.given_up = false;
    lock.unlock();
    finish(which, attempt(desk.running->order, which));
    lock.lock();
  }
}

std::optional<Result<AdmittedProgram>> Admitter::attempt(const Order& order, Looked which) {
  parts_.outbox.send({ipc::ProgramLookedAt{order.program, which}});
  const AdmissionMark mark(which);
  Attempt attempt{order, which, {parts_.clock, order.cpu_ms_max}, kSignEveryMs * 1'000'000};
  exec::AdmissionLimits limits = admission_limits();
  limits.go_on = [this, &attempt] { return go_on(attempt); };
  auto admitted = admit_graph(parts_.executor, *order.graph, order.model, limits);
  if (attempt.takes_long) return std::nullopt;
  return admitted;
}

Status Admitter::go_on(Attempt& attempt) {
  const Order& order = attempt.order;
  if (at(attempt.desk).given_up.load(std::memory_order_relaxed)) {
    return Error{ErrorCode::kCancelled, "The program was given up."};
  }
  if (!attempt.budget.is_due()) return {};
  DJINN_TRY(const uint64_t used_ns, attempt.budget.used_ns());
  if (attempt.desk == Looked::kQuick && used_ns > kQuickMs * 1'000'000) {
    attempt.takes_long = true;
    return Error{ErrorCode::kTimeout, "It is looked at where that may take long."};
  }
  if (used_ns >= attempt.sign_due_ns) {
    attempt.sign_due_ns = used_ns + kSignEveryMs * 1'000'000;
    parts_.outbox.send({ipc::ProgramLookedAt{order.program, attempt.desk}});
  }
  return {};
}

void Admitter::finish(Looked which, std::optional<Result<AdmittedProgram>> admitted) {
  parts_.outbox.send({ipc::ProgramLookedAt{{}, which}});
  Desk& desk = at(which);
  std::optional<Job> ended;
  std::shared_ptr<void> cleared;
  bool is_wanted = false;
  {
    const std::lock_guard lock(mutex_);
    is_wanted = !desk.given_up;
    ended = std::exchange(desk.running, std::nullopt);
    cleared = std::exchange(desk.cleared, nullptr);
    if (is_wanted && !admitted) {
      DJINN_ASSERT(which == Looked::kQuick);
      at(Looked::kLong).jobs.push_back(*std::move(ended));
      at(Looked::kLong).changed.notify_all();
      return;
    }
  }
  const ProgramId id = ended->order.program;
  ended.reset();
  if (is_wanted) {
    tell(id, *std::move(admitted));
  } else {
    admitted.reset();  // its model is let go
  }
}

void Admitter::tell(ProgramId id, Result<AdmittedProgram> admitted) {
  if (!admitted) {
    ipc::ProgramRefused refused;
    refused.program = id;
    refused.code = admitted.error().code;
    refused.message = admitted.error().message;
    parts_.lane.post([outbox = &parts_.outbox, refused](LaneLoop::State& state) {
      state.programs.refuse_program(refused.program);
      outbox->send({refused});
    });
    return;
  }
  const exec::Program& program = *admitted->program;
  const ipc::ProgramAdded added{id,
                                shapes_of(program),
                                program.activation_bytes_estimate(),
                                ipc::showable_name(program.graph().name),
                                admitted->workload,
                                program.fast_nodes(),
                                program.graph().numerics != srg::Numerics::kExact};
  if (ipc::encode(ipc::WorkerEvent{added}).size() > limits::kControlMessageBytes) {
    return tell(id, Error{ErrorCode::kLimitExceeded,
                          fmt::format("The names and sizes of the graph's {} outputs are more than "
                                      "an answer holds (64 KiB). Define fewer outputs, or shorter "
                                      "names.",
                                      added.outputs.size())});
  }
  auto shared = std::make_shared<AdmittedProgram>(*std::move(admitted));
  parts_.lane.post([outbox = &parts_.outbox, shared, added](LaneLoop::State& state) {
    state.programs.add_program(added.program, std::move(*shared));
    outbox->send({added});
  });
}

}  // namespace djinn::worker
