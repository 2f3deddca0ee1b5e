// SPDX-License-Identifier: Apache-2.0

// djinnctl ps lists the models, and what ends their stay.
#include "djinnctl/uses.h"

namespace djinn::ctl {
namespace {

Status ps(const Invocation& invocation) {
  DJINN_TRY(const auto client, observe(invocation));
  DJINN_TRY(const auto reports, client->models());
  return print_models(invocation, *client, reports);
}

}  // namespace

void add_ps(CommandLine& line) {
  line.verb("ps", "the models, and what ends their stay").does(ps);
}

}  // namespace djinn::ctl
