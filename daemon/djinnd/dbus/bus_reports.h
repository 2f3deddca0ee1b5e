// SPDX-License-Identifier: Apache-2.0

// Reports as D-Bus writes them: a dictionary each, a{sv}, with the words and names of djinnctl's
// JSON; what is not known there is left out here. Entries are only ever added. Sizes in bytes,
// times in microseconds since the epoch.
#pragma once

#include <systemd/sd-bus.h>

#include <string>
#include <vector>

#include "ipc/messages.h"
#include "kernel/base/error.h"

namespace djinn::daemon {

// Appends aa{sv}. Negative errno where the message takes no more.
int append_reports(sd_bus_message* message, const std::vector<ipc::SessionReport>& reports);
int append_reports(sd_bus_message* message, const std::vector<ipc::ModelReport>& reports);
int append_reports(sd_bus_message* message, const std::vector<ipc::UseReport>& reports);
int append_reports(sd_bus_message* message, const std::vector<ipc::DeviceReport>& reports);

// "org.djinn.Error.NotFound" for kNotFound.
[[nodiscard]] std::string bus_error_of(ErrorCode code);

}  // namespace djinn::daemon
