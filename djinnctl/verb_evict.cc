// SPDX-License-Identifier: Apache-2.0

// djinnctl evict MODEL... moves models off their device; their next use brings them back.
#include <unistd.h>

#include "djinnctl/command_line.h"
#include "djinnctl/each_model.h"
#include "djinnctl/exit_code.h"
#include "djinnctl/output.h"
#include "djinnctl/progress.h"
#include "djinnctl/text.h"
#include "djinnctl/uses.h"

namespace djinn::ctl {
namespace {

struct EvictOptions {
  std::vector<std::string> named;
  std::string to = "disk";
  bool all = false;
  bool dry_run = false;
  bool force = false;
};

ipc::EvictModel request_for(const ipc::ModelReport& model, const EvictOptions& options) {
  const ipc::Tier tier = options.to == "host" ? ipc::Tier::kHost : ipc::Tier::kDisk;
  return {model.model, tier, options.force, options.dry_run};
}

// Tells whether djinnd would let the model go now; it may find otherwise by the time it is asked
// to.
Result<bool> may_go(client::Client& client, const ipc::ModelReport& model,
                    const EvictOptions& options) {
  if (model.state != ipc::ModelState::kResident) return false;
  ipc::EvictModel request = request_for(model, options);
  request.dry_run = true;
  const Status would = client.evict_model(request);
  if (would) return true;
  const bool stays = would.error().code == ErrorCode::kBusy ||
                     would.error().code == ErrorCode::kPermissionDenied ||
                     would.error().code == ErrorCode::kNotFound;
  if (stays) return false;
  return would.error();
}

Result<std::vector<ipc::ModelReport>> all_that_may_go(client::Client& client,
                                                      const EvictOptions& options) {
  DJINN_TRY(const auto models, client.models());
  std::vector<ipc::ModelReport> going;
  for (const ipc::ModelReport& model : models) {
    DJINN_TRY(const bool goes, may_go(client, model, options));
    if (goes) going.push_back(model);
  }
  return going;
}

Result<std::vector<ipc::ModelReport>> chosen(client::Client& client, const EvictOptions& options) {
  if (options.all) return all_that_may_go(client, options);
  return find_models(client, options.named);
}

uint64_t bytes_of(const std::vector<ipc::ModelReport>& models) {
  uint64_t bytes = 0;
  for (const ipc::ModelReport& model : models) bytes += model.bytes;
  return bytes;
}

// Evicts each model, or only says so in a dry run. If one stays, the others are still evicted.
// Gives the first reason; the rest is said on the way.
Status evict_each(const Invocation& invocation, client::Client& client, const EvictOptions& options,
                  const std::vector<ipc::ModelReport>& models,
                  std::vector<ipc::ModelReport>& moved) {
  Status first;
  Progress progress("evict", invocation.quiet ? Terminal() : terminal_of(STDERR_FILENO));
  uint64_t tried_bytes = 0;
  for (const ipc::ModelReport& model : models) {
    progress.show({tried_bytes, bytes_of(models), SystemClock().monotonic_ns()});
    tried_bytes += model.bytes;
    const Status evicted = client.evict_model(request_for(model, options));
    if (evicted) {
      moved.push_back(model);
      continue;
    }
    const Error why{evicted.error().code,
                    "Model " + title_of(model) + " stays. " + evicted.error().message};
    progress.finish();
    if (!first && !invocation.quiet) write_failure(why, invocation.json);
    if (first) first = why;
  }
  return first;
}

std::vector<Json> items_of(const std::vector<ipc::ModelReport>& moved,
                           const EvictOptions& options) {
  std::vector<Json> items;
  for (const ipc::ModelReport& model : moved) {
    items.push_back({{"id", id_text(model.model)},
                     {"name", model.label},
                     {"bytes", model.bytes},
                     {"to", options.to}});
  }
  return items;
}

// Without it, who wants memory back might take silence for success.
void tell_of_none(const Invocation& invocation) {
  if (invocation.quiet || invocation.wants_json()) return;
  write_error(
      "djinnctl: no model is moved: what is pinned, in use, or loaded just now stays; see "
      "'djinnctl ps'\n");
}

Status evict(const Invocation& invocation, const EvictOptions& options) {
  if (options.all != options.named.empty()) {
    return Error{ErrorCode::kInvalidArgument, "Evict takes models, or --all. See 'djinnctl ps'."};
  }
  DJINN_TRY(const auto client, observe(invocation));
  DJINN_TRY(const auto models, chosen(*client, options));
  if (models.empty() && !options.dry_run) tell_of_none(invocation);
  std::vector<ipc::ModelReport> moved;
  Status done = evict_each(invocation, *client, options, models, moved);
  if (options.dry_run) {
    DJINN_CHECK(print_models(invocation, *client, moved));
  } else if (invocation.wants_json()) {
    DJINN_CHECK(print_json(invocation, "evict", items_of(moved, options)));
  }
  return done;
}

}  // namespace

void add_evict(CommandLine& line) {
  const Verb verb = line.verb("evict", "move models off their device until their next use");
  auto options = std::make_shared<EvictOptions>();
  verb.option("MODEL", options->named,
              "their ids or the first four digits of them, names, or paths");
  verb.option("--to", options->to, "where to: disk; host: off the GPUs [disk]")
      .called("TIER")
      .one_of({"disk", "host"});
  verb.flag("--all", options->all, "all that may go");
  verb.flag("--dry-run", options->dry_run, "list what would go, and move nothing");
  verb.flag("--force", options->force,
            "pinned models too, which ends the pin, and those of sessions that run nothing");
  verb.does(options, evict);
}

}  // namespace djinn::ctl
