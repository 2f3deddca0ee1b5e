// SPDX-License-Identifier: Apache-2.0

// Uses: which session holds which model, and who has pinned it, as far as who asks may see.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "djinnctl/command_line.h"
#include "djinnctl/json.h"
#include "libdjinn-client/client.h"

namespace djinn::ctl {

// A model with who uses it.
struct UsedModel {
  ipc::ModelReport report;
  std::vector<ipc::UseReport> holders;  // each with its session
  std::vector<std::string> pinned_by;   // users
  std::vector<ipc::UseReport> names;    // what users call it
};

Result<std::vector<UsedModel>> with_uses(client::Client& client,
                                         std::span<const ipc::ModelReport> models);
// Of those models, what the session holds.
[[nodiscard]] std::vector<ipc::ModelReport> held_by(SessionId session,
                                                    std::span<const UsedModel> models);

[[nodiscard]] Json to_json(const UsedModel& model);
[[nodiscard]] Json to_json(const ipc::SessionReport& session, std::span<const UsedModel> models);

// As `ps` does.
Status print_models(const Invocation& invocation, client::Client& client,
                    std::span<const ipc::ModelReport> models);
Result<std::vector<Json>> session_items(client::Client& client,
                                        std::span<const ipc::SessionReport> sessions);

}  // namespace djinn::ctl
