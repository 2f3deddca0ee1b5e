// SPDX-License-Identifier: Apache-2.0

// djinnctl status shows the daemon, its memory and its workers.
#include <fmt/format.h>

#include "djinnctl/command_line.h"
#include "djinnctl/json.h"
#include "djinnctl/others.h"
#include "djinnctl/output.h"
#include "djinnctl/table.h"
#include "djinnctl/text.h"

namespace djinn::ctl {
namespace {

std::string of_most(uint64_t bytes, uint64_t most_bytes) {
  if (most_bytes == UINT64_MAX) return size_text(bytes);
  return fmt::format("{} of {}", size_text(bytes), size_text(most_bytes));
}

void add_quota(Table& table, const ipc::QuotaReport& quota) {
  table.add({"your memory", of_most(quota.memory_bytes, quota.memory_max_bytes)});
  table.add({"your pins", of_most(quota.pinned_bytes, quota.pinned_max_bytes)});
  table.add({"your sessions", fmt::format("{} of {}", quota.sessions, quota.sessions_max)});
  table.add(
      {"your models", fmt::format("{} held or pinned, of {}", quota.models, quota.models_max)});
}

Table daemon_table(const ipc::StatusReport& report, uint64_t now_ns) {
  Table table({{"FIELD"}, {"VALUE"}});
  table.add({"version", report.version});
  if (report.draining) table.add({"draining", "yes: no new sessions and models"});
  table.add({"up", age_text(report.started_wall_ns, now_ns)});
  table.add({"memory", fmt::format("{} of {}", size_text(report.memory_granted_bytes),
                                   size_text(report.memory_total_bytes))});
  table.add({"  models", size_text(report.memory_models_bytes)});
  table.add({"  sessions", size_text(report.memory_sessions_bytes)});
  table.add({"  lanes", size_text(report.memory_lanes_bytes)});
  table.add({"models", std::to_string(report.models)});
  table.add({"sessions", std::to_string(report.sessions)});
  table.add({"programs", std::to_string(report.programs)});
  table.add({"descriptors", std::to_string(report.descriptors)});
  if (report.descriptors_closing > 0) {
    table.add(
        {"  closing", fmt::format("{}, which clients sent; what stays waits for a file system",
                                  report.descriptors_closing)});
  }
  table.add({"read from files", size_text(report.bytes_read)});
  table.add({"buffered reads", std::to_string(report.buffered_reads)});
  table.add({"compared opens", std::to_string(report.compared_opens)});
  if (!report.spill_fault.empty()) {
    table.add({"spilling", "impossible: " + report.spill_fault});
  }
  if (report.quota.is_own) add_quota(table, report.quota);
  return table;
}

// A worker that starts has no process yet, or none that djinnd knows.
std::string pid_text(const ipc::WorkerReport& worker) {
  return worker.pid == 0 ? "-" : std::to_string(worker.pid);
}

std::string confinement_of(const ipc::WorkerReport& worker) {
  if (worker.pid == 0) return "-";
  // It is said if the kernel lacks one of the two.
  const std::string landlock =
      worker.landlock_abi == 0 ? "no landlock" : fmt::format("landlock{}", worker.landlock_abi);
  return landlock + (worker.seccomp ? ",seccomp" : ",no seccomp");
}

// Makes a table of what each user holds, and of how much of it they may have.
Table user_table(const std::vector<ipc::UserReport>& users) {
  using enum Table::Align;
  Table table({{"USER", kLeft, Table::Fit::kShortened},
               {"MEMORY", kRight},
               {"PINS", kRight, Table::Fit::kLeftOutLast},
               {"SESSIONS", kRight, Table::Fit::kLeftOutLast},
               {"MODELS", kRight, Table::Fit::kLeftOutLast}});
  for (const ipc::UserReport& user : users) {
    const ipc::QuotaReport& quota = user.quota;
    table.add({user.owner, of_most(quota.memory_bytes, quota.memory_max_bytes),
               of_most(quota.pinned_bytes, quota.pinned_max_bytes),
               fmt::format("{} of {}", quota.sessions, quota.sessions_max),
               fmt::format("{} of {}", quota.models, quota.models_max)});
  }
  return table;
}

Table worker_table(const std::vector<ipc::WorkerReport>& workers) {
  using enum Table::Align;
  using enum Table::Fit;
  Table table({{"DEVICE", kLeft, kOptional},
               {"USER", kLeft, kShortened},
               {"PID", kRight, kLeftOutLast},
               {"STATE"},
               {"THREADS", kRight, kLeftOutLast},
               {"RESTARTS", kRight, kLeftOutLast},
               {"SLAB", kRight, kOptional},
               {"RUNS", kRight},
               {"PLANNED", kRight, kOptional},
               {"MISSES", kRight, kOptional},
               {"REPEATED", kRight, kOptional},
               {"TOGETHER", kRight, kOptional},
               {"TOKENS", kRight, kLeftOutLast},
               {"CONFINED", kLeft, kOptional}});
  for (const ipc::WorkerReport& worker : workers) {
    table.add({worker.device, worker.owner, pid_text(worker), std::string(state_text(worker.state)),
               std::to_string(worker.threads), std::to_string(worker.restarts),
               size_text(worker.slab_bytes), std::to_string(worker.runs),
               std::to_string(worker.planned_runs), std::to_string(worker.plan_misses),
               std::to_string(worker.runs_repeated), std::to_string(worker.runs_together),
               std::to_string(worker.tokens), confinement_of(worker)});
  }
  return table;
}

Status status(const Invocation& invocation) {
  DJINN_TRY(const auto client, observe(invocation));
  DJINN_TRY(const ipc::StatusReport report, status_without_us(*client));
  if (invocation.wants_json()) return print_json(invocation, "status", {to_json(report)});
  const uint64_t now_ns = SystemClock().wall_ns();
  std::string text = daemon_table(report, now_ns).text(invocation.layout);
  if (!report.workers.empty()) text += '\n' + worker_table(report.workers).text(invocation.layout);
  const bool is_service = !report.settings.empty();  // else there is one user
  if (is_service && !report.users.empty()) {
    text += '\n' + user_table(report.users).text(invocation.layout);
  }
  return write_out(text);
}

}  // namespace

void add_status(CommandLine& line) {
  line.verb("status", "the daemon, its memory, its workers").does(status);
}

}  // namespace djinn::ctl
