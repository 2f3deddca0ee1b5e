// djinnctl programs: the programs that run by id.
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
  line.app.add_subcommand("programs", "the programs that run by id")->callback([&line] {
    line.action = programs;
  });
}

}  // namespace djinn::ctl
