// SPDX-License-Identifier: Apache-2.0

// djinnctl models shows the models in djinnd's store, and djinnctl models rm takes names back.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "djinnctl/command_line.h"
#include "djinnctl/json.h"
#include "djinnctl/output.h"
#include "djinnctl/tables.h"
#include "kernel/base/clock.h"

namespace djinn::ctl {
namespace {

Status list(const Invocation& invocation) {
  DJINN_TRY(const auto client, observe(invocation));
  DJINN_TRY(const auto published, client->published());
  return print_list(invocation, "models", published,
                    published_table(published, SystemClock().wall_ns()));
}

Status remove(const Invocation& invocation, const std::vector<std::string>& names) {
  DJINN_TRY(const auto client, observe(invocation));
  std::vector<Json> items;
  Status done;
  for (const std::string& name : names) {
    done = client->remove_published(name);
    if (!done) break;
    items.push_back({{"name", name}});
  }
  if (invocation.wants_json() && (done || !items.empty())) {
    DJINN_CHECK(print_json(invocation, "models-rm", std::move(items)));
  }
  return done;
}

}  // namespace

void add_models(CommandLine& line) {
  const Verb models = line.verb("models", "the models in djinnd's store");
  const Verb rm = models.verb("rm", "take names back; what no other needs is deleted");
  auto names = std::make_shared<std::vector<std::string>>();
  rm.option("NAME", *names, "as 'djinnctl models' shows them").required();
  rm.does(names, remove);
  models.does_alone(list);
}

}  // namespace djinn::ctl
