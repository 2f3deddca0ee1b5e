// SPDX-License-Identifier: Apache-2.0

// djinnctl config show [--origin]: what djinnd's configuration files amount to on this machine.
#include "djinnctl/command_line.h"
#include "djinnctl/config_show.h"

namespace djinn::ctl {
namespace {

struct ConfigOptions {
  bool origin = false;
  std::string root;
};

Table table_of(const std::vector<ShownSetting>& settings, bool origin) {
  Table table(origin ? std::vector<Table::Column>{{"KEY"}, {"VALUE"}, {"ORIGIN"}}
                     : std::vector<Table::Column>{{"KEY"}, {"VALUE"}});
  for (const ShownSetting& setting : settings) {
    std::vector<std::string> cells{setting.key, setting.value};
    if (origin) cells.push_back(setting.origin);
    table.add(std::move(cells));
  }
  return table;
}

Status show(const Invocation& invocation, const ConfigOptions& options) {
  DJINN_TRY(const auto settings, read_shown_config(options.root));
  if (!invocation.wants_json()) {
    return write_out(table_of(settings, options.origin).text(invocation.layout));
  }
  std::vector<Json> items;
  for (const ShownSetting& setting : settings) {
    items.push_back({{"key", setting.key},
                     {"value", setting.value},
                     {"origin", setting.origin.empty() ? Json() : Json(setting.origin)}});
  }
  return print_json(invocation, "config", std::move(items));
}

}  // namespace

void add_config(CommandLine& line) {
  const Verb verb =
      line.verb("config", "the daemon's configuration files").verb("show", "what they amount to");
  auto options = std::make_shared<ConfigOptions>();
  verb.flag("--origin", options->origin, "with the file and line of each setting");
  verb.option("--root", options->root, "directory that stands before the files' paths")
      .called("DIRECTORY");
  verb.does(options, show);
}

}  // namespace djinn::ctl
