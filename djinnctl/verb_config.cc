// SPDX-License-Identifier: Apache-2.0

// djinnctl config show [--origin]: what djinnd's configuration files amount to on this machine.
#include <stdlib.h>

#include <algorithm>

#include "djinnctl/command_line.h"
#include "djinnctl/config_show.h"
#include "djinnctl/output.h"
#include "libdjinn-client/connect_advice.h"

namespace djinn::ctl {
namespace {

struct ConfigOptions {
  bool origin = false;
  std::string root;
};

// The djinnd whose configuration this is; none where another root is looked at, or none runs.
Result<std::unique_ptr<client::Client>> running(const Invocation& invocation,
                                                const ConfigOptions& options) {
  Invocation there = invocation;
  const bool is_named = !invocation.host.empty() || ::getenv("DJINN_HOST") != nullptr;
  if (!is_named && !options.root.empty()) {
    return Error{ErrorCode::kNotFound, "No djinnd is configured by that directory."};
  }
  if (!is_named) there.host = client::kServiceSocket;
  return observe(there);
}

Table table_of(const std::vector<ShownSetting>& settings, bool origin, bool in_force) {
  std::vector<Table::Column> columns{{"KEY"}, {"VALUE"}};
  if (in_force) columns.push_back({"IN FORCE"});
  if (origin) columns.push_back({"ORIGIN"});
  Table table(std::move(columns));
  for (const ShownSetting& setting : settings) {
    std::vector<std::string> cells{setting.key, setting.value};
    if (in_force) cells.push_back(setting.in_force.value_or("-"));
    if (origin) cells.push_back(setting.origin);
    table.add(std::move(cells));
  }
  return table;
}

// What is not in force yet, in a sentence on stderr.
void tell_pending(const std::vector<ShownSetting>& settings) {
  std::string keys;
  for (const ShownSetting& setting : settings) {
    if (setting.is_pending()) keys += (keys.empty() ? "" : ", ") + setting.key;
  }
  write_error("djinnctl: not in force, but at the next reload or start of djinnd: " + keys +
              "\nWhat reloads is said in djinnd.conf(5); the command line of djinnd wins.\n");
}

Status show(const Invocation& invocation, const ConfigOptions& options) {
  DJINN_TRY(auto settings, read_shown_config(options.root));
  if (const auto client = running(invocation, options)) {
    DJINN_TRY(const ipc::StatusReport report, (*client)->status());
    compare_with(report, settings);
  }
  const bool pending = std::ranges::any_of(settings, &ShownSetting::is_pending);
  if (pending && !invocation.quiet) tell_pending(settings);
  if (!invocation.wants_json()) {
    return write_out(table_of(settings, options.origin, pending).text(invocation.layout));
  }
  std::vector<Json> items;
  for (const ShownSetting& setting : settings) {
    items.push_back({{"key", setting.key},
                     {"value", setting.value},
                     {"in_force", setting.in_force ? Json(*setting.in_force) : Json()},
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
