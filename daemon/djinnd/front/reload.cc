// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/front/reload.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "ipc/codec/control_codec.h"
#include "kernel/base/assert.h"

namespace djinn::daemon {
namespace {

Error refused() {
  return {ErrorCode::kInvalidArgument,
          "The configuration has errors, and stays as it was. 'djinnctl events' and djinnd's log "
          "have file and line."};
}

std::vector<std::string> texts_of(const std::vector<ConfigProblem>& problems) {
  std::vector<std::string> texts;
  for (const ConfigProblem& problem : problems) texts.push_back(problem.text);
  return texts;
}

// The limit leaves room for other events if a file has nothing but mistakes.
constexpr size_t kProblemsToldMax = 16;

const char* what_problems_are(EventKind kind) {
  switch (kind) {
    case EventKind::kConfigRefused:
      return "a line of the configuration has an error";
    case EventKind::kConfigIgnored:
      return "a line of the configuration counts for nothing";
    default:
      DJINN_ASSERT(kind == EventKind::kConfigWarning);
      return "a setting will hardly do what was meant";
  }
}

}  // namespace

void tell_problems(Events& events, EventKind kind, const std::vector<std::string>& problems) {
  const size_t told = std::min(problems.size(), kProblemsToldMax);
  for (size_t i = 0; i < told; ++i) {
    Event event{kind, what_problems_are(kind), kAdministrators};
    event.sentence = ipc::showable_sentence(problems[i]);
    events.emit(std::move(event));
  }
  if (told == problems.size()) return;
  events.emit({kind,
               fmt::format("so do {} more lines of the configuration: djinnd --check-config tells "
                           "all",
                           problems.size() - told),
               kAdministrators});
}

Reload::Reload(Loop& loop, const Options& options, ReloadOptions read, Authority& authority,
               Devices& devices, Quotas& quotas, Sessions& sessions, Models& models,
               Reclaimers& reclaimers, Published& published, Reports& reports, Drain& drain,
               Events& events, Service& service)
    : options_(options),
      read_(std::move(read)),
      authority_(authority),
      devices_(devices),
      quotas_(quotas),
      sessions_(sessions),
      models_(models),
      reclaimers_(reclaimers),
      published_(published),
      reports_(reports),
      drain_(drain),
      events_(events),
      service_(service),
      name_work_(loop, "names") {
  take_settings(options_);
  if (!options_.user_mode) reports_.set_config_root(options_.root);
}

Status Reload::begin() {
  if (options_.user_mode) {
    return Error{ErrorCode::kUnsupported, "A djinnd of one user has no configuration."};
  }
  Config config = read_config(options_.root, UnknownKeys::kRefused);
  service_.reloading();
  const auto written = config.is_valid() ? read_(config) : Result<Options>(refused());
  if (!written) {
    tell_problems(events_, EventKind::kConfigRefused, texts_of(config.problems));
    events_.emit(
        {EventKind::kConfigRefused, "the configuration is as it was: the new one has errors", {}});
    service_.ready();
    return written.error();
  }
  name_work_.run(
      [config = std::move(config)]() mutable {
        look_up_names(config);
        check_spill_directory(config);
        return std::move(config);
      },
      [this](const Config& named) {
        auto complete = read_(named);
        DJINN_ASSERT(complete.ok());  // as it was without the names
        take_up(named, *std::move(complete));
      });
  return {};
}

void Reload::take_up(const Config& config, Options written) {
  DJINN_ASSERT(!options_.user_mode && config.is_valid());
  // Shares are of the limit in effect: a new limit may be written, but takes effect with a restart.
  written = with_shares(std::move(written), devices_.first().total_bytes());
  devices_.set_session_quota(written.session_quota_bytes);
  models_.residency().set_keep_alive(written.keep_alive_ms);
  reclaimers_.set(written.thresholds);
  sessions_.sequences().spill().set_idle_ms(written.spill_idle_ms);
  sessions_.sequences().spill().set_limit(written.spill_limit_bytes.value_or(0));
  published_.set_keep_free(written.keep_free);
  drain_.set_timeout(written.drain_timeout_ms.value_or(0));
  tell_problems(events_, EventKind::kConfigIgnored, written.config_warnings);
  tell_problems(events_, EventKind::kConfigWarning, written.setting_warnings);
  const std::map<std::string, std::string, std::less<>> counts = written.written;
  take_settings(std::move(written));
  devices_.freed();  // what waits may fit now, or never
  for (const ConfigValue& value : config.values) {
    if (!counts.contains(value.key)) continue;  // it is ignored at a start, too
    const auto now = options_.written.find(value.key);
    const bool is_same = now != options_.written.end() && now->second == value.text;
    if (reloads(value.key) || is_same) continue;
    events_.emit({EventKind::kConfigIgnored,
                  fmt::format("{} takes effect at the next start", value.key), kAdministrators});
  }
  events_.emit({EventKind::kConfigReloaded, "the configuration is reloaded", {}});
  service_.ready();
}

// Takes quotas and what reports show of the settings; called at the start, too.
void Reload::take_settings(Options written) {
  if (!written.user_mode) reports_.set_settings(settings_in_force(written, options_));
  sessions_.set_numerics(written.numerics);
  authority_.set_map(std::move(written.principal_map));
  quotas_.set_principals(written.principal_quota);
  quotas_.set(std::move(written.quotas), written.pin_quota);
}

}  // namespace djinn::daemon
