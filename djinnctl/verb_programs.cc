// SPDX-License-Identifier: Apache-2.0

// djinnctl programs lists the programs that run by id.
#include "djinnctl/command_line.h"
#include "djinnctl/tables.h"

namespace djinn::ctl {
namespace {

Status programs(const Invocation& invocation) {
  DJINN_TRY(const auto client, observe(invocation));
  DJINN_TRY(const auto reports, client->programs());
  return print_list(invocation, "programs", reports, program_table(reports));
}

}  // namespace

void add_programs(CommandLine& line) {
  line.verb("programs", "the programs that run by id").does(programs);
}

}  // namespace djinn::ctl
