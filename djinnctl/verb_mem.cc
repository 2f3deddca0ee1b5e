// SPDX-License-Identifier: Apache-2.0

// djinnctl mem shows where the memory of each device went.
#include "djinnctl/command_line.h"
#include "djinnctl/tables.h"

namespace djinn::ctl {
namespace {

Status mem(const Invocation& invocation) {
  DJINN_TRY(const auto client, observe(invocation));
  DJINN_TRY(const auto reports, client->memory_pools());
  return print_list(invocation, "mem", reports, memory_table(reports));
}

}  // namespace

void add_mem(CommandLine& line) {
  line.verb("mem", "the pools of device memory").does(mem);
}

}  // namespace djinn::ctl
