// SPDX-License-Identifier: Apache-2.0

// djinnctl ps: the models, and what ends their stay.
#include "djinnctl/command_line.h"
#include "djinnctl/tables.h"
#include "djinnctl/text.h"

namespace djinn::ctl {
namespace {

Status ps(const Invocation& invocation) {
  DJINN_TRY(const auto client, observe(invocation));
  DJINN_TRY(const auto reports, client->models());
  return print_list(invocation, "ps", reports, model_table(reports, now_ns()));
}

}  // namespace

void add_ps(CommandLine& line) {
  line.verb("ps", "the models, and what ends their stay").does(ps);
}

}  // namespace djinn::ctl
