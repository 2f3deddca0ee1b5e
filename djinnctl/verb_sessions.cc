// djinnctl sessions: who is connected.
#include "djinnctl/command_line.h"
#include "djinnctl/json.h"
#include "djinnctl/output.h"
#include "djinnctl/tables.h"

namespace djinn::ctl {
namespace {

Status sessions(const Invocation& invocation) {
  DJINN_TRY(const auto client, observe(invocation));
  DJINN_TRY(const auto reports, client->sessions());
  if (!invocation.json) return write_out(session_table(reports, SystemClock().wall_ns()));
  std::vector<Json> items;
  for (const ipc::SessionReport& session : reports) items.push_back(to_json(session));
  return write_out(json_text("sessions", std::move(items)));
}

}  // namespace

void add_sessions(CommandLine& line) {
  line.app.add_subcommand("sessions", "who is connected")->callback([&line] {
    line.action = sessions;
  });
}

}  // namespace djinn::ctl
