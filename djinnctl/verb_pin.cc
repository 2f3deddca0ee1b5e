// SPDX-License-Identifier: Apache-2.0

// djinnctl pin MODEL, djinnctl unpin MODEL: whether a model stays in memory without a session.
#include "djinnctl/command_line.h"
#include "djinnctl/object.h"
#include "djinnctl/text.h"

namespace djinn::ctl {
namespace {

Status set_pin(const Invocation& invocation, const std::string& named, bool pinned) {
  DJINN_TRY(const auto client, observe(invocation));
  DJINN_TRY(const ipc::ModelReport model, find_model(*client, named));
  DJINN_CHECK(client->pin_model(model.model, pinned));
  if (!invocation.wants_json()) return {};
  const Json item{{"id", id_text(model.model)}, {"name", model.label}, {"pinned", pinned}};
  return print_json(invocation, pinned ? "pin" : "unpin", {item});
}

void add(CommandLine& line, const char* name, const char* what, bool pinned) {
  const Verb verb = line.verb(name, what);
  auto named = std::make_shared<std::string>();
  verb.option("MODEL", *named, "its id or the first digits of it, its name, or its path")
      .required();
  verb.does([named, pinned](const Invocation& invocation) {
    return set_pin(invocation, *named, pinned);
  });
}

}  // namespace

void add_pin(CommandLine& line) {
  add(line, "pin", "keep a model in memory until it is unloaded", true);
}

void add_unpin(CommandLine& line) {
  add(line, "unpin", "let a model give way when memory is wanted", false);
}

}  // namespace djinn::ctl
