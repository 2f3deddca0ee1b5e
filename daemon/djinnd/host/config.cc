// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/host/config.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>

#include "daemon/djinnd/access/authority.h"
#include "daemon/djinnd/memory/quantity.h"
#include "ipc/limits.h"
#include "ipc/messages.h"
#include "ipc/principal.h"
#include "kernel/base/assert.h"
#include "kernel/base/fd.h"
#include "kernel/base/units.h"
#include "kernel/srg/names.h"

namespace djinn::daemon {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMain = "/etc/djinn/djinnd.conf";
// A file in the later directory replaces the one of the same name in the earlier directory.
constexpr std::array<std::string_view, 2> kDropIns{"/usr/lib/djinn/djinnd.conf.d",
                                                   "/etc/djinn/djinnd.conf.d"};
constexpr size_t kConfigBytesMax = 64 * 1024;
// This is less than the staging memory of one session. A smaller value most likely lacks its unit.
constexpr uint64_t kLimitBytesMin = uint64_t{1} << 20;
// An unknown key that differs more from every known key is not taken for a typing mistake.
constexpr size_t kSlipsMax = 4;

// --- values

// These words are shown for values that depend on something else.
constexpr std::string_view kAllCores = "all cores";
constexpr std::string_view kBestIsa = "the best that the machine has";
constexpr std::string_view kMeasured = "measured";  // the other is "standard"
constexpr std::string_view kAsLimit = "as memory.limit";
constexpr std::string_view kNoDevices = "none";

Error expected(std::string_view what) {
  return Error{ErrorCode::kInvalidArgument, fmt::format("write {}", what)};
}

Error expected_bytes(std::string_view what) {
  return expected(fmt::format("{}; units are KiB, MiB, GiB and TiB", what));
}

std::string hint_at_unit(std::string_view number) {
  return fmt::format("; {0} is {0} bytes, and not \"{0}GiB\"", number);
}

Status set_limit(std::string_view text, Options& options) {
  const auto amount = amount_of(text);
  if (!amount || amount->number == 0) {
    return expected_bytes("bytes like \"12GiB\", or a share like \"80%\"");
  }
  const uint64_t bytes = amount->of(physical_bytes());
  if (bytes < kLimitBytesMin) {
    const bool no_unit = number_of(text).has_value();
    return expected(fmt::format("at least \"1MiB\"{}", no_unit ? hint_at_unit(text) : ""));
  }
  options.memory_bytes = bytes;
  return {};
}

Status set_session_quota(std::string_view text, Options& options) {
  const auto bytes = bytes_of(text);
  if (!bytes || *bytes == 0) return expected_bytes("bytes like \"4GiB\"");
  options.session_quota_bytes = *bytes;
  return {};
}

Status set_percent(std::string_view text, uint32_t& percent) {
  const auto number = percent_of(text);
  if (!number) return expected("a share like \"80%\"");
  percent = *number;
  return {};
}

Status set_pin_quota(std::string_view text, Options& options) {
  const auto amount = amount_of(text);
  if (!amount) return expected_bytes("bytes like \"8GiB\", or a share of the limit like \"50%\"");
  options.pin_quota = *amount;
  return {};
}

// A driver with more devices than this has not been heard of.
constexpr uint32_t kGpusMax = 16;
static_assert(kGpusMax + 2 <= limits::kDevices);

std::string_view without_spaces(std::string_view text) {
  const size_t begin = text.find_first_not_of(' ');
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(' ') + 1 - begin);
}

Status set_devices(std::string_view text, Options& options) {
  options.gpus.clear();
  if (text == kNoDevices) return {};
  for (bool more = true; more;) {
    const size_t comma = text.find(',');
    const std::string_view name = without_spaces(text.substr(0, comma));
    const std::optional<DeviceId> device = device_from(name);
    const bool is_gpu = device && device->kind == DeviceKind::kCuda && device->index < kGpusMax;
    if (!is_gpu) {
      return expected(
          fmt::format("GPUs like [\"cuda:0\", \"cuda:1\"], up to cuda:{}; cpu:0 is "
                      "always there",
                      kGpusMax - 1));
    }
    if (std::ranges::find(options.gpus, *device) != options.gpus.end()) {
      return expected(fmt::format("{} once", name));
    }
    options.gpus.push_back(*device);
    more = comma != text.npos;
    if (more) text.remove_prefix(comma + 1);
  }
  return {};
}

