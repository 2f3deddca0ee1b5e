// SPDX-License-Identifier: Apache-2.0

// djinnctl sessions lists who is connected.
#include "djinnctl/others.h"
#include "djinnctl/tables.h"
#include "djinnctl/text.h"
#include "djinnctl/uses.h"

namespace djinn::ctl {
namespace {

Status sessions(const Invocation& invocation) {
  DJINN_TRY(const auto client, observe(invocation));
  DJINN_TRY(const auto reports, other_sessions(*client));
  if (!invocation.wants_json()) {
    return write_out(session_table(reports, now_ns()).text(invocation.layout));
  }
  DJINN_TRY(std::vector<Json> items, session_items(*client, reports));
  return print_json(invocation, "sessions", std::move(items));
}

}  // namespace

void add_sessions(CommandLine& line) {
  line.verb("sessions", "who is connected").does(sessions);
}

}  // namespace djinn::ctl
