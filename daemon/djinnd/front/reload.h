// SPDX-License-Identifier: Apache-2.0

// Reload: the configuration is read again while djinnd runs.
//
//   options    what configuration and command line amounted to at the start
//   reloads    of a setting: it may change while djinnd runs (config.h); the others take effect at
//              the next start, and events say which
//
// invariant: all that reloads is taken up, or nothing is.
#pragma once

#include <functional>

#include "daemon/djinnd/events/events.h"
#include "daemon/djinnd/front/drain.h"
#include "daemon/djinnd/front/published.h"
#include "daemon/djinnd/front/reports.h"
#include "daemon/djinnd/host/config.h"
#include "daemon/djinnd/host/options.h"
#include "daemon/djinnd/host/service.h"
#include "daemon/djinnd/loop/loop.h"
#include "daemon/djinnd/loop/work_queue.h"
#include "daemon/djinnd/memory/devices.h"
#include "daemon/djinnd/models/models.h"
#include "daemon/djinnd/reclaim/reclaimers.h"
#include "daemon/djinnd/sessions/sessions.h"

namespace djinn::daemon {

// Tells administrators, an event each, what is wrong with the configuration: file, line, and what.
// kind: kConfigRefused, kConfigIgnored or
// kConfigWarning.
void tell_problems(Events& events, EventKind kind, const std::vector<std::string>& problems);

// The options that a configuration amounts to, with the command line over it.
using ReloadOptions = std::function<Result<Options>(const Config&)>;

class Reload {
 public:
  // options: as at the start; they outlive this, which takes up their quotas, and what is shown of
  // them, at once.
  Reload(Loop& loop, const Options& options, ReloadOptions read, Authority& authority,
         Devices& devices, Quotas& quotas, Sessions& sessions, Models& models,
         Reclaimers& reclaimers, Published& published, Reports& reports, Drain& drain,
         Events& events, Service& service);

  // Takes up what the configuration files change of the settings that reload, once the names in
  // them are looked up. Errors: kInvalidArgument, kUnsupported; then nothing is changed.
  Status begin();

 private:
  void take_up(const Config& config, Options written);
  void take_settings(Options written);

  const Options& options_;
  ReloadOptions read_;
  Authority& authority_;
  Devices& devices_;
  Quotas& quotas_;
  Sessions& sessions_;
  Models& models_;
  Reclaimers& reclaimers_;
  Published& published_;
  Reports& reports_;
  Drain& drain_;
  Events& events_;
  Service& service_;
  WorkQueue name_work_;
};

}  // namespace djinn::daemon