Status set_policy(std::string_view text, Options& options) {
  const auto policy = schedule_policy_of(text);
  if (!policy) return expected("\"fair\" or \"fifo\"");
  options.policy = *policy;
  return {};
}

Status set_isa(std::string_view text, Options& options) {
  options.isa = kHighestIsa;
  if (text == kBestIsa) return {};
  const auto level = isa_level_of(text);
  if (!level) {
    return expected(
        fmt::format("one of \"{}\", or \"{}\"", fmt::join(kIsaLevelNames, "\", \""), kBestIsa));
  }
  options.isa = *level;
  return {};
}

Status set_kernels(std::string_view text, Options& options) {
  if (text != kMeasured && text != "standard") return expected("\"measured\" or \"standard\"");
  options.measures_kernels = text == kMeasured;
  return {};
}

Status set_threads(std::string_view text, Options& options) {
  options.threads = 0;
  if (text == kAllCores) return {};
  const auto threads = number_of(text);
  if (!threads || *threads < 1 || *threads > 1024)
    return expected("a number from 1 to 1024, or \"all cores\"");
  options.threads = static_cast<uint32_t>(*threads);
  return {};
}

Status set_numerics(std::string_view text, Options& options) {
  const auto numerics = srg::from_name<srg::Numerics>(text);
  if (!numerics) return expected("\"exact\", \"fast\" or \"fast-only\"");
  options.numerics = *numerics;
  return {};
}

Status set_hang_timeout(std::string_view text, Options& options) {
  const auto time = milliseconds_of(text);
  if (!time || *time < 100 || *time > 3'600'000) {
    return expected("a time from \"100ms\" to \"60min\"");
  }
  options.hang_timeout_ms = *time;
  return {};
}

Status set_keep_alive(std::string_view text, Options& options) {
  const auto time = milliseconds_of(text);
  if (!time && text != "forever") {
    return expected("a time like \"5min\", \"0\", or \"forever\"");
  }
  options.keep_alive_ms = time.value_or(ipc::kKeepForever);
  return {};
}

Status set_drain_timeout(std::string_view text, Options& options) {
  const auto time = milliseconds_of(text);
  if (!time || *time > 3'600'000) return expected("a time from \"0\" to \"60min\"");
  options.drain_timeout_ms = *time;
  return {};
}

Status set_evict_idle(std::string_view text, Options& options) {
  return set_percent(text, options.thresholds.idle_percent);
}

Status set_evict_all(std::string_view text, Options& options) {
  return set_percent(text, options.thresholds.all_percent);
}

Status set_spill_after(std::string_view text, Options& options) {
  const auto time = milliseconds_of(text);
  if (!time) return expected("a time like \"1min\"");
  options.spill_idle_ms = *time;
  return {};
}

Status set_spill_directory(std::string_view text, Options& options) {
  if (!text.empty() && !text.starts_with('/')) {
    return expected("a path like \"/var/cache/djinn\", or \"\" for none");
  }
  options.spill_directory = text;
  return {};
}

Status set_spill_limit(std::string_view text, Options& options) {
  const auto bytes = bytes_of(text);
  if (!bytes && text != kAsLimit)
    return expected_bytes("bytes like \"16GiB\", or \"as memory.limit\"");
  options.spill_limit_bytes = bytes;
  return {};
}

Status set_keep_free(std::string_view text, Options& options) {
  const auto amount = amount_of(text);
  if (!amount) return expected_bytes("bytes like \"20GiB\", or a share of the disk like \"10%\"");
  options.keep_free = *amount;
  return {};
}

// --- quotas of users and groups

Status set_amount(std::string_view text, std::optional<Amount>& amount) {
  amount = amount_of(text);
  if (amount) return {};
  return expected_bytes("bytes like \"4GiB\", or a share of the limit like \"25%\"");
}

Status set_user_memory(std::string_view text, Quota& quota) {
  return set_amount(text, quota.memory);
}

Status set_user_pins(std::string_view text, Quota& quota) {
  return set_amount(text, quota.pins);
}

Status set_user_sessions(std::string_view text, Quota& quota) {
  const auto sessions = number_of(text);
  if (!sessions || *sessions < 1 || *sessions > limits::kSessionsPerUser) {
    return expected(fmt::format("a number from 1 to {}", limits::kSessionsPerUser));
  }
  quota.sessions = static_cast<uint32_t>(*sessions);
  return {};
}

