// SPDX-License-Identifier: Apache-2.0

// Config: what the administrator wrote, in TOML, read from files in systemd's order:
//
//   /etc/djinn/djinnd.conf           first
//   *.conf of djinnd.conf.d          then, by name, from /usr/lib/djinn and /etc/djinn; one of /etc
//                                    stands for that of /usr/lib with its name, and hides it where
//                                    it is empty or a link to /dev/null
//
// A later file wins, key by key; the command line wins over all.
//
//   setting   a key that is known, its unit, and whether a reload takes it up
//   section   [user.NAME] or [group.NAME]: what that user, or each member, may have; its settings
//             have keys of their own (quotas.h), and all of them reload
//   mapping   a line of [remote.map]: which user of the machine a principal is; reloads
//   value     a setting as written, with its origin
//   problem   a value or file that cannot be (an error), a section of nobody (a warning), or an
//             unknown key: an error where somebody waits for the answer, and a warning at a start
//
// invariant: a config with an error is never applied, not in part either.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/djinnd/host/options.h"
#include "ipc/messages.h"

namespace djinn::daemon {

struct Setting {
  std::string_view key;  // "memory.limit"
  std::string_view standard;
  bool reloads;
  // Error: kInvalidArgument, what the value should be.
  Status (*apply)(std::string_view value, Options& options);
};
// Sorted by key.
[[nodiscard]] std::span<const Setting> settings();
// Sets the option of that key. Errors: kInvalidArgument, what the value should be.
Status apply_setting(std::string_view key, std::string_view value, Options& options);
// "device.NAME.limit": the key of what is granted of a device beside the host.
[[nodiscard]] std::string limit_key(DeviceId device);

// What a key is that nobody knows. Refused: whoever checks or reloads has just written it, and a
// limit that is misspelt binds nobody. Ignored: a start must succeed with a key of another version.
enum class UnknownKeys : uint8_t { kRefused, kIgnored };

struct ConfigValue {
  std::string key;
  std::string text;
  std::string file;
  uint32_t line = 0;
};

struct ConfigProblem {
  bool is_error = false;
  std::string text;       // "FILE:LINE: error: what, and what next"
  bool is_taken = false;  // a warning of a setting that is taken as it is
};

// A section with a name, where it begins.
struct ConfigSection {
  bool is_group = false;
  std::string name;
  std::string file;
  uint32_t line = 0;
  std::optional<uint32_t> number;  // of the user or group, once look_up_names() has found it
};

// A line of [remote.map].
struct ConfigMapping {
  std::string principal;
  MappedUser user;  // as look_up_names() has found them
  std::string file;
  uint32_t line = 0;
};

struct Config {
  std::vector<ConfigValue> values;  // the winners, sorted by key
  std::vector<ConfigSection> sections;
  std::vector<ConfigMapping> mappings;
  std::vector<ConfigProblem> problems;

  [[nodiscard]] bool is_valid() const;
};

// Reads the files under root ("" for the machine's own), which must be a directory. Missing files
// are none.
[[nodiscard]] Config read_config(const std::string& root, UnknownKeys unknown);

// Finds the users and groups that have sections, and the users whom principals are; one that is not
// there is a warning. Asks the system's databases, which may block.
void look_up_names(Config& config);

// Warns of a limit beyond the machine's memory, and of instructions that it does not have. A start
// and a reload warn of what is in force, which may be the command line's: see fill_in().
void check_against_machine(Config& config);
// Warns of a spill_directory where this process could make no files. A start tries, and tells it
// then. Asks the file system, which may block.
void check_spill_directory(Config& config);

// What is said of a limit of a device that djinnd does not have.
[[nodiscard]] std::string ignored_limit(std::string_view key);

// Whether the key makes a principal a user of the machine.
[[nodiscard]] bool is_mapping(std::string_view key);
// Whether a reload takes the setting up.
[[nodiscard]] bool reloads(std::string_view key);

// Applies what a valid config says to options, and notes there what it ignores.
void apply_config(const Config& config, Options& options);

// What each setting is with these options, in the order of settings(), and then what sections say,
// as far as a list may have it.
// running: the options of the djinnd that runs, where what does not reload is as at its start.
[[nodiscard]] std::vector<ipc::SettingReport> settings_in_force(const Options& options,
                                                                const Options& running);

// "KEY = VALUE  # FILE:LINE", a line for each setting, those left out with their standard.
[[nodiscard]] std::string show_config(const Config& config);

}  // namespace djinn::daemon
