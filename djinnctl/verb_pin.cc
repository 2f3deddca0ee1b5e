// SPDX-License-Identifier: Apache-2.0

// djinnctl pin MODEL... and djinnctl unpin MODEL... say whether models stay in memory without a
// session.
#include "djinnctl/command_line.h"
#include "djinnctl/each_model.h"
#include "djinnctl/text.h"

namespace djinn::ctl {
namespace {

Status set_pin(const Invocation& invocation, const std::vector<std::string>& named, bool pinned) {
  DJINN_TRY(const auto client, observe(invocation));
  std::vector<Json> items;
  const Status done =
      with_each_model(invocation, *client, named, [&](const ipc::ModelReport& model) -> Status {
        DJINN_CHECK(client->pin_model(model.model, pinned));
        items.push_back({{"id", id_text(model.model)}, {"name", model.label}, {"pinned", pinned}});
        return {};
      });
  if (invocation.wants_json() && (done || !items.empty())) {
    DJINN_CHECK(print_json(invocation, pinned ? "pin" : "unpin", std::move(items)));
  }
  return done;
}

void add(CommandLine& line, const char* name, const char* what, bool pinned) {
  const Verb verb = line.verb(name, what);
  auto named = std::make_shared<std::vector<std::string>>();
  verb.option("MODEL", *named, "their ids or the first four digits of them, names, or paths")
      .required();
  verb.does([named, pinned](const Invocation& invocation) {
    return set_pin(invocation, *named, pinned);
  });
}

}  // namespace

void add_pin(CommandLine& line) {
  add(line, "pin", "keep models in memory until they are unloaded", true);
}

void add_unpin(CommandLine& line) {
  add(line, "unpin", "let models give way when memory is wanted", false);
}

}  // namespace djinn::ctl
