// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/json.h"

#include <algorithm>

#include "djinnctl/text.h"
#include "kernel/base/clock.h"

namespace djinn::ctl {
namespace {

Json time_or_null(uint64_t wall_ns) {
  return wall_ns == 0 ? Json() : Json(time_text(wall_ns));
}

}  // namespace

std::string json_text(const std::string& schema, std::vector<Json> items, JsonStyle style) {
  Json envelope;
  envelope["schema"] = "djinn." + schema + ".v1";
  envelope["items"] = std::move(items);
  const int indent = style == JsonStyle::kPretty ? 2 : -1;
  return envelope.dump(indent, ' ', false, Json::error_handler_t::replace) + '\n';
}

Json to_json(const ipc::WorkerReport& report) {
  return {{"device", report.device},
          {"owner", report.owner},
          {"pid", report.pid},
          {"state", state_text(report.state)},
          {"threads", report.threads},
          {"restarts", report.restarts},
          {"landlock_abi", report.landlock_abi},
          {"seccomp", report.seccomp},
          {"slab_bytes", report.slab_bytes},
          {"runs", report.runs},
          {"planned_runs", report.planned_runs},
          {"plan_misses", report.plan_misses},
          {"runs_repeated", report.runs_repeated},
          {"runs_together", report.runs_together},
          {"turn_ms", report.turn_ns / kNsPerMs},
          {"overruns", report.overruns},
          {"refused", report.refused},
          {"tokens", report.tokens}};
}

// Gives the quota, or null for a user to whom the configuration gives none.
Json to_json(const ipc::QuotaReport& quota) {
  if (!quota.is_own) return nullptr;
  const auto or_null = [](uint64_t bytes) { return bytes == UINT64_MAX ? Json() : Json(bytes); };
  return {{"memory_bytes", quota.memory_bytes},
          {"memory_max_bytes", or_null(quota.memory_max_bytes)},
          {"pinned_bytes", quota.pinned_bytes},
          {"pinned_max_bytes", or_null(quota.pinned_max_bytes)},
          {"sessions", quota.sessions},
          {"sessions_max", quota.sessions_max},
          {"models", quota.models},
          {"models_max", quota.models_max}};
}

static Json to_json(const ipc::UserReport& user) {
  ipc::QuotaReport quota = user.quota;
  quota.is_own = true;
  Json item{{"owner", user.owner}};
  item.update(to_json(quota));
  return item;
}

Json to_json(const ipc::StatusReport& report) {
  Json users = Json::array();
  for (const ipc::UserReport& user : report.users) users.push_back(to_json(user));

  Json workers = Json::array();
  for (const ipc::WorkerReport& worker : report.workers) workers.push_back(to_json(worker));
  return {{"version", report.version},
          {"started", time_or_null(report.started_wall_ns)},
          {"memory_total_bytes", report.memory_total_bytes},
          {"memory_granted_bytes", report.memory_granted_bytes},
          {"memory_models_bytes", report.memory_models_bytes},
          {"memory_sessions_bytes", report.memory_sessions_bytes},
          {"memory_lanes_bytes", report.memory_lanes_bytes},
          {"sessions", report.sessions},
          {"models", report.models},
          {"programs", report.programs},
          {"descriptors", report.descriptors},
          {"bytes_read", report.bytes_read},
          {"buffered_reads", report.buffered_reads},
          {"compared_opens", report.compared_opens},
          {"workers", std::move(workers)},
          {"draining", report.draining},
          {"descriptors_closing", report.descriptors_closing},
          {"data_sessions", report.data_sessions},
          {"quota", to_json(report.quota)},
          {"users", std::move(users)},
          {"spill_fault", report.spill_fault.empty() ? Json() : Json(report.spill_fault)}};
}

Json to_json(const ipc::SessionReport& report) {
  return {{"id", id_text(report.session)},
          {"name", report.client_name},
          {"owner", report.owner},
          {"pid", report.pid},
          {"started", time_or_null(report.started_wall_ns)},
          {"granted_bytes", report.granted_bytes},
          {"models", report.models},
          {"sequences", report.sequences},
          {"steps", report.steps},
          {"running", report.running},
          {"state", state_text(report.state)},
          {"wait", wait_text(report.wait)},
          {"shared_bytes", report.shared_bytes},
          {"tier", ipc::tier_text(report.counts.tier)},
          {"graphs_run", report.counts.graphs},
          {"programs_run", report.counts.programs},
          {"generations", report.counts.generations},
          {"failed", report.counts.failed},
          {"tokens", report.counts.tokens},
          {"plan_misses", report.counts.plan_misses},
          {"bytes_in", report.counts.bytes_in},
          {"bytes_out", report.counts.bytes_out},
          {"stated_tier0_calls", report.stated.calls[0]},
          {"stated_tier1_calls", report.stated.calls[1]},
          {"stated_tier2_calls", report.stated.calls[2]},
          {"stated_local_models", report.stated.local_models},
          {"device", report.device}};
}

Json to_json(const ipc::ModelReport& report) {
  return {{"id", id_text(report.model)},
          {"name", report.label},
          {"owner", report.owner},
          {"state", state_text(report.state)},
          {"bytes", report.bytes},
          {"bytes_loaded", report.bytes_loaded},
          {"files", report.files},
          {"leases", report.leases},
          {"pinned", report.pinned},
          {"sha256", report.hashed ? Json(hash_text(report.sha256)) : Json()},
          {"loaded", time_or_null(report.loaded_wall_ns)},
          {"device", report.device},
          {"until", until_text(report)},
          {"keep_alive_seconds", report.keep_alive_ms == ipc::kKeepForever
                                     ? Json()
                                     : Json(static_cast<double>(report.keep_alive_ms) / 1000)},
          {"expires", time_or_null(report.expires_wall_ns)},
          {"path", report.path.empty() ? Json() : Json(report.path)},
          {"plan", report.plan == 0 ? Json() : Json(plan_text(report.plan))},
          {"huge_bytes", report.huge_bytes},
          {"copies", report.on_gpus == 0 ? Json() : Json(ipc::copies_of(report))},
          {"numerics", report.numerics ? Json(ipc::numerics_text(report)) : Json()}};
}

Json to_json(const ipc::PublishedReport& report) {
  return {{"name", report.name},
          {"bytes", report.bytes},
          {"files", report.files},
          {"readers", report.readers},
          {"owner", report.owner},
          {"since", time_or_null(report.since_wall_ns)},
          {"contents", hash_text(report.contents)}};
}

Json to_json(const DTypeUse& use) {
  return {{"dtype", name_of(use.dtype)}, {"tensors", use.tensors}, {"bytes", use.bytes}};
}

Json to_json(const ipc::ScheduleReport& report, uint64_t now_ns) {
  Json decisions = Json::array();
  for (const ipc::ScheduleDecision& decision : report.schedule.decisions) {
    decisions.push_back(
        {{"number", decision.number},
         {"time", time_text(now_ns - std::min(now_ns, decision.ago_ns))},
         {"session", id_text(decision.session)},
         {"class", name_of(decision.service)},
         {"reason", name_of(decision.reason)},
         {"ready", decision.ready},
         {"lag_ns", decision.lag_ns},
         {"deadline_ns", decision.deadline_ns},
         {"predicted_ns", decision.predicted_ns},
         {"measured_ns", decision.measured_ns},
         {"paused", decision.paused.valid() ? Json(id_text(decision.paused)) : Json()}});
  }
  return {{"device", report.device},
          {"owner", report.owner},
          {"policy", name_of(report.schedule.policy)},
          {"decisions", std::move(decisions)}};
}

Json to_json(const ipc::EventReport& report) {
  const bool failed = report.error != ErrorCode::kOk;
  return {{"number", report.number},
          {"time", time_text(report.wall_ns)},
          {"event", name_of(report.kind)},
          {"text", report.text},
          {"session", report.session.valid() ? Json(id_text(report.session)) : Json()},
          {"model", report.model.valid() ? Json(id_text(report.model)) : Json()},
          {"device", report.device.empty() ? Json() : Json(report.device)},
          {"bytes", report.bytes ? Json(*report.bytes) : Json()},
          {"error", failed ? Json(name_of(report.error)) : Json()},
          {"uid", report.user ? Json(*report.user) : Json()},
          {"path", report.path.empty() ? Json() : Json(report.path)},
          {"reason", report.reason.empty() ? Json() : Json(report.reason)}};
}

Json to_json(const ipc::ProgramReport& report) {
  const bool known = report.state == ipc::ProgramState::kAdmitted;
  return {{"id", id_text(report.program)},
          {"model", report.model.valid() ? Json(id_text(report.model)) : Json()},
          {"owner", report.owner},
          {"device", report.device},
          {"state", state_text(report.state)},
          {"graph_bytes", report.graph_bytes},
          {"outputs", report.outputs},
          {"sessions", report.sessions},
          {"name", report.name},
          {"workload", known ? Json(workload_text(report.workload)) : Json()},
          {"numerics", known ? Json(report.fast_nodes > 0 ? "fast" : "exact") : Json()},
          {"fast_nodes", report.fast_nodes}};
}

Json to_json(const ipc::DeviceReport& report) {
  const bool is_known = report.hardware_bytes > 0;
  const auto of_gpu = [is_known](uint64_t bytes) { return is_known ? Json(bytes) : Json(); };
  return {{"device", report.device},
          {"name", report.name},
          {"used_bytes", report.used_bytes},
          {"total_bytes", report.total_bytes},
          {"planned_bytes", report.planned_bytes},
          {"lanes", report.lanes},
          {"state", state_text(report.state)},
          {"huge_bytes", report.huge_bytes},
          {"huge_pages", report.huge_pages.empty() ? Json() : Json(report.huge_pages)},
          {"isa", report.isa.empty() ? Json() : Json(report.isa)},
          {"driver", report.driver.empty() ? Json() : Json(report.driver)},
          {"reason", report.reason.empty() ? Json() : Json(report.reason)},
          {"hardware_bytes", of_gpu(report.hardware_bytes)},
          {"hardware_free_bytes", of_gpu(report.hardware_free_bytes)},
          {"uploaded_bytes", of_gpu(report.uploaded_bytes)}};
}

Json to_json(const ipc::MemoryReport& report) {
  return {{"device", report.device},
          {"pool", pool_text(report.pool)},
          {"reserved_bytes", report.reserved_bytes},
          {"mapped_bytes", report.mapped_bytes},
          {"cached_bytes", report.cached_bytes},
          {"evictable_bytes", report.evictable_bytes},
          {"pinned_bytes", report.pinned_bytes}};
}

}  // namespace djinn::ctl
