// SPDX-License-Identifier: Apache-2.0

// djinnctl version shows this program's version, and that of the daemon if one answers.
#include "djinnctl/command_line.h"

namespace djinn::ctl {
namespace {

// Holds the daemon's version, or what is said in its place.
struct Answer {
  std::string version;
  std::string instead;
};

// A daemon that does not run, or stands still, is no error here: the question is what is installed.
Result<Answer> ask_daemon(const Invocation& invocation) {
  const auto status = status_in_time(invocation);
  if (status) return Answer{status->version, ""};
  if (status.error().code == ErrorCode::kDisconnected) return Answer{"", "-"};
  if (status.error().code == ErrorCode::kTimeout) return Answer{"", "does not answer"};
  return status.error();
}

Status version(const Invocation& invocation) {
  DJINN_TRY(const Answer daemon, ask_daemon(invocation));
  if (invocation.wants_json()) {
    const Json item{{"djinnctl", DJINN_VERSION},
                    {"djinnd", daemon.version.empty() ? Json() : Json(daemon.version)}};
    return print_json(invocation, "version", {item});
  }
  Table table({{"PROGRAM"}, {"VERSION"}});
  table.add({"djinnctl", DJINN_VERSION});
  table.add({"djinnd", daemon.version.empty() ? daemon.instead : daemon.version});
  return write_out(table.text(invocation.layout));
}

}  // namespace

void add_version(CommandLine& line) {
  line.verb("version", "of djinnctl and of the daemon").does(version);
}

}  // namespace djinn::ctl
