// SPDX-License-Identifier: Apache-2.0

// djinnctl sessions: who is connected.
#include "djinnctl/command_line.h"
#include "djinnctl/tables.h"

namespace djinn::ctl {
namespace {

Status sessions(const Invocation& invocation) {
  DJINN_TRY(const auto client, observe(invocation));
  DJINN_TRY(const auto reports, client->sessions());
  return print_list(invocation, "sessions", reports,
                    session_table(reports, SystemClock().wall_ns()));
}

}  // namespace

void add_sessions(CommandLine& line) {
  line.verb("sessions", "who is connected").does(sessions);
}

}  // namespace djinn::ctl
