// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/host/options.h"

#include <fmt/format.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "daemon/djinnd/host/config.h"
#include "daemon/djinnd/host/cores.h"
#include "daemon/djinnd/host/version.h"
#include "daemon/djinnd/memory/quantity.h"
#include "ipc/limits.h"
#include "kernel/base/assert.h"
#include "kernel/base/size_text.h"
#include "kernel/base/units.h"
#include "kernel/base/wrap.h"

namespace djinn::daemon {
namespace {

// Gives the directory of this program, ending with a slash.
std::string own_directory() {
  std::array<char, 4096> path{};
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  const std::string self(path.data(), length > 0 ? static_cast<size_t>(length) : 0);
  return self.substr(0, self.rfind('/') + 1);
}

// Finds a program that djinnd starts: at the path that was given, else where packages put it, else
// beside djinnd, as it is built.
void guess_program(std::string& path, const std::string& name) {
  const std::string beside = own_directory() + name;
  const std::string installed = own_directory() + "../libexec/djinn/" + name;
  if (path.empty()) path = ::access(installed.c_str(), X_OK) == 0 ? installed : beside;
}

// Error: kNotFound if it cannot be executed.
Status find_program(std::string& path, const std::string& name, const char* option) {
  guess_program(path, name);
  if (::access(path.c_str(), X_OK) == 0) return {};
  return Error{ErrorCode::kNotFound, "djinnd starts " + path + ", which is no program (" +
                                         std::strerror(errno) + "). Say where it is with " +
                                         option + ", or install djinnd anew."};
}

// Gives a value as a shell takes it.
std::string word_of(const std::string& value) {
  const bool needs_quotes = value.empty() || value.find(' ') != value.npos;
  return needs_quotes ? fmt::format("\"{}\"", value) : value;
}

// Gives a sentence about values in TOML, "text" or ["one", "two"], with those of the command line.
std::string on_command_line(std::string_view sentence,
                            std::string (*as_word)(const std::string& value)) {
  std::string out;
  for (bool is_in_list = false; !sentence.empty();) {
    const size_t begin = sentence.find('"');
    if (begin == sentence.npos) return out.append(sentence);
    const size_t end = sentence.find('"', begin + 1);
    DJINN_ASSERT(end != sentence.npos);
    std::string_view before = sentence.substr(0, begin);
    if (before.ends_with('[')) {
      is_in_list = true;
      before.remove_suffix(1);
    } else if (is_in_list) {
      before = ",";
    }
    out += before;
    out += as_word(std::string(sentence.substr(begin + 1, end - begin - 1)));
    sentence.remove_prefix(end + 1);
    if (is_in_list && sentence.starts_with(']')) {
      is_in_list = false;
      sentence.remove_prefix(1);
    }
  }
  return out;
}

// Gives a sentence about what was written for a setting, with the name and form that it was given.
std::string as_given(const Options& options, std::string_view key, std::string sentence) {
  const auto option = options.on_command_line.find(key);
  if (option == options.on_command_line.end()) return sentence;
  DJINN_ASSERT(sentence.starts_with(key));
  return option->second + on_command_line(sentence.substr(key.size()), word_of);
}

// Shows an option as the manual does, with one word for its value.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(32); }  // the longest that has no line of its own, and a gap
  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string type = option->get_type_name();
    return option->get_type_size() == 0 ? "" : " " + type.substr(0, type.find(':'));
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    return wrapped(option->get_description(), kHelpColumns - get_column_width());
  }
};

// The same value in a file and on the command line.
struct Forms {
  // What the file would have for what is written on the command line.
  std::string (*as_setting)(const std::string& text) = [](const std::string& text) { return text; };
  // What is written on the command line for what the file has.
  std::string (*as_word)(const std::string& value) = word_of;
};

// Adds an option that takes the values of a setting. `word` is what help calls the value.
void add_setting(CLI::App& app, Options& options, const std::string& name, std::string_view key,
                 const char* word, const char* what, const Forms& forms = {}) {
  const auto apply = [key, forms](const std::string& text, Options& to) {
    return apply_setting(key, forms.as_setting(text), to);
  };
  app.add_option_function<std::string>(
         name,
         [apply, &options, name, key](const std::string& text) {
           const Status applied = apply(text, options);
           DJINN_ASSERT(applied.ok());
           options.on_command_line[std::string(key)] = name;
         },
         what)
      ->check([apply, forms](const std::string& text) {
        Options nowhere;
        const Status applied = apply(text, nowhere);
        return applied ? std::string() : on_command_line(applied.error().message, forms.as_word);
      })
      ->type_name(word);
}

