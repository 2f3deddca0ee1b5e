// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/models/models.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <utility>

#include "daemon/djinnd/loop/log.h"
#include "daemon/djinnd/models/extents.h"
#include "kernel/base/checked.h"
#include "kernel/base/size_text.h"

namespace djinn::daemon {
namespace {

constexpr const char* kHeldByOthers =
    "Sessions of another user hold the model. Only an administrator may force it from under them.";

// Tells whether the session is among those that wait for the model.
bool is_opened_by(const Model& model, SessionId session) {
  return std::ranges::any_of(
      *model.openers, [&](const Opener& opener) { return opener.waiter.session == session; });
}

std::function<bool(WorkerKey)> is(WorkerKey key) {
  return [key](WorkerKey other) { return other == key; };
}

}  // namespace

Models::Models(Loop& loop, const Clock& clock, IdSource& ids, SparePool& loaders,
               const Devices& devices, const Quotas& quotas, Domains& domains, Sessions& sessions,
               Events& events, const Gpus& gpus, ModelListener& listener, uint64_t keep_alive_ms)
    : clock_(clock),
      devices_(devices),
      replies_(sessions),
      events_(events),
      listener_(listener),
      places_(table_, quotas),
      pins_(table_, quotas, devices, places_),
      mappings_(table_, domains,
                [this](ModelId id, DeviceId gpu) { return copies_.extents_of(id, gpu); }),
      queue_(loop, ids, loaders, devices),
      residency_(loop, clock, devices, mappings_, replies_, events, sessions, table_, *this,
                 listener, keep_alive_ms),
      failures_(events, replies_),
      leases_(clock, table_, devices, mappings_, residency_, replies_, failures_, copies_,
              listener),
      openings_(loop, ids, table_, queue_, places_, pins_, residency_, leases_, failures_, events),
      returns_(table_, queue_, residency_, leases_, openings_, failures_, events),
      copies_(loop, devices, gpus, sessions, events, table_, *this) {}

// --- of a predecessor

void Models::take_back(std::vector<Model> models) {
  for (const Model& one : models) returning_.insert(one.id);
  for (Model& one : models) {
    // If not all models fit, the answer comes when others have given way.
    const auto kept = std::make_shared<Model>(std::move(one));
    devices_.of(kept->device())
        .request(Memory::of_model(kept->id), kept->bytes, [this, kept](const Status& granted) {
          has_memory_again(std::move(*kept), granted);
        });
  }
  listener_.models_changed();
  residency_.review();
}

void Models::has_memory_again(Model model, const Status& granted) {
  returning_.erase(model.id);
  if (granted) {
    events_.emit(event_of(
        EventKind::kModelKept, model,
        fmt::format("model {} is resident again: {}", text_of(model.id), size_text(model.bytes))));
    Residency::taken_back(model);
    table_.add(std::move(model)).idle_since_ns = clock_.monotonic_ns();
  } else {
    const ErrorCode code = granted.error().code;
    events_.emit(event_of(EventKind::kModelFailed, model,
                          fmt::format("model {} is given up: {}", text_of(model.id), name_of(code)),
                          code));
  }
  listener_.models_changed();
}

// --- requests

void Models::open(OpenRequest request) {
  const Status may = check_open(request);
  if (!may) return refuse(request, may.error());
  openings_.begin(std::move(request));
}

Status Models::check_open(const OpenRequest& request) const {
  if (request.files.empty()) {
    return Error{ErrorCode::kInvalidArgument, "A model needs at least one file. Add files first."};
  }
  DJINN_CHECK(queue_.check_loaders());
  DJINN_CHECK(check_plans(request.opener.domain, request.plan.bytes));
  return check_files(request.opener.domain, 0, request.files.size());
}

Status Models::check_plans(Owner domain, uint64_t bytes) const {
  if (bytes == 0) return {};
  uint64_t held = openings_.plan_bytes_of(domain);
  for (const auto& [id, model] : table_.all()) {
    if (model.owner() == domain) held += model.plan_bytes;
  }
  if (range_fits(held, bytes, kPlanBytesPerUser)) return {};
  return Error{
      ErrorCode::kLimitExceeded,
      fmt::format("The load plans of this user's models and openings have {}; with this one "
                  "they would have more than {}. Wait for the openings, or unload a "
                  "model.",
                  size_text(held), size_text(kPlanBytesPerUser))};
}

Status Models::check_files(Owner domain, size_t added, size_t count) const {
  size_t held = added + openings_.files_of(domain);
  for (const auto& [id, model] : table_.all()) {
    for (const Source& source : model.sources) {
      if (source.user() == domain) held += source.files.size();
    }
  }
  if (range_fits(held, count, limits::kModelFilesPerUser)) return {};
  return Error{ErrorCode::kLimitExceeded,
               fmt::format("This user's models, and sessions that open some, keep {} files open; "
                           "with these they would keep more than {}. Close or unload a model.",
                           held, limits::kModelFilesPerUser)};
}

void Models::close(const Waiter& waiter, ModelId id) {
  Model* const model = table_.find(id);
  if (model == nullptr || !model->leases->contains(waiter.session)) {
    return replies_.refuse(waiter,
                           {ErrorCode::kNotFound, "The session has not opened such a model."});
  }
  if (is_opened_by(*model, waiter.session)) {
    return replies_.refuse(
        waiter, {ErrorCode::kBusy, "The session is still opening the model. Close it after that."});
  }
  leases_.leave(*model, waiter.session);
  table_.touch(*model);
  replies_.done(waiter);
}

Result<Model*> Models::find_owned(const Caller& caller, ModelId id) {
  Model* const model = table_.find(id);
  const bool sees = model != nullptr && seen_by(*model, caller);
  if (!sees) return Error{ErrorCode::kNotFound, "There is no such model."};
  if (!caller.may_steer(model->owner())) {
    return Error{ErrorCode::kPermissionDenied,
                 "The model is another user's. Ask them, or an administrator, to do it."};
  }
  return model;
}

void Models::pin(const Waiter& waiter, const Caller& caller, const ipc::PinModel& request) {
  Model* const model = table_.find(request.model);
  if (model == nullptr || !seen_by(*model, caller)) {
    return replies_.refuse(waiter, {ErrorCode::kNotFound, "There is no such model."});
  }
  const std::set<Owner> before = *model->pins;
  const Status done = request.pinned ? pins_.pin(caller, *model) : Pins::unpin(caller, *model);
  if (!done) return replies_.refuse(waiter, done.error());
  tell_of_pins(events_, *model, before, caller.user);
  model->idle_since_ns = clock_.monotonic_ns();
  if (model->pinned()) residency_.want(*model);
  residency_.review();
  listener_.models_changed();
  replies_.done(waiter);
}

void Models::evict(const Waiter& waiter, const Caller& caller, const ipc::EvictModel& request) {
  const auto found = find_owned(caller, request.model);
  if (!found) return replies_.refuse(waiter, found.error());
  if (request.force && !caller.admin && (*found)->pinned_beside(caller.user)) {
    return replies_.refuse(waiter, pinned_by_others());
  }
  if (request.force && !caller.admin && (*found)->held_beside(caller.user)) {
    return replies_.refuse(waiter, {ErrorCode::kPermissionDenied, kHeldByOthers});
  }
  if (request.to == ipc::Tier::kHost && copies_.has(request.model)) {
    return request.dry_run ? replies_.done(waiter) : copies_.drop(waiter, **found);
  }
  residency_.evict(waiter, **found, request, caller.user);
}

void Models::place(const Waiter& waiter, ModelId id, DeviceId device) {
  Model* const model = table_.find(id);
  if (model == nullptr) {
    return replies_.refuse(waiter, {ErrorCode::kNotFound, "There is no such model."});
  }
  table_.touch(*model);
  copies_.place(waiter, *model, device);
}

void Models::unload(const Waiter& waiter, const Caller& caller, ModelId id) {
  const auto found = find_owned(caller, id);
  if (!found) return replies_.refuse(waiter, found.error());
  Model* const model = *found;
  if (!caller.admin && model->pinned_beside(caller.user)) {
    return replies_.refuse(waiter, pinned_by_others());
  }
  const ModelUse use = model->use();
  const bool leaves = model->phase == ModelPhase::kUnloading;  // who asks waits for it as well
  if (use == ModelUse::kHeld && leased_by(id, waiter.session)) {
    return replies_.refuse(
        waiter,
        {ErrorCode::kBusy, "This session has the model open. Close it first, then repeat."});
  }
  if (use != ModelUse::kNone && !leaves) {
    return replies_.refuse(waiter, refusal_of(use));
  }
  residency_.unload(waiter, *model, caller.user);
}

void Models::read_manifest(const Waiter& waiter, const Caller& caller,
                           const ipc::ReadManifest& request) {
  const Model* const model = table_.find(request.model);
  if (model == nullptr || (!leased_by(request.model, waiter.session) && !seen_by(*model, caller))) {
    return replies_.refuse(waiter,
                           {ErrorCode::kNotFound, "This user sees no such model. Open it first."});
  }
  if (!model->manifest.valid()) return replies_.reply(waiter, {waiter.number, ipc::ManifestPart{}});
  auto part = part_of_manifest(*model, request.offset);
  if (!part) return replies_.refuse(waiter, part.error());
  replies_.reply(waiter, {waiter.number, ipc::ManifestPart{*std::move(part)}});
}

void Models::session_left(SessionId session) {
  leases_.session_left(session);
  openings_.session_left(session);
}

// --- workers

void Models::on_model_added(WorkerKey key, const ipc::ModelAdded& event) {
  Model* const model = mappings_.on_model_added(key, event);
  if (model == nullptr) return;
  if (event.code == ErrorCode::kOk) return leases_.settle(*model);
  leases_.refuse_openers(*model, key.owner, is(key), {event.code, event.message});
  let_go(*model);
}

void Models::on_model_parked(WorkerKey key, const ipc::ModelParked& event) {
  if (Model* const model = mappings_.on_model_parked(key, event)) let_go(*model);
}

// Brings the model back. A model that is resident or on its way will be sent to the worker as well.
void Models::on_model_wanted(WorkerKey key, const ipc::ModelWanted& event) {
  Model* const model = mappings_.on_model_wanted(key, event);
  if (model == nullptr) return;
  residency_.want(*model);
  leases_.settle(*model);  // of a resident one it is a GPU's copy that is wanted
}

void Models::on_model_dropped(WorkerKey key, const ipc::ModelDropped& event) {
  if (Model* const model = mappings_.on_model_dropped(key, event)) let_go(*model);
}

void Models::worker_died(WorkerKey key, const WorkerDeath& death) {
  for (auto& [id, model] : table_.all()) {
    const auto had = model.mapped->find(key);
    const bool had_it = had != model.mapped->end() && !had->second.parked;
    if (mappings_.worker_died(model, key, death)) {
      leases_.refuse_openers(
          model, key.owner, is(key),
          {ErrorCode::kWorkerLost, "The worker died whenever it took in the model."});
    }
    if (had_it && model.phase == ModelPhase::kResident) copies_.check(model, key.device);
    let_go(model);
  }
}

// --- copies

void Models::copies_gone(ModelId id) {
  if (Model* const model = table_.find(id)) residency_.let_go(*model);
}

void Models::copy_came(ModelId id, DeviceId device) {
  Model* const model = table_.find(id);
  DJINN_ASSERT(model != nullptr && model->phase == ModelPhase::kResident);
  mappings_.copy_came(*model, device);
  leases_.settle(*model);
}

// Where the model leaves the host, all its workers are told anyway.
void Models::copy_leaves(ModelId id, DeviceId device) {
  Model* const model = table_.find(id);
  if (model != nullptr && model->phase == ModelPhase::kResident) {
    mappings_.copy_leaves(*model, device);
  }
}

void Models::copy_failed(ModelId id, DeviceId device, const Error& why) {
  Model* const model = table_.find(id);
  if (model == nullptr) return;
  mappings_.refuse_copy(*model, device, why);
  if (!model->has_openers_on(device)) return;
  leases_.refuse_openers(
      *model, model->owner(), [device](WorkerKey key) { return key.device == device; }, why);
}

bool Models::is_let_go(ModelId id, DeviceId device) const {
  const auto found = table_.all().find(id);
  return found == table_.all().end() || Mappings::has_let_go(found->second, device);
}

bool Models::is_held(ModelId id, DeviceId device) const {
  return residency_.is_held_on(table_.all().at(id), device);
}

bool Models::is_run(ModelId id, DeviceId device) const {
  return residency_.runs(table_.all().at(id), device);
}

bool Models::is_held_up(ModelId id, DeviceId device) const {
  const auto found = table_.all().find(id);
  return found != table_.all().end() && residency_.is_held_up(found->second, device);
}

Weights& Models::weights_on(DeviceId device) {
  if (device.kind == DeviceKind::kCuda) return copies_;
  return residency_;
}

void Models::let_go(Model& model) {
  copies_.let_go(model.id);
  residency_.let_go(model);
}

// --- of sessions

bool Models::leased_by(ModelId id, SessionId session) const {
  const auto found = table_.all().find(id);
  return found != table_.all().end() && found->second.manifest.valid() &&
         found->second.leases->contains(session);
}

uint32_t Models::leases_of(SessionId session) const {
  return static_cast<uint32_t>(
      std::count_if(table_.all().begin(), table_.all().end(),
                    [&](const auto& entry) { return entry.second.leases->contains(session); }));
}

uint64_t Models::bytes_shared_by(SessionId session) const {
  uint64_t bytes = 0;
  for (const auto& [id, model] : table_.all()) {
    if (model.leases->contains(session)) bytes += model.bytes;
  }
  return bytes;
}

bool Models::lacks_memory_for(SessionId session) const {
  return std::ranges::any_of(table_.all(), [&](const auto& entry) {
    const Model& model = entry.second;
    return is_opened_by(model, session) && queue_.waits_for_memory(model);
  });
}

bool Models::loads_for(SessionId session) const {
  const auto reads = [&](const auto& entry) { return is_opened_by(entry.second, session); };
  return openings_.waits_for(session) || std::ranges::any_of(table_.all(), reads);
}

bool Models::awaited_by(SessionId session) const {
  return std::ranges::any_of(table_.all(), [&](const auto& entry) {
    const Model& model = entry.second;
    return model.leases->contains(session) && model.phase != ModelPhase::kResident &&
           Mappings::is_wanted(model);
  });
}

}  // namespace djinn::daemon
