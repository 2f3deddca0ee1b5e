// SPDX-License-Identifier: Apache-2.0

// djinnctl pin MODEL... and djinnctl unpin MODEL... say whether models stay in memory without a
// session.
#include <fmt/format.h>

#include <algorithm>

#include "djinnctl/command_line.h"
#include "djinnctl/each_model.h"
#include "djinnctl/output.h"
#include "djinnctl/text.h"

namespace djinn::ctl {
namespace {

// Says what the user may not expect of an unpin that succeeded: the model was not pinned, or stays
// so, since others pinned it.
void tell_of_unpinned(client::Client& client, const std::vector<ipc::ModelReport>& done) {
  const auto now = client.models();
  const auto stays_pinned = [&](const ipc::ModelReport& model) {
    return now && std::ranges::any_of(*now, [&](const ipc::ModelReport& one) {
             return one.model == model.model && one.pinned;
           });
  };
  for (const ipc::ModelReport& model : done) {
    const char* const what = !model.pinned ? "was not pinned"
                             : stays_pinned(model)
                                 ? "stays in memory: another user has pinned it, too"
                                 : nullptr;
    if (what == nullptr) continue;
    write_error(fmt::format("djinnctl: model {} {}\n", title_of(model), what));
  }
}

Status set_pin(const Invocation& invocation, const std::vector<std::string>& named, bool pinned) {
  DJINN_TRY(const auto client, observe(invocation));
  std::vector<Json> items;
  std::vector<ipc::ModelReport> changed;
  const Status done =
      with_each_model(invocation, *client, named, [&](const ipc::ModelReport& model) -> Status {
        DJINN_CHECK(client->pin_model(model.model, pinned));
        changed.push_back(model);
        items.push_back({{"id", id_text(model.model)}, {"name", model.label}, {"pinned", pinned}});
        return {};
      });
  if (invocation.wants_json() && (done || !items.empty())) {
    DJINN_CHECK(print_json(invocation, pinned ? "pin" : "unpin", std::move(items)));
  }
  if (!pinned && !invocation.quiet && !invocation.wants_json()) tell_of_unpinned(*client, changed);
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