// Adds an option for a time with its unit, and NAME-ms, which takes milliseconds.
void add_time(CLI::App& app, Options& options, const std::string& name, std::string_view key,
              const char* what) {
  add_setting(app, options, name, key, "TIME", what);
  add_setting(app, options, name + "-ms", key, "NUMBER", "the same, in milliseconds",
              {[](const std::string& text) { return number_of(text) ? text + "ms" : text; },
               [](const std::string& value) {
                 const auto time = milliseconds_of(value);
                 return time ? fmt::format("{}", *time) : word_of(value);
               }});
}

// Gives the key and the value of a limit as the file would have them; nothing where it is none.
std::optional<std::pair<std::string, std::string>> limit_in(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == text.npos) return std::nullopt;
  const std::optional<DeviceId> device = device_from(text.substr(0, equals));
  if (!device || *device == kHostDevice) return std::nullopt;
  return std::pair(limit_key(*device), text.substr(equals + 1));
}

std::string fault_of_device_limit(const std::string& text) {
  const auto limit = limit_in(text);
  if (!limit) return "'" + text + "' is no limit of a device. Write one like cuda:0=40GiB.";
  Options nowhere;
  const Status applied = apply_setting(limit->first, limit->second, nowhere);
  return applied ? std::string() : applied.error().message;
}

// Adds the option that limits a device beside the host; it may come once for each.
void add_device_limit(CLI::App& app, Options& options) {
  app.add_option_function<std::vector<std::string>>(
         "--device-limit",
         [&options](const std::vector<std::string>& limits) {
           for (const std::string& text : limits) {
             const auto limit = limit_in(text);
             const Status applied = apply_setting(limit->first, limit->second, options);
             DJINN_ASSERT(applied.ok());
           }
         },
         "what to grant of a GPU, like cuda:0=40GiB or cuda:0=80% [all of it]")
      ->check(fault_of_device_limit)
      ->allow_extra_args(false)
      ->type_name("LIMIT");
}

// Of memory, and of the disks that it is spilled to and read from.
void add_memory_options(CLI::App& app, Options& options) {
  add_setting(app, options, "--memory", "memory.limit", "AMOUNT",
              "what to grant, like 12GiB or 80% [80% of the machine's]");
  add_device_limit(app, options);
  add_setting(app, options, "--session-quota", "memory.session_quota", "BYTES",
              "what one session may hold, like 4GiB [4GiB]");
  add_setting(app, options, "--spill-directory", "memory.spill_directory", "DIRECTORY",
              "idle sequence groups go there when memory is short; \"\": nowhere "
              "[$CACHE_DIRECTORY; --user: $XDG_CACHE_HOME/djinn]");
  add_time(app, options, "--spill-after", "memory.spill_after",
           "who runs nothing for so long is idle then [1min]");
  add_setting(app, options, "--spill-limit", "memory.spill_limit", "BYTES",
              "what may lie there in all, like 16GiB [as --memory]");
  add_setting(app, options, "--store-keep-free", "store.keep_free", "AMOUNT",
              "what users' imports leave of the disk, like 20GiB or 10% [10%]");
}

