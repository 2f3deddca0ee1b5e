// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/uses.h"

#include <algorithm>
#include <utility>

#include "djinnctl/tables.h"
#include "djinnctl/text.h"

namespace djinn::ctl {

Result<std::vector<UsedModel>> with_uses(client::Client& client,
                                         std::span<const ipc::ModelReport> models) {
  std::vector<UsedModel> used;
  for (const ipc::ModelReport& model : models) {
    UsedModel& one = used.emplace_back(UsedModel{model, {}, {}, {}});
    DJINN_TRY(auto uses, client.uses(model.model));
    for (ipc::UseReport& use : uses) {
      if (use.kind == ipc::UseKind::kPin) {
        one.pinned_by.push_back(std::move(use.owner));
      } else {
        (use.kind == ipc::UseKind::kHold ? one.holders : one.names).push_back(std::move(use));
      }
    }
  }
  return used;
}

std::vector<ipc::ModelReport> held_by(SessionId session, std::span<const UsedModel> models) {
  std::vector<ipc::ModelReport> held;
  for (const UsedModel& model : models) {
    if (std::ranges::find(model.holders, session, &ipc::UseReport::session) !=
        model.holders.end()) {
      held.push_back(model.report);
    }
  }
  return held;
}

Json to_json(const UsedModel& model) {
  Json item = to_json(model.report);
  Json holders = Json::array();
  for (const ipc::UseReport& use : model.holders) {
    holders.push_back({{"session", id_text(use.session)},
                       {"owner", use.owner},
                       {"pid", use.pid},
                       {"name", use.client_name}});
  }
  item["holders"] = std::move(holders);
  item["pinned_by"] = model.pinned_by;
  Json names = Json::array();
  for (const ipc::UseReport& use : model.names) {
    names.push_back({{"owner", use.owner},
                     {"name", use.label},
                     {"path", use.path.empty() ? Json() : Json(use.path)}});
  }
  item["names"] = std::move(names);
  return item;
}

Json to_json(const ipc::SessionReport& session, std::span<const UsedModel> models) {
  Json item = to_json(session);
  Json held = Json::array();
  for (const ipc::ModelReport& model : held_by(session.session, models)) {
    held.push_back({{"id", id_text(model.model)}, {"name", model.label}, {"bytes", model.bytes}});
  }
  item["held_models"] = std::move(held);
  return item;
}

Status print_models(const Invocation& invocation, client::Client& client,
                    std::span<const ipc::ModelReport> models) {
  if (!invocation.wants_json()) {
    return write_out(model_table(models, now_ns()).text(invocation.layout));
  }
  DJINN_TRY(const auto used, with_uses(client, models));
  std::vector<Json> items;
  for (const UsedModel& model : used) items.push_back(to_json(model));
  return print_json(invocation, "ps", std::move(items));
}

Result<std::vector<Json>> session_items(client::Client& client,
                                        std::span<const ipc::SessionReport> sessions) {
  DJINN_TRY(const auto models, client.models());
  DJINN_TRY(const auto used, with_uses(client, models));
  std::vector<Json> items;
  for (const ipc::SessionReport& session : sessions) items.push_back(to_json(session, used));
  return items;
}

}  // namespace djinn::ctl
