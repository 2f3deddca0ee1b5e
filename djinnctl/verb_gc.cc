// SPDX-License-Identifier: Apache-2.0

// djinnctl gc gives up what serves nobody: programs that no session uses, workers of users without
// a session.
#include <fmt/format.h>

#include "djinnctl/command_line.h"
#include "djinnctl/text.h"

namespace djinn::ctl {
namespace {

Status gc(const Invocation& invocation) {
  DJINN_TRY(const auto client, observe(invocation));
  DJINN_TRY(const ipc::Collected collected, client->collect_garbage());
  if (!invocation.wants_json()) {
    Table table({{"PROGRAMS", Table::Align::kRight},
                 {"WORKERS", Table::Align::kRight},
                 {"FREED", Table::Align::kRight}});
    table.add({std::to_string(collected.programs), std::to_string(collected.workers),
               size_text(collected.bytes)});
    return write_out(table.text(invocation.layout));
  }
  const Json item{
      {"programs", collected.programs}, {"workers", collected.workers}, {"bytes", collected.bytes}};
  return print_json(invocation, "gc", {item});
}

}  // namespace

void add_gc(CommandLine& line) {
  line.verb("gc", "give up programs and workers that serve nobody").does(gc);
}

}  // namespace djinn::ctl