Status set_user_models(std::string_view text, Quota& quota) {
  const auto models = number_of(text);
  if (!models || *models < 1 || *models > limits::kModels) {
    return expected(fmt::format("a number from 1 to {}", limits::kModels));
  }
  quota.models = static_cast<uint32_t>(*models);
  return {};
}

// --- quotas of principals

Status set_remote_memory(std::string_view text, Options& options) {
  return set_user_memory(text, options.principal_quota.of_each);
}

Status set_remote_pins(std::string_view text, Options& options) {
  return set_user_pins(text, options.principal_quota.of_each);
}

Status set_remote_sessions(std::string_view text, Options& options) {
  return set_user_sessions(text, options.principal_quota.of_each);
}

Status set_remote_models(std::string_view text, Options& options) {
  return set_user_models(text, options.principal_quota.of_each);
}

Status set_remote_connections(std::string_view text, Options& options) {
  Quota quota;
  DJINN_CHECK(set_user_sessions(text, quota));  // a user's connections have the same bounds
  options.principal_quota.connections = *quota.sessions;
  return {};
}

// --- the settings

constexpr std::string_view kEvictAll = "memory.evict_all_above";
constexpr std::string_view kEvictIdle = "memory.evict_idle_above";

constexpr std::string_view kDevices = "devices";

constexpr std::array kSettings{
    Setting{"devices", kNoDevices, false, set_devices},
    Setting{"lane.isa", kBestIsa, false, set_isa},
    Setting{"lane.kernels", kMeasured, false, set_kernels},
    Setting{"lane.numerics", "exact", true, set_numerics},
    Setting{"lane.policy", name_of(SchedulePolicy::kFair), false, set_policy},
    Setting{"lane.threads", kAllCores, false, set_threads},
    Setting{"memory.evict_all_above", "95%", true, set_evict_all},
    Setting{"memory.evict_idle_above", "80%", true, set_evict_idle},
    Setting{"memory.limit", "80%", false, set_limit},
    Setting{"memory.pin_quota", "50%", true, set_pin_quota},
    Setting{"memory.session_quota", "4GiB", true, set_session_quota},
    Setting{"memory.spill_after", "1min", true, set_spill_after},
    Setting{"memory.spill_directory", "the cache directory", false, set_spill_directory},
    Setting{"memory.spill_limit", kAsLimit, true, set_spill_limit},
    Setting{"model.keep_alive", "5min", true, set_keep_alive},
    Setting{"remote.connections_max", "64", true, set_remote_connections},
    Setting{"remote.memory_quota", "16GiB", true, set_remote_memory},
    Setting{"remote.models_max", "32", true, set_remote_models},
    Setting{"remote.pin_quota", "0", true, set_remote_pins},
    Setting{"remote.sessions_max", "16", true, set_remote_sessions},
    Setting{"service.drain_timeout", "10s", true, set_drain_timeout},
    Setting{"store.keep_free", "10%", true, set_keep_free},
    Setting{"worker.hang_timeout", "10s", false, set_hang_timeout},
};
static_assert(std::ranges::is_sorted(kSettings, {}, &Setting::key));
static_assert(std::ranges::find(kSettings, kDevices, &Setting::key) != kSettings.end());
static_assert(std::ranges::find(kSettings, kEvictAll, &Setting::key) != kSettings.end());
static_assert(std::ranges::find(kSettings, kEvictIdle, &Setting::key) != kSettings.end());

const Setting* setting_named(std::string_view key) {
  const auto found = std::ranges::find(kSettings, key, &Setting::key);
  return found == kSettings.end() ? nullptr : &*found;
}

struct QuotaSetting {
  std::string_view key;
  Status (*apply)(std::string_view value, Quota& quota);
};
constexpr std::array kQuotaSettings{
    QuotaSetting{"memory_quota", set_user_memory},
    QuotaSetting{"models_max", set_user_models},
    QuotaSetting{"pin_quota", set_user_pins},
    QuotaSetting{"sessions_max", set_user_sessions},
};

static_assert(std::ranges::none_of(kQuotaSettings, [](const QuotaSetting& setting) {
  return setting.key.find('.') != setting.key.npos;
}));

// Splits "user.NAME.KEY". A key has no '.', but a name may.
struct SectionKey {
  bool is_group;
  std::string_view name;
  std::string_view key;
};
std::optional<SectionKey> section_key(std::string_view key) {
  const size_t first = key.find('.'), last = key.rfind('.');
  if (first == key.npos || last == first) return std::nullopt;
  const std::string_view kind = key.substr(0, first);
  if (kind != "user" && kind != "group") return std::nullopt;
  return SectionKey{kind == "group", key.substr(first + 1, last - first - 1), key.substr(last + 1)};
}

