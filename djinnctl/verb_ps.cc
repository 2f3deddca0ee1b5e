// djinnctl ps: the models that are resident.
#include "djinnctl/command_line.h"
#include "djinnctl/json.h"
#include "djinnctl/output.h"
#include "djinnctl/tables.h"

namespace djinn::ctl {
namespace {

Status ps(const Invocation& invocation) {
  DJINN_TRY(const auto client, observe(invocation));
  DJINN_TRY(const auto models, client->models());
  if (!invocation.json) return write_out(model_table(models, SystemClock().wall_ns()));
  std::vector<Json> items;
  for (const ipc::ModelReport& model : models) items.push_back(to_json(model));
  return write_out(json_text("ps", std::move(items)));
}

}  // namespace

void add_ps(CommandLine& line) {
  line.app.add_subcommand("ps", "the models that are resident")->callback([&line] {
    line.action = ps;
  });
}

}  // namespace djinn::ctl
