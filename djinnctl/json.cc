#include "djinnctl/json.h"

#include "djinnctl/text.h"

namespace djinn::ctl {
namespace {

Json time_or_null(uint64_t wall_ns) {
  return wall_ns == 0 ? Json() : Json(time_text(wall_ns));
}

}  // namespace

std::string json_text(const std::string& schema, std::vector<Json> items) {
  Json envelope;
  envelope["schema"] = "djinn." + schema + ".v1";
  envelope["items"] = std::move(items);
  return envelope.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
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
          {"tokens", report.tokens}};
}

Json to_json(const ipc::StatusReport& report) {
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
          {"workers", std::move(workers)}};
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
          {"running", report.running}};
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
          {"loaded", time_or_null(report.loaded_wall_ns)}};
}

}  // namespace djinn::ctl
