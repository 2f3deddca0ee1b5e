// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/config_show.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "djinnctl/subprocess.h"

namespace djinn::ctl {
namespace {

constexpr const char* kInstalled = "/usr/bin/djinnd";

// A djinnd of the same build lies beside djinnctl; the one of the package lies where its unit names
// it.
std::string path_of_djinnd() {
  const std::string beside = own_directory() + "djinnd";
  return ::access(beside.c_str(), X_OK) == 0 ? beside : kInstalled;
}

}  // namespace

Result<std::vector<ShownSetting>> parse_shown_config(const std::string& text) {
  std::vector<ShownSetting> settings;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t equals = line.find(" = ");
    const size_t hash = line.find("  # ", equals);
    if (equals == std::string::npos || hash == std::string::npos) {
      return Error{ErrorCode::kMalformed,
                   "djinnd shows its configuration in a way that djinnctl "
                   "does not know. Use the same version of both."};
    }
    ShownSetting setting{line.substr(0, equals), line.substr(equals + 3, hash - equals - 3),
                         line.substr(hash + 4)};
    if (setting.origin == "standard") setting.origin.clear();
    settings.push_back(std::move(setting));
  }
  return settings;
}

void compare_with(const ipc::StatusReport& report, std::vector<ShownSetting>& settings) {
  for (const ipc::SettingReport& one : report.settings) {
    auto found = std::ranges::find(settings, one.key, &ShownSetting::key);
    if (found == settings.end()) found = settings.insert(found, ShownSetting{one.key, "", ""});
    found->in_force = one.value;
    found->reloads = one.reloads;
  }
  // Pins of administrators have no quota.
  const bool is_administrator =
      !report.users.empty() || report.quota.pinned_max_bytes == UINT64_MAX;
  const bool is_whole = report.settings.size() < limits::kListPage;  // of so many none is left out
  for (ShownSetting& setting : settings) {
    const bool is_section = setting.key.starts_with("user.") || setting.key.starts_with("group.");
    if (!is_section || setting.in_force) continue;
    setting.is_hidden = !is_administrator;
    setting.is_missing = is_administrator && is_whole;
    setting.reloads = true;
  }
}

Result<std::vector<ShownSetting>> read_shown_config(const std::string& root) {
  std::vector<std::string> command{path_of_djinnd(), "--show-config"};
  if (!root.empty()) command.insert(command.end(), {"--root", root});
  const auto said = run_program(command, ErrorsTo::kOurs);
  if (!said && said.error().code == ErrorCode::kNotFound) {
    return Error{
        ErrorCode::kNotFound,
        "djinnd is not installed here, and nobody else reads its configuration. Ask on the "
        "machine where it runs."};
  }
  if (!said) return said.error();
  if (said->exit_code != 0) {
    return Error{ErrorCode::kMalformed,
                 "djinnd does not start with this configuration. What is wrong stands above. Mend "
                 "it, and look again with 'djinnd --check-config'."};
  }
  return parse_shown_config(said->out);
}

}  // namespace djinn::ctl
