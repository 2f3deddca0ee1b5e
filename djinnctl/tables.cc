#include "djinnctl/tables.h"

#include "djinnctl/table.h"
#include "djinnctl/text.h"

namespace djinn::ctl {
namespace {

// "5.0 MiB", or while it is being read "1.2 MiB of 5.0 MiB".
std::string model_size(const ipc::ModelReport& model) {
  if (model.state != ipc::ModelState::kLoading) return size_text(model.bytes);
  return size_text(model.bytes_loaded) + " of " + size_text(model.bytes);
}

}  // namespace

std::string model_table(std::span<const ipc::ModelReport> models, uint64_t now_ns) {
  using enum Table::Align;
  Table table({{"ID"},
               {"NAME"},
               {"STATE"},
               {"SIZE", kRight},
               {"LEASES", kRight},
               {"PINNED"},
               {"OWNER"},
               {"AGE", kRight}});
  for (const ipc::ModelReport& model : models) {
    table.add({id_text(model.model), model.label, std::string(state_text(model.state)),
               model_size(model), std::to_string(model.leases), model.pinned ? "yes" : "no",
               model.owner, age_text(model.loaded_wall_ns, now_ns)});
  }
  return table.text();
}

std::string session_table(std::span<const ipc::SessionReport> sessions, uint64_t now_ns) {
  using enum Table::Align;
  Table table({{"ID"},
               {"NAME"},
               {"OWNER"},
               {"PID", kRight},
               {"STATE"},
               {"MEMORY", kRight},
               {"MODELS", kRight},
               {"SEQUENCES", kRight},
               {"STEPS", kRight},
               {"AGE", kRight}});
  for (const ipc::SessionReport& session : sessions) {
    table.add({id_text(session.session), session.client_name, session.owner,
               std::to_string(session.pid), session.running ? "running" : "idle",
               size_text(session.granted_bytes), std::to_string(session.models),
               std::to_string(session.sequences), std::to_string(session.steps),
               age_text(session.started_wall_ns, now_ns)});
  }
  return table.text();
}

}  // namespace djinn::ctl
