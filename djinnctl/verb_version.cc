// SPDX-License-Identifier: Apache-2.0

// djinnctl version: this program's version, and that of the daemon if one answers.
#include "djinnctl/command_line.h"

namespace djinn::ctl {
namespace {

// A daemon that does not run is no error here: the question is what is installed.
Result<std::string> version_of_daemon(const Invocation& invocation) {
  const auto client = observe(invocation);
  if (!client && client.error().code == ErrorCode::kDisconnected) return std::string();
  if (!client) return client.error();
  DJINN_TRY(const ipc::StatusReport status, (*client)->status());
  return status.version;
}

Status version(const Invocation& invocation) {
  DJINN_TRY(const std::string daemon, version_of_daemon(invocation));
  if (invocation.wants_json()) {
    const Json item{{"djinnctl", DJINN_VERSION},
                    {"djinnd", daemon.empty() ? Json() : Json(daemon)}};
    return print_json(invocation, "version", {item});
  }
  Table table({{"PROGRAM"}, {"VERSION"}});
  table.add({"djinnctl", DJINN_VERSION});
  table.add({"djinnd", daemon});
  return write_out(table.text(invocation.layout));
}

}  // namespace

void add_version(CommandLine& line) {
  line.verb("version", "of djinnctl and of the daemon").does(version);
}

}  // namespace djinn::ctl