const QuotaSetting* quota_setting_named(std::string_view key) {
  const auto found = std::ranges::find(kQuotaSettings, key, &QuotaSetting::key);
  return found == kQuotaSettings.end() ? nullptr : &*found;
}

Quota& quota_of(const SectionKey& section, std::vector<NamedQuota>& quotas) {
  const auto found = std::ranges::find_if(quotas, [&](const NamedQuota& one) {
    return one.is_group == section.is_group && one.name == section.name;
  });
  if (found != quotas.end()) return found->quota;
  return quotas.emplace_back(NamedQuota{section.is_group, std::string(section.name), {}, {}}).quota;
}

// --- limits of devices

constexpr std::string_view kDevicePrefix = "device.";
constexpr std::string_view kLimitSuffix = ".limit";

// Gives the device whose limit the key sets; nothing for other keys, and for the host's limit.
std::optional<DeviceId> limited_device(std::string_view key) {
  if (!key.starts_with(kDevicePrefix) || !key.ends_with(kLimitSuffix)) return std::nullopt;
  if (key.size() <= kDevicePrefix.size() + kLimitSuffix.size()) return std::nullopt;
  key.remove_prefix(kDevicePrefix.size());
  key.remove_suffix(kLimitSuffix.size());
  const std::optional<DeviceId> device = device_from(key);
  return device == kHostDevice ? std::nullopt : device;
}

// Tells whether the key sets the limit of a device of a kind that this djinnd does not know, by a
// name as devices have it: "device.tpu:0.limit".
bool limits_strange_device(std::string_view key) {
  if (!key.starts_with(kDevicePrefix) || !key.ends_with(kLimitSuffix)) return false;
  if (key.size() <= kDevicePrefix.size() + kLimitSuffix.size()) return false;
  key.remove_prefix(kDevicePrefix.size());
  key.remove_suffix(kLimitSuffix.size());
  const size_t colon = key.find(':');
  const std::string_view kind = key.substr(0, colon);
  const bool is_kind =
      !kind.empty() && std::ranges::all_of(kind, [](char c) { return c >= 'a' && c <= 'z'; });
  return is_kind && colon != key.npos && number_of(key.substr(colon + 1)).has_value() &&
         !device_from(key);
}

Status set_device_limit(std::string_view text, DeviceId device, Options& options) {
  const auto amount = amount_of(text);
  const bool is_less = amount && !amount->is_percent && amount->number < kLimitBytesMin;
  if (!amount || amount->number == 0 || is_less) {
    return expected_bytes("bytes like \"12GiB\", at least \"1MiB\", or a share like \"80%\"");
  }
  options.device_limits[device] = *amount;
  return {};
}

// --- principals who are users of the machine

constexpr std::string_view kMapPrefix = "remote.map.";

// The principal of a mapping's key.
std::string_view mapped_principal(std::string_view key) {
  return key.substr(kMapPrefix.size());
}

Status set_mapping(std::string_view principal, std::string_view user, Options& options) {
  const auto named = ipc::Principal::parse(principal);
  if (!named || named->is_gate()) {
    return expected("the name of a client in quotes before the '=', like \"spiffe://DOMAIN/NAME\"");
  }
  if (user.empty() || user.size() > limits::kNameBytes) return expected("the name of a user");
  if (user == "root") return expected("another user: no principal is root");
  options.principal_map[std::string(principal)] = MappedUser{std::string(user)};
  return {};
}

// --- unknown keys

// Gives Levenshtein's distance: insertions, deletions and substitutions.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({changed, row[j] + 1, row[j - 1] + 1});
    }
  }
  DJINN_ASSERT(row.back() <= std::max(a.size(), b.size()));
  return row.back();
}

// Counts the edits between a setting's name and what was written. If only the section was left out,
// the rest of the name is compared.
size_t slips(const Setting& setting, std::string_view key) {
  const size_t whole = distance(setting.key, key);
  if (key.find('.') != key.npos) return whole;
  const size_t rest = distance(setting.key.substr(setting.key.find('.') + 1), key);
  return rest <= 1 ? 1 + rest : whole;
}

