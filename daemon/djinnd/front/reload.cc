// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/front/reload.h"

#include <utility>

#include "daemon/djinnd/loop/log.h"
#include "kernel/base/assert.h"

namespace djinn::daemon {
namespace {

Error refused() {
  return {ErrorCode::kInvalidArgument,
          "The configuration has errors, and stays as it was. djinnd's log has file and line."};
}

}  // namespace

Reload::Reload(Loop& loop, const Options& options, ReloadOptions read, Memory& memory,
               Quotas& quotas, Sessions& sessions, Models& models, Reclaimer& reclaimer,
               Reports& reports, Drain& drain, Events& events, Service& service)
    : options_(options),
      read_(std::move(read)),
      memory_(memory),
      quotas_(quotas),
      sessions_(sessions),
      models_(models),
      reclaimer_(reclaimer),
      reports_(reports),
      drain_(drain),
      events_(events),
      service_(service),
      name_work_(loop, "names") {
  take_settings(options_);
}

Status Reload::begin() {
  if (options_.user_mode) {
    return Error{ErrorCode::kUnsupported, "A djinnd of one user has no configuration."};
  }
  Config config = read_config(options_.root);
  service_.reloading();
  const auto written = config.is_valid() ? read_(config) : Result<Options>(refused());
  if (!written) {
    for (const ConfigProblem& problem : config.problems) log_line(problem.text);
    events_.emit(
        {EventKind::kConfigRefused, "the configuration is as it was: the new one has errors", {}});
    service_.ready();
    return written.error();
  }
  name_work_.run(
      [config = std::move(config)]() mutable {
        look_up_names(config);
        return std::move(config);
      },
      [this](const Config& named) {
        for (const ConfigProblem& problem : named.problems) log_line(problem.text);
        auto complete = read_(named);
        DJINN_ASSERT(complete.ok());  // as it was without the names
        take_up(named, *std::move(complete));
      });
  return {};
}

void Reload::take_up(const Config& config, Options written) {
  DJINN_ASSERT(!options_.user_mode && config.is_valid());
  // Another limit is written perhaps, but not in effect before a restart.
  written = with_shares(std::move(written), memory_.total_bytes());
  memory_.set_session_quota(written.session_quota_bytes);
  models_.residency().set_keep_alive(written.keep_alive_ms);
  reclaimer_.set(written.thresholds);
  sessions_.sequences().spill().set_idle_ms(written.spill_idle_ms);
  sessions_.sequences().spill().set_limit(written.spill_limit_bytes.value_or(0));
  drain_.set_timeout(written.drain_timeout_ms.value_or(0));
  take_settings(std::move(written));
  for (const ConfigValue& value : config.values) {
    const auto now = options_.written.find(value.key);
    const bool is_same = now != options_.written.end() && now->second == value.text;
    if (!reloads(value.key) && !is_same) log("{} takes effect at the next start", value.key);
  }
  events_.emit({EventKind::kConfigReloaded, "the configuration is reloaded", {}});
  service_.ready();
}

// Quotas, and what is shown; at the start, too.
void Reload::take_settings(Options written) {
  if (!written.user_mode) reports_.set_settings(settings_in_force(written, options_));
  const uint64_t total = memory_.total_bytes();
  quotas_.set(std::move(written.quotas), total, written.pin_quota.of(total));
}

}  // namespace djinn::daemon
