// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/each_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "djinnctl/exit_code.h"
#include "djinnctl/object.h"
#include "djinnctl/text.h"

namespace djinn::ctl {

Result<std::vector<ipc::ModelReport>> find_models(client::Client& client,
                                                  const std::vector<std::string>& named) {
  std::vector<ipc::ModelReport> models;
  for (const std::string& one : named) {
    DJINN_TRY(ipc::ModelReport model, find_model(client, one));
    const bool twice =
        std::ranges::any_of(models, [&](const auto& other) { return other.model == model.model; });
    if (!twice) models.push_back(std::move(model));
  }
  return models;
}

std::string title_of(const ipc::ModelReport& model) {
  const std::string id = id_text(model.model);
  return model.label.empty() ? id : fmt::format("{} ({})", model.label, id);
}

Status with_each_model(const Invocation& invocation, client::Client& client,
                       const std::vector<std::string>& named,
                       const std::function<Status(const ipc::ModelReport&)>& act) {
  DJINN_TRY(const auto models, find_models(client, named));
  Status first;
  for (const ipc::ModelReport& model : models) {
    const Status done = act(model);
    if (done) continue;
    const std::string which = models.size() > 1 ? "Model " + title_of(model) + ": " : "";
    const Error why{done.error().code, which + done.error().message};
    if (!first && !invocation.quiet) write_failure(why, invocation.json);
    if (first) first = why;
  }
  return first;
}

}  // namespace djinn::ctl