// Says what to write in place of an unknown key.
std::string advice_for(const SectionKey& section) {
  const auto nearest = std::ranges::min(
      kQuotaSettings, {}, [&](const QuotaSetting& s) { return distance(s.key, section.key); });
  if (distance(nearest.key, section.key) <= kSlipsMax) {
    return fmt::format("did you mean {}?", nearest.key);
  }
  return "there are memory_quota, models_max, pin_quota and sessions_max";
}

std::string advice_for(std::string_view key) {
  if (key.starts_with(kDevicePrefix)) {
    return "what djinnd grants of a device beside the host is written as limit in a section named "
           "like [device.\"cuda:0\"]; the host's is memory.limit";
  }
  if (key.find("admin") != key.npos) {
    return "administrators are root and the members of the group djinn-admin, or of the one that "
           "djinnd's option --admin-group names";
  }
  const bool of_somebody = key.find("user") != key.npos || key.find("group") != key.npos;
  if (of_somebody) {
    return "what one user may have is written as memory_quota, models_max, pin_quota and "
           "sessions_max in a section [user.NAME], or [group.NAME]";
  }
  if (key.find("preload") != key.npos) {
    return "a model that is loaded whenever djinnd starts is a unit djinn-load@PATH.service, see "
           "djinnd(8)";
  }
  const auto nearest =
      std::ranges::min(kSettings, {}, [&](const Setting& s) { return slips(s, key); });
  if (slips(nearest, key) > kSlipsMax) return "";
  return fmt::format("did you mean {}?", nearest.key);
}

bool is_known_key(std::string_view key) {
  if (is_mapping(key)) return true;
  if (const auto section = section_key(key)) return quota_setting_named(section->key) != nullptr;
  return limited_device(key).has_value() || setting_named(key) != nullptr;
}

// --- files

// Gives the files in the order in which they are read.
std::vector<std::string> files_under(const std::string& root, Config& config) {
  std::error_code is_none;
  if (!root.empty() && !fs::is_directory(root, is_none)) {
    config.problems.push_back(
        {true, fmt::format("{}: error: there is no such directory to stand before {}; see --root",
                           root, kMain)});
    return {};
  }
  std::map<std::string, std::string> drop_ins;
  for (const std::string_view directory : kDropIns) {
    std::error_code error;
    const std::string there = root + std::string(directory);
    for (const auto& entry : fs::directory_iterator(there, error)) {
      const fs::path& path = entry.path();
      if (path.extension() == ".conf") drop_ins[path.filename()] = path;
    }
    if (error && error != std::errc::no_such_file_or_directory) {
      config.problems.push_back({true, there + ": error: " + error.message()});
    }
  }
  std::vector<std::string> files{root + std::string(kMain)};
  for (const auto& [name, path] : drop_ins) files.push_back(path);
  return files;
}

// Gives nothing if there is no such file, if it is masked, or if it cannot be read, which adds a
// problem.
std::optional<std::string> contents(const std::string& path, Config& config) {
  std::error_code error;
  std::error_code is_no_link;
  const bool is_there = fs::exists(path, error);
  if (error) {
    config.problems.push_back({true, path + ": error: " + error.message()});
    return std::nullopt;
  }
  if (!is_there || fs::read_symlink(path, is_no_link) == "/dev/null") return std::nullopt;
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text(kConfigBytesMax + 1, '\0');
  const ssize_t length = file.valid() ? ::read(file.get(), text.data(), text.size()) : -1;
  if (length < 0 || static_cast<size_t>(length) > kConfigBytesMax) {
    config.problems.push_back({true, path + ": error: it is no file of at most 64 KiB that djinnd "
                                            "may read"});
    return std::nullopt;
  }
  text.resize(static_cast<size_t>(length));
  return text;
}

// Gives a list of strings as one with commas; nothing for any other list.
std::optional<std::string> joined(const toml::array& list) {
  std::string text;
  for (const toml::node& node : list) {
    const auto* const string = node.as_string();
    if (string == nullptr) return std::nullopt;
    text += (text.empty() ? "" : ", ") + string->get();
  }
  return list.empty() ? std::string(kNoDevices) : text;
}

// Gives a setting's value as text; nothing for kinds of TOML that the setting has not.
std::optional<std::string> string_in(std::string_view key, const toml::node& node) {
  if (const auto* list = node.as_array(); list != nullptr && key == kDevices) return joined(*list);
  if (const auto* string = node.as_string()) return string->get();
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  return std::nullopt;
}