void add_options(CLI::App& app, Options& options) {
  auto* user = app.add_flag("--user", options.user_mode, "serve this user only");
  app.add_option("--runtime-dir", options.runtime_dir,
                 "directory of the socket [--user: $XDG_RUNTIME_DIR/djinn]")
      ->type_name("DIRECTORY");
  app.add_option("--socket-group", options.socket_group, "service mode: group that may connect")
      ->type_name("GROUP")
      ->excludes(user);
  app.add_flag("--gate-socket", options.gate_socket,
               "make gate.sock beside the socket, for djinn-gate");
  app.add_option("--admin-group", options.admin_group,
                 "service mode: group that sees and steers what is others' [djinn-admin]")
      ->type_name("GROUP")
      ->excludes(user);
  add_setting(app, options, "--devices", "devices", "NAMES",
              "GPUs to look after beside cpu:0, like cuda:0,cuda:1 [none]");
  add_setting(app, options, "--policy", "lane.policy", "NAME",
              "whose step a lane takes next: fair, or fifo [fair]");
  add_setting(app, options, "--threads", "lane.threads", "NUMBER", "threads of a lane [all cores]");
  add_setting(app, options, "--isa", "lane.isa", "LEVEL",
              "the instructions of djinn's own kernels [the best that the machine has]");
  add_setting(app, options, "--kernels", "lane.kernels", "NAME",
              "rates of products to show: measured, or standard, which are none [measured]");
  add_setting(app, options, "--numerics", "lane.numerics", "NAME",
              "of ghosts that choose none: exact, fast or fast-only [exact]");
  add_memory_options(app, options);
  app.add_option("--worker", options.worker, "worker program [beside djinnd, or ../libexec/djinn]")
      ->type_name("PROGRAM");
  app.add_option("--loader", options.loader, "loader program [beside djinnd, or ../libexec/djinn]")
      ->type_name("PROGRAM");
  app.add_option("--mover", options.mover, "mover program [beside djinnd, or ../libexec/djinn]")
      ->type_name("PROGRAM");
  app.add_option("--cuda-worker", options.cuda_worker,
                 "worker program for GPUs [beside djinnd, or ../libexec/djinn]")
      ->type_name("PROGRAM");
  add_time(app, options, "--hang-timeout", "worker.hang_timeout",
           "a worker with work that does nothing for so long is replaced [10s]");
  add_time(app, options, "--keep-alive", "model.keep_alive", "idle models stay for so long [5min]");
  add_time(app, options, "--drain-timeout", "service.drain_timeout",
           "runs may go on for so long at the end [10s; --user: 0]");
  app.add_flag("--check-config", options.check_config,
               "say what is wrong with the configuration files, and exit")
      ->excludes(user);
  app.add_flag("--show-config", options.show_config,
               "print each setting with the file and line that it comes from, and exit")
      ->excludes(user);
  app.add_option("--root", options.root, "directory before the paths of the configuration files")
      ->type_name("DIRECTORY")
      ->excludes(user);
  app.add_option("--test-fault-at", options.test_fault_at)->group("");
  app.add_option("--test-pal-fault-at", options.test_pal_fault_at)->group("");
  app.add_option("--test-extent-fault-at", options.test_extent_fault_at)->group("");
  app.add_option("--test-device-bytes", options.test_device_bytes)->group("");
  app.add_option("--test-device-worker", options.test_device_worker)->group("");
  app.add_option("--test-nodes", options.test_nodes)->group("");
  app.add_flag("--test-fault-every", options.test_fault_every)->group("");
  app.set_version_flag("--version", std::string("djinnd ") + kVersion);
}

// djinnd tells the path to programs that run in other directories.
std::string absolute_of(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::weakly_canonical(path, error);
  return error ? path : absolute.string();
}

// Gives the directory that an environment variable names; empty if it names none.
std::string directory_in(const char* name) {
  const char* const text = ::getenv(name);
  return text != nullptr && text[0] == '/' ? text : "";
}

// Where systemd and a user's home have directories of one kind.
struct Place {
  const char* of_service;  // an environment variable
  const char* of_user;     // another
  const char* in_home;
};
constexpr Place kCachePlace{"CACHE_DIRECTORY", "XDG_CACHE_HOME", "/.cache"};
constexpr Place kStatePlace{"STATE_DIRECTORY", "XDG_STATE_HOME", "/.local/state"};

// Gives the directory that systemd made for the service, or the user's; empty if there is none.
std::string directory_at(const Place& place, bool user_mode) {
  if (!user_mode) return directory_in(place.of_service);
  if (const std::string named = directory_in(place.of_user); !named.empty()) {
    return named + "/djinn";
  }
  const std::string home = directory_in("HOME");
  return home.empty() ? "" : home + place.in_home + "/djinn";
}

}  // namespace

uint64_t physical_bytes() {
  struct sysinfo info {};
  if (::sysinfo(&info) != 0) return uint64_t{1} << 30;
  return uint64_t{info.totalram} * info.mem_unit;
}

std::optional<Options> parse_options(int argc, char** argv, int& exit_code, Options options) {
  CLI::App app("djinnd owns the models and tensor memory of this machine");
  app.formatter(std::make_shared<HelpFormatter>());
  add_options(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& stop) {
    exit_code = 0;
    if (stop.get_exit_code() == 0) {  // help and version are no mistakes
      app.exit(stop);
    } else {
      exit_code = 2;
      fmt::print(stderr, "djinnd: {}\n'djinnd --help' lists all options.\n", stop.what());
    }
    return std::nullopt;
  }
  return options;
}

