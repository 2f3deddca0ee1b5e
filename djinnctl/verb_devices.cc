// SPDX-License-Identifier: Apache-2.0

// djinnctl devices shows the devices, and how full they are, or with --kernels what products give
// there by our kernels and by the library's.
#include <memory>
#include <vector>

#include "djinnctl/command_line.h"
#include "djinnctl/kernel_rows.h"
#include "djinnctl/tables.h"

namespace djinn::ctl {
namespace {

struct DevicesOptions {
  bool kernels = false;
};

Status devices(const Invocation& invocation, const DevicesOptions& options) {
  DJINN_TRY(const auto client, observe(invocation));
  DJINN_TRY(const auto reports, client->devices());
  if (options.kernels) {
    const std::vector<KernelRow> rows = kernel_rows(reports);
    return print_list(invocation, "kernels", rows, kernel_rows_table(rows));
  }
  DJINN_CHECK(print_list(invocation, "devices", reports, device_table(reports)));
  return invocation.wants_json() ? Status() : write_out(reasons_text(reports));
}

}  // namespace

void add_devices(CommandLine& line) {
  const auto options = std::make_shared<DevicesOptions>();
  const Verb verb = line.verb("devices", "the devices, and how full they are");
  verb.flag("--kernels", options->kernels, "what products give there, by whose kernels");
  verb.does(options, devices);
}

}  // namespace djinn::ctl