// Says what is most often wrong with a line that is not TOML: a value with a unit, like 64MiB or
// 80%, that has no quotes. Empty for any other line; lines count from 1.
std::string advice_for_line(std::string_view text, size_t line) {
  for (; line > 1 && !text.empty(); --line) {
    text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
  }
  text = text.substr(0, text.find_first_of("#\r\n"));
  const size_t equals = text.find('=');
  if (equals == text.npos) return {};
  const size_t begin = text.find_first_not_of(" \t", equals + 1);
  if (begin == text.npos || text[begin] < '0' || text[begin] > '9') return {};
  const std::string_view value = text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
  const bool has_unit = std::ranges::any_of(
      value, [](char c) { return c == '%' || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); });
  if (!has_unit || value.find_first_of("\"'") != value.npos) return {};
  return fmt::format("; what has a unit stands in quotes: \"{}\"", value);
}

class Reader {
 public:
  Reader(Config& config, UnknownKeys unknown) : config_(config), unknown_(unknown) {}

  void read(const std::string& path) {
    file_ = path;
    ++files_;
    const auto text = contents(path, config_);
    if (!text) return;
    const toml::parse_result parsed = toml::parse(*text);
    if (!parsed) {
      const auto line = parsed.error().source().begin.line;
      return say(true, line,
                 fmt::format("this is not TOML: {}{}", parsed.error().description(),
                             advice_for_line(*text, line)));
    }
    walk("", parsed.table());
  }

  void finish() {
    if (config_.is_valid()) compare_thresholds();
    for (auto& [key, value] : found_) {
      note_section(value.as_written);
      note_mapping(value.as_written);
      config_.values.push_back(std::move(value.as_written));
    }
  }

 private:
  void walk(const std::string& prefix, const toml::table& table) {
    for (const auto& [name, node] : table) {
      const std::string key = prefix + std::string(name.str());
      const toml::table* const inner = node.as_table();
      // A name may have a '.', so what stands in a table of that name would be of another one.
      if (inner != nullptr && !is_mapping(key)) {
        walk(key + ".", *inner);
      } else {
        take(key, node);
      }
    }
  }

  void note_section(const ConfigValue& value) {
    const auto key = section_key(value.key);
    if (!key) return;
    const bool is_known = std::ranges::any_of(config_.sections, [&](const ConfigSection& one) {
      return one.is_group == key->is_group && one.name == key->name;
    });
    if (is_known) return;
    config_.sections.push_back({key->is_group, std::string(key->name), value.file, value.line, {}});
  }

  void note_mapping(const ConfigValue& value) {
    if (!is_mapping(value.key)) return;
    config_.mappings.push_back(
        {std::string(mapped_principal(value.key)), MappedUser{value.text}, value.file, value.line});
  }

  static std::string advice_of(const std::string& key) {
    const auto section = section_key(key);
    return section ? advice_for(*section) : advice_for(key);
  }

  void take(const std::string& key, const toml::node& node) {
    const uint32_t line = node.source().begin.line;
    const bool is_strange = limits_strange_device(key);
    if (!is_strange && !is_known_key(key)) return take_unknown(key, line);
    const auto text = string_in(key, node);
    if (!text) {
      return say(true, line,
                 fmt::format("{}: write {}", key,
                             key == kDevices ? "a list of strings" : "a string or a whole number"));
    }
    Options nowhere;
    if (is_strange) {
      const Status written = set_device_limit(*text, kHostDevice, nowhere);
      const std::string what =
          written ? ignored_limit(key) : fmt::format("{}: {}", key, written.error().message);
      return say(!written, line, what);
    }
    const Status applied = apply_setting(key, *text, nowhere);
    if (!applied) return say(true, line, fmt::format("{}: {}", key, applied.error().message));
    found_[key] = {{key, *text, file_, line}, files_};
  }

  void take_unknown(const std::string& key, uint32_t line) {
    const bool is_refused = unknown_ == UnknownKeys::kRefused;
    const std::string advice = advice_of(key);
    say(is_refused, line,
        fmt::format("{} is no key{}{}{}", key, is_refused ? "" : "; it is ignored",
                    advice.empty() ? "" : "; ", advice));
  }

