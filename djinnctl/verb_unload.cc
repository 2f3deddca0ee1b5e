// SPDX-License-Identifier: Apache-2.0

// djinnctl unload ID: drops a model that no session holds, pinned or not.
#include "djinnctl/command_line.h"
#include "djinnctl/json.h"
#include "djinnctl/output.h"
#include "djinnctl/prefix.h"
#include "djinnctl/text.h"

namespace djinn::ctl {
namespace {

Status unload(const Invocation& invocation, const std::string& prefix) {
  DJINN_TRY(const auto client, observe(invocation));
  DJINN_TRY(const ipc::ModelReport model, find_model(*client, prefix));
  DJINN_CHECK(client->unload_model(model.model));
  if (!invocation.wants_json()) return {};
  const Json item{{"id", id_text(model.model)}, {"name", model.label}, {"bytes", model.bytes}};
  return print_json(invocation, "unload", {item});
}

}  // namespace

void add_unload(CommandLine& line) {
  const Verb verb = line.verb("unload", "drop a model that no session holds");
  auto prefix = std::make_shared<std::string>();
  verb.option("ID", *prefix, "its id, or the first digits of it").required();
  verb.does(prefix, unload);
}

}  // namespace djinn::ctl
