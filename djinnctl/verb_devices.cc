// SPDX-License-Identifier: Apache-2.0

// djinnctl devices shows the devices, and how full they are.
#include "djinnctl/command_line.h"
#include "djinnctl/tables.h"

namespace djinn::ctl {
namespace {

Status devices(const Invocation& invocation) {
  DJINN_TRY(const auto client, observe(invocation));
  DJINN_TRY(const auto reports, client->devices());
  return print_list(invocation, "devices", reports, device_table(reports));
}

}  // namespace

void add_devices(CommandLine& line) {
  line.verb("devices", "the devices, and how full they are").does(devices);
}

}  // namespace djinn::ctl
