// SPDX-License-Identifier: Apache-2.0

// djinnctl config show [--origin] shows what djinnd's configuration files amount to on this
// machine.
#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>

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

// Gives the status of the djinnd whose configuration this is. It is an error if another root is
// looked at, or if no djinnd runs.
Result<ipc::StatusReport> running(const Invocation& invocation, const ConfigOptions& options) {
  Invocation there = invocation;
  const bool is_named = !invocation.host.empty() || ::getenv("DJINN_HOST") != nullptr;
  if (!is_named && !options.root.empty()) {
    return Error{ErrorCode::kNotFound, "No djinnd is configured by that directory."};
  }
  if (!is_named) there.host = client::kServiceSocket;
  return status_in_time(there);
}

// Makes the path absolute in the same way as djinnd, so that the two can be compared.
std::string root_of(const std::string& path) {
  std::error_code error;
  const auto absolute = std::filesystem::weakly_canonical(path, error);
  return path.empty() || error ? path : absolute.string();
}

// Tells whether that djinnd is configured by the files under root.
bool reads_from(const ipc::StatusReport& report, const std::string& root) {
  return !report.settings.empty() && report.config_root == root;
}

void tell_whose(const ipc::StatusReport& report, const std::string& root) {
  if (report.settings.empty()) {
    write_error(
        "djinnctl: the djinnd that answers serves one user and reads no files: none of this is in "
        "force there.\n");
  } else if (!reads_from(report, root)) {
    write_error(fmt::format(
        "djinnctl: the djinnd that answers reads other files than these, those under '{}'; so what "
        "is in force there is not shown.\n",
        report.config_root.empty() ? "/" : report.config_root));
  }
}

Table table_of(const std::vector<ShownSetting>& settings, bool origin, bool in_force) {
  std::vector<Table::Column> columns{{"KEY"},
                                     {"VALUE", Table::Align::kLeft, Table::Fit::kShortened}};
  if (in_force) columns.push_back({"IN FORCE", Table::Align::kLeft, Table::Fit::kShortened});
  if (origin) columns.push_back({"ORIGIN", Table::Align::kLeft, Table::Fit::kShortened});
  Table table(std::move(columns));
  for (const ShownSetting& setting : settings) {
    std::vector<std::string> cells{setting.key, setting.value};
    const char* const unknown = setting.is_hidden ? "(for administrators)" : "-";
    if (in_force) cells.push_back(setting.in_force.value_or(unknown));
    if (origin) cells.push_back(setting.origin);
    table.add(std::move(cells));
  }
  return table;
}

// Names, on one line of stderr, the settings that are not in force before djinnd does `what`; tells
// whether there are some.
bool tell_pending_until(const char* what, bool reloads, const std::vector<ShownSetting>& settings) {
  std::string keys;
  for (const ShownSetting& setting : settings) {
    if (!setting.is_pending() || setting.reloads != reloads) continue;
    keys += (keys.empty() ? "" : ", ") + setting.key;
  }
  if (keys.empty()) return false;
  write_error("djinnctl: not in force before " + std::string(what) + keys + '\n');
  return true;
}

void tell_pending(const std::vector<ShownSetting>& settings) {
  const bool at_reload = tell_pending_until("djinnd reloads: ", true, settings);
  const bool at_start = tell_pending_until("djinnd starts anew: ", false, settings);
  if (at_reload || at_start) write_error("What stands on djinnd's command line wins.\n");
}

Status print(const Invocation& invocation, const ConfigOptions& options,
             const std::vector<ShownSetting>& settings, bool in_force) {
  if (!invocation.wants_json()) {
    return write_out(table_of(settings, options.origin, in_force).text(invocation.layout));
  }
  std::vector<Json> items;
  for (const ShownSetting& setting : settings) {
    items.push_back({{"key", setting.key},
                     {"value", setting.value.empty() ? Json() : Json(setting.value)},
                     {"in_force", setting.in_force ? Json(*setting.in_force) : Json()},
                     {"origin", setting.origin.empty() ? Json() : Json(setting.origin)}});
  }
  return print_json(invocation, "config", std::move(items));
}

Status show(const Invocation& invocation, const ConfigOptions& options) {
  const auto report = running(invocation, options);
  if (!report && report.error().code == ErrorCode::kTimeout && !invocation.quiet) {
    write_error("djinnctl: djinnd does not answer, so what is in force is not shown.\n");
  }
  const std::string root =
      options.root.empty() && report ? report->config_root : root_of(options.root);
  auto written = read_shown_config(root);
  const bool is_wrong = !written && written.error().code == ErrorCode::kMalformed;
  if (!written && !is_wrong) return written.error();
  std::vector<ShownSetting> settings;
  if (written) settings = *std::move(written);
  if (report) {
    const bool has_reader = !invocation.quiet && !invocation.wants_json();
    if (reads_from(*report, root)) compare_with(*report, settings);
    if (has_reader) tell_whose(*report, root);
  }
  if (is_wrong) {
    if (settings.empty()) return written.error();
    DJINN_CHECK(print(invocation, options, settings, true));
    return Error{ErrorCode::kMalformed,
                 "djinnd does not start with this configuration, and the one that runs has not "
                 "taken it up. What is wrong stands above, what is in force in the list."};
  }
  const bool pending = std::ranges::any_of(settings, &ShownSetting::is_pending);
  if (pending && !invocation.quiet) tell_pending(settings);
  return print(invocation, options, settings, pending);
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