  // Each of the two values is legal by itself. The mistake is reported where the later one was
  // written.
  void compare_thresholds() {
    const auto idle = found_.find(kEvictIdle);
    const auto all = found_.find(kEvictAll);
    Options options;
    for (const auto& written : {idle, all}) {
      if (written == found_.end()) continue;
      const Status applied =
          apply_setting(written->first, written->second.as_written.text, options);
      DJINN_ASSERT(applied.ok());
    }
    const auto [idle_percent, all_percent] = options.thresholds;
    if (idle_percent <= all_percent) return;
    const bool idle_is_later =
        all == found_.end() || (idle != found_.end() && idle->second.place() > all->second.place());
    const ConfigValue& later = (idle_is_later ? idle : all)->second.as_written;
    file_ = later.file;
    say(true, later.line,
        idle_is_later
            ? fmt::format("{}: write at most {}%, which {} is", kEvictIdle, all_percent, kEvictAll)
            : fmt::format("{}: write at least {}%, which {} is", kEvictAll, idle_percent,
                          kEvictIdle));
  }

  void say(bool is_error, uint32_t line, const std::string& what) {
    const char* const kind = is_error ? "error" : "warning";
    config_.problems.push_back({is_error, fmt::format("{}:{}: {}: {}", file_, line, kind, what)});
  }

  struct Found {
    ConfigValue as_written;
    uint32_t file_number = 0;  // files are read in their order
    [[nodiscard]] std::pair<uint32_t, uint32_t> place() const {
      return std::pair(file_number, as_written.line);
    }
  };

  Config& config_;
  UnknownKeys unknown_;
  std::string file_;
  uint32_t files_ = 0;
  std::map<std::string, Found, std::less<>> found_;
};

}  // namespace

std::span<const Setting> settings() {
  return kSettings;
}

Status apply_setting(std::string_view key, std::string_view value, Options& options) {
  DJINN_ASSERT(is_known_key(key));
  if (const auto section = section_key(key)) {
    const QuotaSetting* const setting = quota_setting_named(section->key);
    DJINN_CHECK(setting->apply(value, quota_of(*section, options.quotas)));
  } else if (const auto device = limited_device(key)) {
    DJINN_CHECK(set_device_limit(value, *device, options));
  } else if (is_mapping(key)) {
    DJINN_CHECK(set_mapping(mapped_principal(key), value, options));
  } else {
    DJINN_CHECK(setting_named(key)->apply(value, options));
  }
  options.written[std::string(key)] = value;
  return {};
}

std::string limit_key(DeviceId device) {
  return fmt::format("{}{}{}", kDevicePrefix, text_of(device), kLimitSuffix);
}

std::vector<ipc::SettingReport> settings_in_force(const Options& options, const Options& running) {
  std::vector<ipc::SettingReport> all;
  for (const Setting& setting : kSettings) {
    const auto& written = (setting.reloads ? options : running).written;
    const auto found = written.find(setting.key);
    const std::string value(found == written.end() ? setting.standard : found->second);
    all.push_back({std::string(setting.key), value.substr(0, limits::kNameBytes), setting.reloads});
  }
  for (const auto& [key, value] : running.written) {
    if (limited_device(key)) all.push_back({key, value, false});
  }
  for (const auto& [key, value] : options.written) {
    if (!section_key(key) && !is_mapping(key)) continue;
    if (key.size() > limits::kNameBytes) continue;
    if (all.size() < limits::kListPage) all.push_back({key, value, true});
  }
  return all;
}

bool is_mapping(std::string_view key) {
  return key.starts_with(kMapPrefix);
}

bool reloads(std::string_view key) {
  if (section_key(key) || is_mapping(key)) return true;
  const Setting* setting = setting_named(key);
  return setting != nullptr && setting->reloads;
}

static void look_up_mapped(Config& config) {
  for (ConfigMapping& mapping : config.mappings) {
    mapping.user.number = user_named(mapping.user.name);
    mapping.user.groups = groups_of_user(mapping.user.name);
    if (mapping.user.number.value_or(0) != 0) continue;
    config.problems.push_back(
        {false, fmt::format("{}:{}: warning: {}{}: there is no user {} who may be one's, or the "
                            "system does not know it now; the principal is refused until the "
                            "configuration is read again",
                            mapping.file, mapping.line, kMapPrefix, mapping.principal,
                            mapping.user.name)});
  }
}

// A number that is nobody's name is taken as the number of a user or group.
void look_up_names(Config& config) {
  look_up_mapped(config);
  for (ConfigSection& section : config.sections) {
    section.number = section.is_group ? group_named(section.name) : user_named(section.name);
    if (section.number) continue;
    const auto number = number_of(section.name);
    if (number && *number < std::numeric_limits<uint32_t>::max()) {
      section.number = static_cast<uint32_t>(*number);
      continue;
    }
    const char* const kind = section.is_group ? "group" : "user";
    config.problems.push_back(
        {false, fmt::format("{0}:{1}: warning: {2}.{3}: there is no {2} {3}, or the system does "
                            "not know it now; the section binds nobody until the configuration is "
                            "read again",
                            section.file, section.line, kind, section.name)});
  }
}

