// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/simulation/processes.h"

#include <signal.h>
#include <sys/eventfd.h>

#include <utility>
#include <vector>

#include "daemon/djinnd/simulation/machine.h"
#include "kernel/base/assert.h"

namespace djinn::daemon::simulation {

void Processes::set_programs(Loop& loop, Make make) {
  loop_ = &loop;
  make_ = std::move(make);
}

Result<pid_t> Processes::start(const std::string& path, Fd channel) {
  if (machine_.fault(60)) return Error{ErrorCode::kSystem, "No process could be started."};
  const pid_t pid = ++last_pid_;
  Process& process = all_[pid];
  process.told = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  process.child = make_(path, pid, std::move(channel));
  machine_.tell("process {}: {} starts", pid, path);
  return pid;
}

Result<Fd> Processes::open_pidfd(pid_t pid) {
  if (machine_.fault(300)) return Error{ErrorCode::kSystem, "A child cannot be watched."};
  return all_.at(pid).told.duplicate();
}

void Processes::begin_end(Process& process, int status, uint64_t after_ms) {
  DJINN_ASSERT(process.child != nullptr && !process.ending);
  process.ending = true;
  process.status = status;
  process.child->end();
  const pid_t pid = process.child->pid();
  process.end = std::make_unique<Timer>(*loop_, [this, pid] { die(pid); });
  process.end->start_once(after_ms);
}

// A killed child that waits for a file system may take long to end.
void Processes::send_signal(pid_t pid, int signal) {
  const auto found = all_.find(pid);
  DJINN_ASSERT(found != all_.end());
  Process& process = found->second;
  if (signal != SIGKILL || process.child == nullptr) return;
  if (!process.ending) {
    begin_end(process, SIGKILL, machine_.fault(20) ? machine_.below(5000) : machine_.below(3));
    machine_.tell("process {}: killed", pid);
  }
  if (hurries_) die(pid);
}

void Processes::exit(pid_t pid, int status) {
  Process& process = all_.at(pid);
  if (process.ending) return;
  machine_.tell("process {}: ends", pid);
  begin_end(process, status, 0);
}

void Processes::die(pid_t pid) {
  Process& process = all_.at(pid);
  if (process.child == nullptr) return;
  process.end->stop();
  process.child.reset();
  machine_.tell("process {}: dead", pid);
  const bool is_seen = machine_.mistake() != Mistake::kDeathIsNotSeen || !machine_.one_in(8);
  if (is_seen || hurries_) ::eventfd_write(process.told.get(), 1);
}

int Processes::reap(pid_t pid) {
  Process& process = all_.at(pid);
  if (process.child != nullptr) {
    if (!process.ending) begin_end(process, SIGKILL, 0);
    die(pid);
  }
  const int status = process.status;
  auto reaped = std::make_unique<Process>(std::move(process));
  all_.erase(pid);
  loop_->dispose(std::move(reaped));  // its timer may be what led here
  return status;
}

uint64_t Processes::cpu_ns_of(pid_t pid) const {
  const auto found = all_.find(pid);
  return found == all_.end() || found->second.child == nullptr ? 0 : found->second.child->cpu_ns();
}

void Processes::hurry() {
  hurries_ = true;
  std::vector<pid_t> ending;
  for (const auto& [pid, process] : all_) {
    if (process.ending) ending.push_back(pid);
  }
  for (const pid_t pid : ending) {
    die(pid);
    ::eventfd_write(all_.at(pid).told.get(), 1);
  }
}

size_t Processes::alive() const {
  size_t count = 0;
  for (const auto& [pid, process] : all_) count += process.child != nullptr ? 1 : 0;
  return count;
}

void Processes::for_each(const std::function<void(Child&)>& call) const {
  for (const auto& [pid, process] : all_) {
    if (process.child != nullptr && !process.ending) call(*process.child);
  }
}

}  // namespace djinn::daemon::simulation
