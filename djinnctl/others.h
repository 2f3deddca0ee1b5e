// SPDX-License-Identifier: Apache-2.0

// Others: who is there beside djinnctl itself, whose connection is a session like any other.
#pragma once

#include <vector>

#include "libdjinn-client/client.h"

namespace djinn::ctl {

Result<std::vector<ipc::SessionReport>> other_sessions(client::Client& client);
// The daemon's status, with a session less.
Result<ipc::StatusReport> status_without_us(client::Client& client);

}  // namespace djinn::ctl
