// SPDX-License-Identifier: Apache-2.0

// djinnctl unload MODEL... drops models that no session holds, pinned or not.
#include "djinnctl/command_line.h"
#include "djinnctl/each_model.h"
#include "djinnctl/json.h"
#include "djinnctl/output.h"
#include "djinnctl/text.h"

namespace djinn::ctl {
namespace {

Status unload(const Invocation& invocation, const std::vector<std::string>& named) {
  DJINN_TRY(const auto client, observe(invocation));
  std::vector<Json> items;
  const Status done =
      with_each_model(invocation, *client, named, [&](const ipc::ModelReport& model) -> Status {
        DJINN_CHECK(client->unload_model(model.model));
        items.push_back(
            {{"id", id_text(model.model)}, {"name", model.label}, {"bytes", model.bytes}});
        return {};
      });
  if (invocation.wants_json() && (done || !items.empty())) {
    DJINN_CHECK(print_json(invocation, "unload", std::move(items)));
  }
  return done;
}

}  // namespace

void add_unload(CommandLine& line) {
  const Verb verb = line.verb("unload", "drop models that no session holds");
  auto named = std::make_shared<std::vector<std::string>>();
  verb.option("MODEL", *named, "their ids or the first four digits of them, names, or paths")
      .required();
  verb.does(named, unload);
}

}  // namespace djinn::ctl
