// SPDX-License-Identifier: Apache-2.0

// The functions stand in the order in which an open calls them.
#include "daemon/djinnd/models/openings.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "daemon/djinnd/loop/log.h"
#include "daemon/djinnd/models/extents.h"
#include "ipc/limits.h"
#include "kernel/base/assert.h"
#include "kernel/base/checked.h"
#include "kernel/base/size_text.h"

namespace djinn::daemon {

Openings::Openings(Loop& loop, IdSource& ids, ModelTable& table, LoadQueue& queue,
                   const Places& places, const Pins& pins, Residency& residency, Leases& leases,
                   LoadFailures& failures, Events& events)
    : loop_(loop),
      ids_(ids),
      table_(table),
      queue_(queue),
      places_(places),
      pins_(pins),
      residency_(residency),
      leases_(leases),
      failures_(failures),
      events_(events) {}

// --- what are the files?

void Openings::begin(OpenRequest request) {
  const size_t file_count = request.files.size();
  DJINN_ASSERT(file_count > 0);
  std::vector<SharedFd> files = std::exchange(request.files, {});
  begin({std::move(request), file_count}, std::move(files));
}

void Openings::begin(Opening opening, std::vector<SharedFd> files) {
  DJINN_ASSERT(opening.request.files.empty() && opening.file_count == files.size());
  const Opener& opener = opening.request.opener;
  const LoadId load =
      queue_.add(std::move(files), home_of(opener.device), {.user = opener.domain}, *this);
  openings_.emplace(load, std::move(opening));
}

void Openings::load_identified(Load& load, const ipc::Identified& files) {
  Opening& opening = openings_.at(load.id());
  DJINN_ASSERT(files.files.size() == opening.file_count);
  const OpenRequest& request = opening.request;
  opening.key = {request.opener.domain, home_of(request.opener.device), request.plan.hash,
                 identities_of(files)};
  decide(load);
}

void Openings::decide(Load& load) {
  DJINN_ASSERT(load.phase() == LoadPhase::kDeciding);
  Opening& waiting = openings_.at(load.id());
  if (Model* const shared = table_.find_shared(waiting.key, waiting.other, waiting.joins_loads)) {
    load.release();
    return join(load, *shared);
  }
  Model* const alike = waiting.other.size() < limits::kModelsCompared
                           ? table_.find_alike(waiting.key, waiting.other)
                           : nullptr;
  if (alike != nullptr) {
    waiting.alike = alike->id;
    // The opening waits while the other model is being loaded; decide_waiting() ends that.
    if (alike->phase == ModelPhase::kResident) load.plan(waiting.request.plan.copy);
    return;
  }
  Opening opening = std::move(openings_.extract(load.id()).mapped());
  const Opener& opener = opening.request.opener;
  Status has_place = places_.check({opener.domain, opener.is_admin}, nullptr);
  if (has_place) has_place = residency_.make_place();
  if (!has_place) {
    load.abort();
    return failures_.refuse(opening.request, has_place.error());
  }
  become_model(load, std::move(opening));
}

void Openings::decide_waiting(ModelId id) {
  for (const auto& [load, opening] : openings_) {
    if (opening.alike != id) continue;
    // This is deferred, because the model is about to change.
    loop_.defer([this, load = load] {
      Load* const waits = queue_.find(load);
      if (waits == nullptr || !openings_.contains(load)) return;
      if (waits->phase() == LoadPhase::kDeciding) decide(*waits);
    });
  }
}

void Openings::join(Load& load, Model& model) {
  DJINN_ASSERT(load.phase() == LoadPhase::kEnded);
  Opening opening = std::move(openings_.extract(load.id()).mapped());
  OpenRequest& request = opening.request;
  Opener& opener = request.opener;
  opener.was_resident = model.phase == ModelPhase::kResident || model.phase == ModelPhase::kLoading;
  const Caller caller{opener.domain, opener.is_admin};
  const Status allowed = opener.pins ? pins_.check(caller, model) : places_.check(caller, &model);
  if (!allowed) return failures_.refuse(request, allowed.error());
  model.add_source(std::move(opening.key), load.take_files(), std::move(request.file_names),
                   opener.waiter.session);
  leases_.join(model, request);
}

// --- are they those of an alike model?

void Openings::compare(Load& load, Opening& opening, const ipc::Planned& plan) {
  Model* const alike = table_.find(opening.alike);
  const bool fits = alike != nullptr && alike->phase == ModelPhase::kResident &&
                    alike->extent_bytes == plan.extent_bytes;
  if (!fits) return try_another(load);
  if (!std::exchange(opening.compared, true)) ++compared_;
  alike->compared_by.insert(load.id());
  load.compare_with(alike->manifest, alike->extents);
}

void Openings::load_compared(Load& load, bool same) {
  const Opening& opening = openings_.at(load.id());
  Model* const alike = table_.find(opening.alike);
  const bool there = alike != nullptr && alike->phase == ModelPhase::kResident;
  if (!same || !there) return try_another(load);
  look_again(alike->key(), opening.key.files);
  load.abort();
  join(load, *alike);
}

void Openings::try_another(Load& load) {
  Opening opening = std::move(openings_.extract(load.id()).mapped());
  DJINN_ASSERT(opening.alike.valid());
  opening.other.insert(std::exchange(opening.alike, {}));
  begin(std::move(opening), load.take_files());
  load.abort();
}

void Openings::end_comparisons(const Model& model) {
  for (const LoadId id : model.compared_by) {
    if (openings_.contains(id)) try_another(*queue_.find(id));  // else nobody waits for it any more
  }
}

void Openings::leave_to_loaders(Model& model) {
  queue_.leave_to(std::exchange(model.compared_by, {}), model);
}

// --- a model that nobody had

void Openings::become_model(Load& load, Opening opening) {
  Model fresh;
  fresh.id = ids_.next<ModelId>([this](ModelId t) { return table_.find(t) != nullptr; });
  fresh.load = load.id();
  Source& first = fresh.sources.front();
  first.key = std::move(opening.key);
  first.files = load.take_files();
  first.file_names = std::move(opening.request.file_names);
  first.load = load.id();
  fresh.plan = std::move(opening.request.plan.copy);
  fresh.plan_bytes = opening.request.plan.bytes;
  Model& model = table_.add(std::move(fresh));
  Event event = event_of(EventKind::kModelLoading, model,
                         fmt::format("model {} of {} is being loaded from {}", text_of(model.id),
                                     events_.user_text(model.owner()),
                                     count_text(model.sources.front().files.size(), "file")));
  event.path = opening.request.path;
  events_.emit(std::move(event));
  leases_.join(model, opening.request);
  load.plan(model.plan);
}

void Openings::load_planned(Load& load, const ipc::Planned& plan) {
  const auto opening = openings_.find(load.id());
  if (opening != openings_.end()) return compare(load, opening->second, plan);
  Model& model = model_of(load.id());
  const auto total = total_of(plan.extent_bytes);
  if (!total) {
    return files_failed(
        model, {ErrorCode::kLimitExceeded, "The model needs more extents than there may be."});
  }
  refuse_pins(model, *total);
  model.bytes = *total;  // counts from now on
  if (model.openers->empty()) {
    return fail(model, {ErrorCode::kCancelled, "Whoever wanted it may not pin so much."});
  }
  queue_.request_memory(load, *total,
                        [this, id = load.id(), sizes = plan.extent_bytes](const Status& granted) {
                          extents_granted(id, sizes, granted);
                        });
}

void Openings::refuse_pins(Model& model, uint64_t bytes) {
  std::vector<std::pair<Opener, Error>> refused;
  leases_.take_openers(model, [&](const Opener& opener) {
    if (!opener.pins) return false;
    const Status allowed = pins_.check_quota({opener.domain, opener.is_admin}, model, bytes);
    if (allowed) return false;
    Pins::remove(model, opener.domain);
    refused.emplace_back(opener, allowed.error());
    return true;
  });
  for (const auto& [opener, error] : refused) {
    const LoadFailure failure = failure_of(model, opener.domain, error);
    leases_.leave(model, opener.waiter.session);
    failures_.refuse_opener(opener, failure);
  }
}

void Openings::extents_granted(LoadId id, const std::vector<uint64_t>& sizes,
                               const Status& granted) {
  Model& model = model_of(id);
  if (!granted) return fail(model, leases_.with_own_part(granted.error(), model));
  queue_.make_extents(*queue_.find(id), sizes, [this, id, sizes](Result<std::vector<Fd>> made) {
    has_extents(id, sizes, std::move(made));
  });
}

void Openings::has_extents(LoadId id, const std::vector<uint64_t>& sizes,
                           Result<std::vector<Fd>> made) {
  Model& model = model_of(id);
  if (!made) return fail(model, made.error());
  give_extents(model, *std::move(made), sizes);
  if (Source* const source = model.source_of(id)) source->silent = 0;
  queue_.find(id)->read_into(model.extents, false);
}

void Openings::load_progressed(Load& load, uint64_t bytes_read) {
  model_of(load.id()).progressed(load.id(), bytes_read);
}

void Openings::load_finished(Load& load, const ipc::Loaded& loaded, Fd& manifest) {
  Model& model = model_of(load.id());
  queue_.count(loaded);
  const Status sealed = seal(model, manifest);
  if (!sealed) return files_failed(model, sealed.error());
  note_huge_pages(model, loaded);
  queue_.hand_over(load, model.id);
  model.end_return();
  residency_.arrived(model);
  leases_.settle(model);
  decide_waiting(model.id);
}

Status Openings::seal(Model& model, Fd& manifest) {
  DJINN_TRY(const uint64_t bytes, size_of_manifest(manifest));
  DJINN_CHECK(check_manifests(model, bytes));
  DJINN_CHECK(queue_.seal(model));
  model.manifest = std::move(manifest);
  model.manifest_bytes = bytes;
  return {};
}

Status Openings::check_manifests(const Model& model, uint64_t bytes) const {
  uint64_t held = 0;
  for (const auto& [id, other] : table_.all()) {
    if (id != model.id && other.owner() == model.owner()) held += other.manifest_bytes;
  }
  if (range_fits(held, bytes, kManifestBytesPerUser)) return {};
  return Error{ErrorCode::kLimitExceeded,
               fmt::format("The manifests of this user's models have {}; with this one they would "
                           "have more than {}. Unload a model.",
                           size_text(held), size_text(kManifestBytesPerUser))};
}

void Openings::load_hashed(Load& load, const ipc::Hashed& hashed) {
  residency_.hashed(model_of(load.id()), hashed.sha256);
}

// --- it fails

void Openings::load_looked_at(Load& load, bool on_files) {
  Model* const model = table_.find_by_load(load.id());
  Source* const source = model != nullptr ? model->source_of(load.id()) : nullptr;
  if (source == nullptr) return;  // an opening waits for its own files, or they were read
  model->look_at(*source, on_files);
  if (model->keeps_others_waiting(*source)) leave_alone(*model);
}

void Openings::load_failed(Load& load, const Error& error) {
  const auto opening = openings_.extract(load.id());
  if (opening) return failures_.refuse_opening(opening.mapped().request, error);
  files_failed(model_of(load.id()), error);
}

void Openings::files_failed(Model& model, const Error& error) {
  std::vector<Opening> others = take_others(model);
  fail(model, error);
  begin_again(std::move(others));
}

void Openings::fail(Model& model, const Error& error) {
  DJINN_ASSERT(model.phase == ModelPhase::kLoading && !model.returns());
  const LoadId load = model.load;
  failures_.emit_end(model, failure_of(model, model.sources.front(), error));
  queue_.abandon(model);
  decide_waiting(model.id);
  const std::vector<Opener> openers = *model.openers;
  table_.erase(model.id);
  queue_.abort(load);
  failures_.refuse_each(openers, error);
}

void Openings::leave_alone(Model& model) {
  std::vector<Opening> others = take_others(model);
  const bool is_wanted = !model.openers->empty();
  if (!is_wanted) fail(model, {ErrorCode::kCancelled, "Nobody waits any more."});
  begin_again(std::move(others));
}

std::vector<Openings::Opening> Openings::take_others(Model& model) {
  const Owner owner = model.owner();
  const std::vector<Opener> openers =
      leases_.take_openers(model, [&](const Opener& opener) { return opener.domain != owner; });
  std::vector<Opening> taken;
  for (const Opener& opener : openers) taken.push_back(opening_of(model, opener));
  for (const Opener& opener : openers) leases_.forget(model, opener);
  return taken;
}

Openings::Opening Openings::opening_of(const Model& model, const Opener& opener) {
  const Source* const own = model.source_for(opener.waiter.session);
  DJINN_ASSERT(own != nullptr && own->user() == opener.domain);
  Opening opening;
  opening.file_count = own->files.size();
  opening.key = own->key;
  opening.other = {model.id};
  opening.joins_loads = false;
  const auto called = model.names.find(opener.domain);
  ModelName name = called != model.names.end() ? called->second : ModelName();
  opening.request = {.opener = opener,
                     .label = std::move(name.label),
                     .path = std::move(name.path),
                     .files = own->files,
                     .file_names = own->file_names,
                     .plan = {own->key.plan_hash, model.plan_bytes, model.plan}};
  opening.request.opener.was_resident = false;
  const auto keep_alive = model.keep_alives_ms.find(opener.domain);
  if (keep_alive != model.keep_alives_ms.end()) opening.request.keep_alive_ms = keep_alive->second;
  const auto numerics = model.numerics.find(opener.domain);
  if (numerics != model.numerics.end()) opening.request.numerics = numerics->second;
  return opening;
}

void Openings::begin_again(std::vector<Opening> openings) {
  for (Opening& opening : openings) {
    std::vector<SharedFd> files = std::exchange(opening.request.files, {});
    begin(std::move(opening), std::move(files));
  }
}

void Openings::load_ended(LoadId id) {
  if (Model* const model = table_.find_by_load(id)) {
    model->load = {};
    residency_.let_go(*model);
  }
  for (auto& [other, model] : table_.all()) {
    if (model.compared_by.erase(id) > 0) residency_.let_go(model);
  }
}

void Openings::session_left(SessionId session) {
  std::vector<LoadId> unwanted;
  for (const auto& [load, opening] : openings_) {
    if (opening.request.opener.waiter.session == session) unwanted.push_back(load);
  }
  const Error nobody{ErrorCode::kCancelled, "Nobody waits any more."};
  for (const LoadId load : unwanted) {
    const auto opening = openings_.extract(load);
    queue_.abort(load);
    failures_.refuse_opening(opening.mapped().request, nobody);
  }
  std::vector<Model*> unread;
  for (auto& [id, model] : table_.all()) {
    const bool is_first_load = model.phase == ModelPhase::kLoading && !model.returns();
    if (is_first_load && model.openers->empty()) unread.push_back(&model);
  }
  for (Model* const model : unread) fail(*model, nobody);
}

// --- for others

Model& Openings::model_of(LoadId load) {
  Model* const model = table_.find_by_load(load);
  DJINN_ASSERT(model != nullptr && !openings_.contains(load));
  return *model;
}

uint64_t Openings::plan_bytes_of(Owner user) const {
  uint64_t bytes = 0;
  for (const auto& [load, opening] : openings_) {
    if (opening.request.opener.domain == user) bytes += opening.request.plan.bytes;
  }
  return bytes;
}

size_t Openings::files_of(Owner user) const {
  size_t files = 0;
  for (const auto& [load, opening] : openings_) {
    if (opening.request.opener.domain == user) files += opening.file_count;
  }
  return files;
}

bool Openings::waits_for(SessionId session) const {
  return std::ranges::any_of(openings_, [&](const auto& entry) {
    return entry.second.request.opener.waiter.session == session;
  });
}

}  // namespace djinn::daemon