Result<uint64_t> limit_of(const Options& options, DeviceId device, uint64_t device_bytes) {
  const auto written = options.device_limits.find(device);
  if (written == options.device_limits.end()) return device_bytes;
  const uint64_t bytes = written->second.of(device_bytes);
  if (bytes <= device_bytes) return bytes;
  return Error{ErrorCode::kInvalidArgument,
               fmt::format("{} is {}, and the device has {}. Write at most that, or a share like "
                           "\"80%\".",
                           limit_key(device), size_text(bytes), size_text(device_bytes))};
}

std::string fault_of_limit(std::string_view value, uint64_t bytes, uint64_t machine_bytes) {
  if (bytes <= machine_bytes) return "";
  return fmt::format(
      "memory.limit is {}, and the machine has {}: what djinnd grants beyond that is "
      "not there, and the kernel swaps, or kills who uses it. Write less than the "
      "machine has, or a share like \"80%\".",
      value, size_text(machine_bytes));
}

std::string fault_of_isa(std::string_view value, IsaLevel level, IsaLevel machine_level) {
  if (level <= machine_level) return "";
  return fmt::format(
      "lane.isa is {0}, and the machine has {1}: djinn's own kernels take {1}. Write that, or "
      "nothing for the best of each machine.",
      value, name_of(machine_level));
}

Status fill_in(Options& options) {
  if (!options.root.empty()) options.root = absolute_of(options.root);
  if (options.runtime_dir.empty()) {
    // A djinnd in a runtime directory of its own is not on the bus, which has room for one.
    options.bus = options.user_mode ? BusKind::kUser : BusKind::kSystem;
    const char* const base = ::getenv("XDG_RUNTIME_DIR");
    if (!options.user_mode) {
      options.runtime_dir = "/run/djinn";
    } else if (base != nullptr && base[0] == '/') {
      options.runtime_dir = std::string(base) + "/djinn";
    } else {
      return Error{ErrorCode::kInvalidArgument,
                   "XDG_RUNTIME_DIR is not set. Give --runtime-dir a directory of this user."};
    }
  }
  if (!options.user_mode && options.admin_group.empty()) options.admin_group = kAdminGroup;
  if (!options.drain_timeout_ms) options.drain_timeout_ms = options.user_mode ? 0 : 10'000;
  options.cache_directory = directory_at(kCachePlace, options.user_mode);
  const std::string state = directory_at(kStatePlace, options.user_mode);
  if (!state.empty()) options.store_directory = state + "/store";
  if (!options.spill_directory) options.spill_directory = options.cache_directory;
  if (options.threads == 0) options.threads = usable_cores();
  if (options.memory_bytes == 0) options.memory_bytes = physical_bytes() / 10 * 8;
  if (options.session_quota_bytes == 0) {
    options.session_quota_bytes = limits::kSessionBytesDefault;
  }
  if (options.test_device_bytes > 0) {
    DJINN_TRY(options.test_device_bytes, limit_of(options, kTestDevice, options.test_device_bytes));
  }
  for (const auto& [device, limit] : options.device_limits) {
    if (options.test_device_bytes > 0 && device == kTestDevice) continue;
    if (std::ranges::find(options.gpus, device) != options.gpus.end()) continue;
    const std::string key = limit_key(device);
    options.written.erase(key);  // it is not in force
    options.config_warnings.push_back(ignored_limit(key));
  }
  if (const auto limit = options.written.find("memory.limit"); limit != options.written.end()) {
    std::string fault = fault_of_limit(limit->second, options.memory_bytes, physical_bytes());
    if (!fault.empty()) {
      options.setting_warnings.push_back(as_given(options, limit->first, std::move(fault)));
    }
  }
  if (const auto isa = options.written.find("lane.isa"); isa != options.written.end()) {
    std::string fault = fault_of_isa(isa->second, options.isa, best_isa_level());
    if (!fault.empty()) {
      options.setting_warnings.push_back(as_given(options, isa->first, std::move(fault)));
    }
  }
  DJINN_ASSERT(options.threads > 0 && options.memory_bytes > 0);
  return {};
}

Status find_programs(Options& options) {
  guess_program(options.mover, "djinn-mover");
  guess_program(options.cuda_worker, "djinn-cuda-worker");
  DJINN_CHECK(find_program(options.worker, "djinn-worker", "--worker"));
  return find_program(options.loader, "djinn-loader", "--loader");
}

Options with_shares(Options options, uint64_t memory_bytes) {
  DJINN_ASSERT(memory_bytes > 0);
  if (!options.spill_limit_bytes) options.spill_limit_bytes = memory_bytes;
  return options;
}

}  // namespace djinn::daemon