static const ConfigValue* value_of(const Config& config, std::string_view key) {
  const auto found = std::ranges::find(config.values, key, &ConfigValue::key);
  return found == config.values.end() ? nullptr : &*found;
}

static void warn_of(Config& config, const ConfigValue& value, const std::string& what) {
  config.problems.push_back(
      {false, fmt::format("{}:{}: warning: {}", value.file, value.line, what), true});
}

void check_against_machine(Config& config) {
  Options options;
  if (const ConfigValue* const limit = value_of(config, "memory.limit")) {
    DJINN_ASSERT(set_limit(limit->text, options).ok());
    const std::string fault = fault_of_limit(limit->text, options.memory_bytes, physical_bytes());
    if (!fault.empty()) warn_of(config, *limit, fault);
  }
  if (const ConfigValue* const isa = value_of(config, "lane.isa")) {
    DJINN_ASSERT(set_isa(isa->text, options).ok());
    const std::string fault = fault_of_isa(isa->text, options.isa, best_isa_level());
    if (!fault.empty()) warn_of(config, *isa, fault);
  }
}

void check_spill_directory(Config& config) {
  const ConfigValue* const directory = value_of(config, "memory.spill_directory");
  if (directory == nullptr || directory->text.empty()) return;
  fs::path there = directory->text;
  std::error_code error;
  // djinnd makes the directory, and those above it, where they are missing.
  while (there.has_relative_path() && !fs::exists(there, error) && !error) {
    there = there.parent_path();
  }
  if (!error && !fs::is_directory(there, error)) error = {ENOTDIR, std::generic_category()};
  if (!error && ::access(there.c_str(), W_OK | X_OK) != 0) error = {errno, std::generic_category()};
  if (!error) return;
  warn_of(config, *directory,
          fmt::format("memory.spill_directory is {}, where no file can be made ({}: {}): sequence "
                      "groups stay in memory when it is short. Let djinnd write there, name "
                      "another directory, or write \"\" for none.",
                      directory->text, there.string(), error.message()));
}

std::string ignored_limit(std::string_view key) {
  return fmt::format(
      "{} is ignored: djinnd grants no memory of such a device; 'djinnctl devices' lists those "
      "that "
      "it has",
      key);
}

bool Config::is_valid() const {
  return std::ranges::none_of(problems, &ConfigProblem::is_error);
}

Config read_config(const std::string& root, UnknownKeys unknown) {
  Config config;
  Reader reader(config, unknown);
  for (const std::string& file : files_under(root, config)) reader.read(file);
  reader.finish();
  return config;
}

void apply_config(const Config& config, Options& options) {
  DJINN_ASSERT(config.is_valid());
  for (const ConfigProblem& problem : config.problems) {
    (problem.is_taken ? options.setting_warnings : options.config_warnings).push_back(problem.text);
  }
  for (const ConfigValue& value : config.values) {
    const Status applied = apply_setting(value.key, value.text, options);
    DJINN_ASSERT(applied.ok());
  }
  for (const ConfigSection& section : config.sections) {
    const auto found = std::ranges::find_if(options.quotas, [&](const NamedQuota& one) {
      return one.is_group == section.is_group && one.name == section.name;
    });
    DJINN_ASSERT(found != options.quotas.end());
    found->number = section.number;
  }
  for (const ConfigMapping& mapping : config.mappings) {
    options.principal_map[mapping.principal] = mapping.user;
  }
}

static std::string line_of(const ConfigValue& value) {
  return fmt::format("{} = {}  # {}:{}\n", value.key, value.text, value.file, value.line);
}

std::string show_config(const Config& config) {
  std::string text;
  for (const Setting& setting : kSettings) {
    const auto found = std::ranges::find(config.values, setting.key, &ConfigValue::key);
    text += found == config.values.end()
                ? fmt::format("{} = {}  # standard\n", setting.key, setting.standard)
                : line_of(*found);
  }
  for (const ConfigValue& value : config.values) {
    if (setting_named(value.key) == nullptr) text += line_of(value);
  }
  return text;
}

}  // namespace djinn::daemon
