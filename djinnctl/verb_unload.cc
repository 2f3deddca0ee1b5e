// SPDX-License-Identifier: Apache-2.0

// djinnctl unload MODEL: drops a model that no session holds, pinned or not.
#include "djinnctl/command_line.h"
#include "djinnctl/json.h"
#include "djinnctl/object.h"
#include "djinnctl/output.h"
#include "djinnctl/text.h"

namespace djinn::ctl {
namespace {

Status unload(const Invocation& invocation, const std::string& named) {
  DJINN_TRY(const auto client, observe(invocation));
  DJINN_TRY(const ipc::ModelReport model, find_model(*client, named));
  DJINN_CHECK(client->unload_model(model.model));
  if (!invocation.wants_json()) return {};
  const Json item{{"id", id_text(model.model)}, {"name", model.label}, {"bytes", model.bytes}};
  return print_json(invocation, "unload", {item});
}

}  // namespace

void add_unload(CommandLine& line) {
  const Verb verb = line.verb("unload", "drop a model that no session holds");
  auto named = std::make_shared<std::string>();
  verb.option("MODEL", *named, "its id or the first digits of it, its name, or its path")
      .required();
  verb.does(named, unload);
}

}  // namespace djinn::ctl
