// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/models/models.h"

#include <errno.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "daemon/djinnd/loop/log.h"
#include "daemon/djinnd/loop/sealed.h"
#include "ipc/codec/control_codec.h"
#include "ipc/file_number.h"
#include "ipc/limits.h"
#include "kernel/base/assert.h"
#include "kernel/base/checked.h"
#include "kernel/base/size_text.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon {
namespace {

constexpr const char* kHeldByOthers =
    "Sessions of another user hold the model. Only an administrator may force it from under them.";

// The sum of what a loader asked for, if it is within the limits.
std::optional<uint64_t> total_of(const std::vector<uint64_t>& sizes) {
  if (sizes.empty() || sizes.size() > limits::kModelExtents) return std::nullopt;
  uint64_t total = 0;
  for (const uint64_t size : sizes) {
    const auto sum = checked_add(total, size);
    if (size == 0 || !sum) return std::nullopt;
    total = *sum;
  }
  return total;
}

Result<std::vector<std::byte>> part_of_manifest(const Model& model, uint64_t offset) {
  const uint64_t left = model.manifest_bytes - std::min(model.manifest_bytes, offset);
  return pal::read_memfd(model.manifest, std::min<uint64_t>(left, limits::kManifestPartBytes),
                         offset);
}

// As its client will read it.
std::string sentence_of(const Error& error, std::span<const std::string> file_names) {
  const auto about = ipc::file_message(error.message, file_names.size());
  const bool is_named = about && !file_names[about->index].empty();
  return ipc::showable_sentence(
      is_named ? fmt::format("{}: {}", file_names[about->index], about->message) : error.message);
}

LoadFailure failure_of(const OpenRequest& request, const Error& error) {
  return {error, request.opener.domain, request.path, sentence_of(error, request.file_names)};
}

// One that is not about files.
LoadFailure failure_of(const Model& model, DomainId user, const Error& error) {
  const auto name = model.names.find(user);
  return {error, user, name == model.names.end() ? std::string() : name->second.path,
          sentence_of(error, {})};
}

LoadFailure failure_of(const Model& model, const Source& source, const Error& error) {
  LoadFailure failure = failure_of(model, source.user(), error);
  failure.sentence = sentence_of(error, source.file_names);
  return failure;
}

// Whose request that user's failure is of; none where the model comes back for a run.
SessionId session_of(const Model& model, DomainId user) {
  const auto found = std::ranges::find(model.openers, user, &Opener::domain);
  return found == model.openers.end() ? SessionId{} : found->waiter.session;
}

// Whether the session waits for it to be there.
bool is_opened_by(const Model& model, SessionId session) {
  return std::ranges::any_of(
      model.openers, [&](const Opener& opener) { return opener.waiter.session == session; });
}

}  // namespace

Models::Models(Loop& loop, const Clock& clock, IdSource& ids, SparePool& loaders, Memory& memory,
               const Quotas& quotas, Domains& domains, Replies& replies, const Sessions& sessions,
               Events& events, WorkQueue& memory_work, ModelListener& listener,
               uint64_t keep_alive_ms)
    : loop_(loop),
      clock_(clock),
      ids_(ids),
      memory_(memory),
      replies_(replies),
      sessions_(sessions),
      events_(events),
      listener_(listener),
      pins_(table_, quotas),
      mappings_(table_, domains),
      queue_(loop, ids, loaders, memory, memory_work),
      residency_(loop, clock, memory, mappings_, replies, events, sessions, memory_work, table_,
                 *this, listener, keep_alive_ms) {}

void Models::emit(EventKind kind, const Model& model, std::string text,
                  std::optional<ErrorCode> error) {
  Event event = event_of(kind, model);
  event.text = std::move(text);
  event.error = error;
  events_.emit(std::move(event));
}

void Models::take_back(std::vector<Model> models) {
  for (const Model& one : models) returning_.insert(one.id);
  for (Model& one : models) {
    // Where not all fit, the answer comes when others have given way.
    const auto kept = std::make_shared<Model>(std::move(one));
    memory_.request(Memory::of_model(kept->id), kept->bytes, [this, kept](const Status& granted) {
      Model& model = *kept;
      returning_.erase(model.id);
      if (granted) {
        emit(EventKind::kModelKept, model,
             fmt::format("model {} is resident again: {} bytes", text_of(model.id), model.bytes));
        Residency::arrived(model);
        table_.add(std::move(model)).idle_since_ns = clock_.monotonic_ns();
      } else {
        emit(EventKind::kModelFailed, model,
             fmt::format("model {} is given up: {}", text_of(model.id),
                         name_of(granted.error().code)),
             granted.error().code);
      }
      listener_.models_changed();
    });
  }
  listener_.models_changed();
  residency_.review();
}

// --- requests

void Models::open(OpenRequest request) {
  if (request.files.empty()) {
    return refuse(request, {ErrorCode::kInvalidArgument,
                            "A model needs at least one file. Add files first."});
  }
  const Status starts = queue_.check_loaders();
  if (!starts) return refuse(request, starts.error());
  const Status room = check_plans(request.opener.domain, request.plan.bytes);
  if (!room) return refuse(request, room.error());
  const size_t file_count = request.files.size();
  const Status kept = check_files(request.opener.domain, 0, file_count);
  if (!kept) return refuse(request, kept.error());
  std::vector<SharedFd> files = std::exchange(request.files, {});
  begin({std::move(request), file_count}, std::move(files));
}

void Models::begin(Opening opening, std::vector<SharedFd> files) {
  const DomainId user = opening.request.opener.domain;
  openings_.emplace(queue_.add(std::move(files), {.user = user}, *this), std::move(opening));
}

Status Models::check_plans(DomainId domain, uint64_t bytes) const {
  if (bytes == 0) return {};
  uint64_t held = 0;
  for (const auto& [id, opening] : openings_) {
    if (opening.request.opener.domain == domain) held += opening.request.plan.bytes;
  }
  for (const auto& [id, model] : table_.all()) {
    if (model.owner() == domain) held += model.plan_bytes;
  }
  if (range_fits(held, bytes, kPlanBytesPerUser)) return {};
  return Error{ErrorCode::kLimitExceeded,
               fmt::format("The load plans of this user's models and openings have {} bytes; with "
                           "this one they would have more than {}. Wait for the openings, or "
                           "unload a model.",
                           held, kPlanBytesPerUser)};
}

Status Models::check_files(DomainId domain, size_t added, size_t count) const {
  size_t held = added;
  for (const auto& [id, opening] : openings_) {
    if (opening.request.opener.domain == domain) held += opening.file_count;
  }
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
  if (model == nullptr || !model->leases.contains(waiter.session)) {
    return replies_.refuse(waiter,
                           {ErrorCode::kNotFound, "The session has not opened such a model."});
  }
  if (is_opened_by(*model, waiter.session)) {
    return replies_.refuse(
        waiter, {ErrorCode::kBusy, "The session is still opening the model. Close it after that."});
  }
  left(*model, waiter.session);
  table_.touch(*model);
  replies_.done(waiter);
}

// Ends one of the session's opens.
void Models::left(Model& model, SessionId session) {
  const auto lease = model.leases.find(session);
  if (lease == model.leases.end()) return;  // the session itself is gone
  if (--lease->second.count == 0) {
    model.leases.erase(lease);
    model.forget_sources_of(session);
  }
  model.idle_since_ns = clock_.monotonic_ns();
  residency_.review();
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
  const Status done = request.pinned ? pins_.pin(caller, *model) : Pins::unpin(caller, *model);
  if (!done) return replies_.refuse(waiter, done.error());
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
  residency_.evict(waiter, **found, request);
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
  if (use != ModelUse::kNone && !leaves) {
    return replies_.refuse(waiter, refusal_of(use));
  }
  residency_.unload(waiter, *model);
}

// --- from files to a model

void Models::load_identified(Load& load, const ipc::Identified& files) {
  const LoadId id = load.id();
  if (Model* const back = table_.find_by_load(id)) return identified_again(id, *back, files);
  const auto found = openings_.find(id);
  DJINN_ASSERT(found != openings_.end());
  const OpenRequest& request = found->second.request;
  found->second.key = {request.opener.domain, request.plan.hash, identities_of(files)};
  decide(id);
}

void Models::decide(LoadId id) {
  Opening& waiting = openings_.at(id);
  if (Model* const shared = table_.find_shared(waiting.key, waiting.other, waiting.joins_loads)) {
    queue_.find(id)->release();
    return join_opening(id, *shared);
  }
  Model* const alike = waiting.other.size() < limits::kModelsCompared
                           ? table_.find_alike(waiting.key, waiting.other)
                           : nullptr;
  if (alike != nullptr) {
    waiting.alike = alike->id;
    // While it is being loaded the opening waits: decide_waiting().
    if (alike->phase == ModelPhase::kResident) queue_.find(id)->plan(waiting.request.plan.copy);
    return;
  }
  Opening opening = std::move(openings_.extract(id).mapped());
  if (const Status has_place = make_place(); !has_place) {
    queue_.abort(id);
    return refuse(opening.request, has_place.error());
  }
  ModelKey key = std::move(opening.key);
  become_model(id, std::move(opening), std::move(key));
}

Status Models::make_place() {
  if (sessions_.draining()) {
    return Error{ErrorCode::kBusy,
                 "djinnd is draining and loads no model. Try again when it is resumed."};
  }
  if (table_.size() < limits::kModels || residency_.make_place()) return {};
  return Error{ErrorCode::kLimitExceeded, "Too many models are resident. Unload one, then repeat."};
}

void Models::join_opening(LoadId id, Model& model) {
  Opening opening = std::move(openings_.extract(id).mapped());
  OpenRequest& request = opening.request;
  Opener& opener = request.opener;
  opener.was_resident = model.phase == ModelPhase::kResident || model.phase == ModelPhase::kLoading;
  const Status allowed =
      opener.pins ? pins_.check({opener.domain, opener.is_admin}, model) : Status();
  if (!allowed) return refuse(request, allowed.error());
  model.add_source(std::move(opening.key), queue_.find(id)->take_files(),
                   std::move(request.file_names), opener.waiter.session);
  join(model, request);
}

void Models::decide_waiting(ModelId id) {
  std::vector<LoadId> waiting;
  for (const auto& [load, opening] : openings_) {
    if (opening.alike == id) waiting.push_back(load);
  }
  for (const LoadId load : waiting) {
    // Later, for the model is about to change.
    loop_.defer([this, load] {
      const Load* const waits = queue_.find(load);
      if (waits == nullptr || !openings_.contains(load)) return;
      if (waits->phase() == LoadPhase::kDeciding) decide(load);
    });
  }
}

void Models::try_another(LoadId id) {
  Opening opening = std::move(openings_.extract(id).mapped());
  opening.other.insert(std::exchange(opening.alike, {}));
  begin(std::move(opening), queue_.find(id)->take_files());
  abort_load(id);
}

void Models::load_compared(Load& load, bool same) {
  const LoadId id = load.id();
  const auto found = openings_.find(id);
  DJINN_ASSERT(found != openings_.end());
  Model* const alike = table_.find(found->second.alike);
  const bool there = alike != nullptr && alike->phase == ModelPhase::kResident;
  if (!same || !there) return try_another(id);
  look_again(alike->key(), found->second.key.files);
  load.abort();
  join_opening(id, *alike);
}

void Models::become_model(LoadId id, Opening opening, ModelKey key) {
  Load& load = *queue_.find(id);
  Model fresh;
  fresh.id = ids_.next<ModelId>([this](ModelId t) { return table_.find(t) != nullptr; });
  fresh.load = id;
  Source& first = fresh.sources.front();
  first.key = std::move(key);
  first.files = load.take_files();
  first.file_names = std::move(opening.request.file_names);
  first.load = id;
  fresh.plan = std::move(opening.request.plan.copy);
  fresh.plan_bytes = opening.request.plan.bytes;
  Model& model = table_.add(std::move(fresh));
  Event event = event_of(EventKind::kModelLoading, model);
  event.text = fmt::format("model {} of {} is being loaded from {}", text_of(model.id),
                           events_.user_text(model.owner()),
                           count_text(model.sources.front().files.size(), "file"));
  event.path = opening.request.path;
  events_.emit(std::move(event));
  join(model, opening.request);
  load.plan(model.plan);
}

void Models::join(Model& model, const OpenRequest& request) {
  const DomainId user = request.opener.domain;
  ModelLease& lease = model.leases[request.opener.waiter.session];
  lease.domain = user;
  ++lease.count;
  if (request.opener.pins) {
    Pins::add(model, user);
  } else if (request.unpins) {
    Pins::remove(model, user);
  }
  if (model.keep_alives_ms.size() < limits::kModelUsers) model.keep_alives_ms.try_emplace(user);
  const auto keep_alive = model.keep_alives_ms.find(user);
  if (request.keep_alive_ms && keep_alive != model.keep_alives_ms.end()) {
    keep_alive->second = request.keep_alive_ms;
  }
  model.call(user, {request.label, request.path});
  table_.touch(model);
  model.openers.push_back(request.opener);
  residency_.want(model);
  listener_.models_changed();
  settle(model);
}

// --- from the disk, again

void Models::read_again(Model& model) {
  Source* const source = model.next_source();
  DJINN_ASSERT(source != nullptr);
  const LoadQueue::Turn turn{.user = source->user(), .returns = true};
  model.load = source->load = queue_.add(source->files, turn, *this);
  source->silent = source->in_the_way = 0;
  emit(EventKind::kModelLoading, model, fmt::format("model {} is read again", text_of(model.id)));
}

void Models::source_failed(LoadId id, const Error& error) {
  Model* const model = table_.find_by_load(id);
  Source* const source = model != nullptr ? model->source_of(id) : nullptr;
  if (source == nullptr) return fail(id, error);
  if (!model->returns()) return first_load_failed(id, *model, error);
  const LoadFailure failure = failure_of(*model, *source, error);
  model->put_aside(*source, error);
  const bool goes_on = model->next_source() != nullptr && queue_.check_loaders().ok();
  if (!goes_on) return fail_model(id, *model, failure);
  emit_failed(*model, failure);
  queue_.abandon(*model);
  residency_.try_next_source(*model);
  abort_load(id);
}

void Models::first_load_failed(LoadId id, Model& model, const Error& error) {
  std::vector<Opening> others = take_others(model);
  fail(id, error);
  begin_again(std::move(others));
}

std::vector<Models::Opening> Models::take_others(Model& model) {
  std::vector<Opening> taken;
  const DomainId owner = model.owner();
  std::vector<Opener> openers;
  std::ranges::copy_if(model.openers, std::back_inserter(openers),
                       [&](const Opener& opener) { return opener.domain != owner; });
  std::erase_if(model.openers, [&](const Opener& opener) { return opener.domain != owner; });
  for (const Opener& opener : openers) {
    const Source* const own = model.source_for(opener.waiter.session);
    DJINN_ASSERT(own != nullptr && own->user() == opener.domain);
    Opening& opening = taken.emplace_back();
    opening.file_count = own->files.size();
    opening.key = own->key;
    opening.other = {model.id};
    opening.joins_loads = false;
    ModelName name =
        model.names.contains(opener.domain) ? model.names.at(opener.domain) : ModelName();
    opening.request = {.opener = opener,
                       .label = std::move(name.label),
                       .path = std::move(name.path),
                       .files = own->files,
                       .file_names = own->file_names,
                       .plan = {own->key.plan_hash, model.plan_bytes, model.plan}};
    opening.request.opener.was_resident = false;
    const auto keep_alive = model.keep_alives_ms.find(opener.domain);
    if (keep_alive != model.keep_alives_ms.end()) {
      opening.request.keep_alive_ms = keep_alive->second;
    }
  }
  for (const Opener& opener : openers) {
    Pins::remove(model, opener.domain);
    model.keep_alives_ms.erase(opener.domain);
    model.names.erase(opener.domain);
    left(model, opener.waiter.session);
  }
  return taken;
}

void Models::begin_again(std::vector<Opening> openings) {
  for (Opening& opening : openings) {
    std::vector<SharedFd> files = std::exchange(opening.request.files, {});
    begin(std::move(opening), std::move(files));
  }
}

void Models::load_looked_at(Load& load, bool on_files) {
  Model* const model = table_.find_by_load(load.id());
  Source* const source = model != nullptr ? model->source_of(load.id()) : nullptr;
  if (source == nullptr) return;
  model->look_at(*source, on_files);
  if (!model->returns()) {
    if (model->keeps_others_waiting(*source)) leave_alone(*model);
  } else if (model->has_waited_enough_for(*source)) {
    source_failed(load.id(), {ErrorCode::kTimeout,
                              "The file system of the model's files does not answer, or not soon. "
                              "Try again."});
  }
}

void Models::leave_alone(Model& model) {
  std::vector<Opening> others = take_others(model);
  const bool is_wanted = !model.openers.empty();
  if (!is_wanted) fail(model.load, {ErrorCode::kCancelled, "Nobody waits any more."});
  begin_again(std::move(others));
}

void Models::identified_again(LoadId id, Model& model, const ipc::Identified& files) {
  // Where they only look the same the hash tells.
  const std::vector<load::FileIdentity> now = identities_of(files);
  Source& source = *model.source_of(id);
  if (!load::all_unchanged(source.key.files, now)) {
    return source_failed(id,
                         {ErrorCode::kFileChanged,
                          "The model's files have changed since it was read first. Close it, and "
                          "open it anew."});
  }
  source.silent = 0;
  look_again(source.key, now);
  queue_.find(id)->plan(model.plan);
}

void Models::load_planned(Load& load, const ipc::Planned& plan) {
  const LoadId id = load.id();
  if (const auto opening = openings_.find(id); opening != openings_.end()) {
    Model* const alike = table_.find(opening->second.alike);
    const bool fits = alike != nullptr && alike->phase == ModelPhase::kResident &&
                      alike->extent_bytes == plan.extent_bytes;
    if (!fits) return try_another(id);
    if (!std::exchange(opening->second.compared, true)) ++compared_opens_;
    alike->compared_by.insert(id);
    return load.compare_with(alike->manifest, alike->extents);
  }
  const auto total = total_of(plan.extent_bytes);
  if (!total) {
    return source_failed(
        id, {ErrorCode::kLimitExceeded, "The model needs more extents than there may be."});
  }
  if (Model* const model = table_.find_by_load(id); model != nullptr && !model->returns()) {
    refuse_pins(*model, *total);
    model->bytes = *total;  // counts from now on
    if (model->openers.empty()) {
      return fail(id, {ErrorCode::kCancelled, "Whoever wanted it may not pin so much."});
    }
  }
  queue_.request_memory(load, *total, [this, id, sizes = plan.extent_bytes](const Status& granted) {
    extents_granted(id, sizes, granted);
  });
}

void Models::refuse_pins(Model& model, uint64_t bytes) {
  std::vector<std::pair<Opener, Error>> refused;
  std::erase_if(model.openers, [&](const Opener& opener) {
    if (!opener.pins) return false;
    const Status allowed = pins_.check_quota({opener.domain, opener.is_admin}, model, bytes);
    if (allowed) return false;
    Pins::remove(model, opener.domain);
    refused.emplace_back(opener, allowed.error());
    return true;
  });
  for (const auto& [opener, error] : refused) {
    emit_failure(opener, failure_of(model, opener.domain, error));  // others may still get it
    left(model, opener.waiter.session);
    replies_.refuse(opener.waiter, error);
  }
}

void Models::extents_granted(LoadId id, const std::vector<uint64_t>& sizes, const Status& granted) {
  Model* const model = table_.find_by_load(id);
  DJINN_ASSERT(model != nullptr);
  if (!granted) return fail(id, with_own_part(granted.error(), *model));
  if (model->returns() && sizes != model->extent_bytes) {
    return source_failed(
        id, {ErrorCode::kLoaderLost, "The loader planned the model otherwise than before."});
  }
  const Status made = make_extents(*model, sizes);
  if (!made) return fail(id, made.error());
  if (Source* const source = model->source_of(id)) source->silent = 0;
  queue_.find(id)->read_into(model->extents, model->returns());
}

// Where all who wait are one session: what it holds itself may be what is missing.
Error Models::with_own_part(Error error, const Model& model) const {
  if (error.code != ErrorCode::kOutOfMemory || model.openers.empty()) return error;
  const SessionId session = model.openers.front().waiter.session;
  const bool is_alone = std::ranges::all_of(
      model.openers, [&](const Opener& opener) { return opener.waiter.session == session; });
  if (is_alone) error.message += memory_.own_part_of(Memory::of_session(session));
  return error;
}

Status Models::make_extents(Model& model, const std::vector<uint64_t>& sizes) {
  DJINN_ASSERT(model.extents.empty());
  model.extent_bytes.clear();
  model.bytes = 0;
  for (const uint64_t size : sizes) {
    DJINN_TRY(Fd extent, pal::make_memfd("djinn-weights", size, pal::Seals::kSize));
    model.extents.push_back(std::move(extent));
    model.extent_bytes.push_back(size);
    model.bytes += size;
  }
  return {};
}

void Models::load_progressed(Load& load, uint64_t bytes_read) {
  const LoadId id = load.id();
  Model* const model = table_.find_by_load(id);
  DJINN_ASSERT(model != nullptr);
  model->bytes_loaded = std::min(bytes_read, model->bytes);
  if (Source* const source = model->source_of(id)) source->silent = 0;
}

void Models::load_finished(Load& load, const ipc::Loaded& loaded, Fd manifest) {
  const LoadId id = load.id();
  Model* const model = table_.find_by_load(id);
  DJINN_ASSERT(model != nullptr);
  bytes_read_ += loaded.bytes_read;
  buffered_reads_ += loaded.buffered_reads;
  const bool returns = model->returns();
  const Status sealed = seal(*model, std::move(manifest));
  if (!sealed) return source_failed(id, sealed.error());
  queue_.hand_over(load, model->id);
  if (!returns) become_resident(*model);
}

void Models::become_resident(Model& model) {
  Residency::arrived(model);
  model.end_return();
  Source& first = model.sources.front();
  for (size_t i = 0; i < first.files.size(); ++i) {
    if (first.key.files[i].content) first.files[i].reset();
  }
  model.bytes_loaded = model.bytes;
  model.loaded_wall_ns = clock_.wall_ns();
  emit(EventKind::kModelLoaded, model,
       fmt::format("model {} is resident: {} bytes", text_of(model.id), model.bytes));
  residency_.came_back(model);
  listener_.models_changed();
  settle(model);
  decide_waiting(model.id);
}

Status Models::seal(Model& model, Fd manifest) {
  DJINN_TRY(const uint64_t bytes,
            size_of_sealed(manifest, limits::kManifestBytes, "manifest of a model"));
  if (bytes == 0) return Error{ErrorCode::kLoaderLost, "The loader gave no manifest."};
  if (!model.returns()) DJINN_CHECK(check_manifests(model, bytes));
  for (const Fd& extent : model.extents) {
    DJINN_CHECK(pal::seal_content(extent));
    if (::fchmod(extent.get(), 0400) != 0) return system_error("seal a model", errno);
  }
  if (model.returns()) return {};  // that of the first is known to be right
  model.manifest = std::move(manifest);
  model.manifest_bytes = bytes;
  return {};
}

Status Models::check_manifests(const Model& model, uint64_t bytes) const {
  uint64_t held = 0;
  for (const auto& [id, other] : table_.all()) {
    if (id != model.id && other.owner() == model.owner()) held += other.manifest_bytes;
  }
  if (range_fits(held, bytes, kManifestBytesPerUser)) return {};
  return Error{ErrorCode::kLimitExceeded,
               fmt::format("The manifests of this user's models have {} bytes; with this one they "
                           "would have more than {}. Unload a model.",
                           held, kManifestBytesPerUser)};
}

void Models::load_hashed(Load& load, const ipc::Hashed& hashed) {
  const LoadId id = load.id();
  Model* const model = table_.find_by_load(id);
  DJINN_ASSERT(model != nullptr);
  if (model->returns()) {
    if (hashed.sha256 == model->sha256) return become_resident(*model);
    return source_failed(
        id, {ErrorCode::kHashMismatch,
             "The model's files hold other bytes than when it was read first. Check the disk, then "
             "close the model and open it anew."});
  }
  model->sha256 = hashed.sha256;
  listener_.models_changed();
}

void Models::load_failed(Load& load, const Error& error) {
  source_failed(load.id(), error);
}

void Models::emit_failed(const Model& model, const LoadFailure& failure) {
  const ErrorCode code = failure.error.code;
  if (code == ErrorCode::kCancelled) {
    return emit(EventKind::kModelUnloaded, model,
                fmt::format("model {} is wanted no more", text_of(model.id)), code);
  }
  emit_failure(model, failure);
}

void Models::fail(LoadId id, const Error& error) {
  if (const auto opening = openings_.extract(id)) {
    abort_load(id);
    return fail_opening(opening.mapped().request, error);
  }
  Model* const model = table_.find_by_load(id);
  if (model == nullptr) return abort_load(id);
  const Source* const source = model->source_of(id);
  fail_model(id, *model,
             failure_of(*model, source != nullptr ? *source : model->sources.front(), error));
}

void Models::fail_opening(const OpenRequest& request, const Error& error) {
  if (error.code != ErrorCode::kCancelled) emit_failure(request.opener, failure_of(request, error));
  replies_.refuse_each({request.opener.waiter}, error);
}

void Models::fail_model(LoadId id, Model& model, const LoadFailure& failure) {
  emit_failed(model, failure);
  queue_.abandon(model);
  decide_waiting(model.id);
  std::vector<Waiter> waiters;
  for (const Opener& opener : model.openers) waiters.push_back(opener.waiter);
  if (model.returns()) {
    model.openers.clear();
    for (const Waiter& waiter : waiters) left(model, waiter.session);
    model.end_return();
    residency_.stays_away(model, failure);
  } else {
    table_.erase(model.id);
  }
  abort_load(id);
  replies_.refuse_each(waiters, failure.error);
}

void Models::refuse(const OpenRequest& request, const Error& error) {
  emit_failure(request.opener, failure_of(request, error));
  replies_.refuse(request.opener.waiter, error);
}

void Models::emit_failure(const Opener& opener, const LoadFailure& failure) {
  Event event = device_event(EventKind::kModelFailed, {});
  event.session = opener.waiter.session;
  emit_failure(std::move(event), failure);
}

void Models::emit_failure(const Model& model, const LoadFailure& failure) {
  Event event = event_of(EventKind::kModelFailed, model);
  event.session = session_of(model, failure.user);
  emit_failure(std::move(event), failure);
}

void Models::emit_failure(Event event, const LoadFailure& failure) {
  ++loads_failed_;
  const std::string what = event.model.valid() ? "model " + text_of(event.model) : "a model";
  const std::string whom = event.session.valid() ? " for session " + text_of(event.session) : "";
  event.text = fmt::format("{} of {} could not be loaded{}: {}", what,
                           events_.user_text(failure.user), whom, name_of(failure.error.code));
  event.owner = failure.user;
  event.path = failure.path;
  event.error = failure.error.code;
  event.sentence = failure.sentence;
  events_.emit_refusal(std::move(event));
}

void Models::end_comparisons(Model& model) {
  for (const LoadId id : model.compared_by) {
    if (openings_.contains(id)) try_another(id);  // else nobody waits for it any more
  }
}

void Models::leave_to_loaders(Model& model) {
  queue_.leave_to(std::exchange(model.compared_by, {}), model.id);
}

void Models::load_ended(LoadId id) {
  if (Model* const model = table_.find_by_load(id)) {
    if (model->returns()) {
      source_failed(id,
                    {ErrorCode::kLoaderLost, "The loader died before it had compared the hash."});
    }
    if (model->load == id) model->load = {};  // else the next source is read
    residency_.let_go(*model);
  }
  for (auto& [other, model] : table_.all()) {
    if (model.compared_by.erase(id) > 0) residency_.let_go(model);
  }
}

// --- from a model to its openers

void Models::settle(Model& model) {
  if (model.phase != ModelPhase::kResident) return;
  std::vector<Opener> served;
  std::erase_if(model.openers, [&](const Opener& opener) {
    if (opener.needs_worker) mappings_.add(model, opener.domain);
    const bool is_served = !opener.needs_worker || Mappings::is_added(model, opener.domain);
    if (is_served) served.push_back(opener);
    return is_served;
  });
  for (const Opener& opener : served) {
    replies_.owe(opener.waiter,
                 [this, id = model.id, number = opener.waiter.number,
                  was_resident = opener.was_resident]() -> ipc::DaemonReply {
                   return {number, opened(id, was_resident)};
                 });
  }
}

// Since it was there an administrator may have unloaded it.
decltype(ipc::DaemonReply::body) Models::opened(ModelId id, bool was_resident) {
  const Model* const model = table_.find(id);
  if (model == nullptr) {
    return ipc::Failed{ErrorCode::kNotFound, "There is no such model any more."};
  }
  auto first = part_of_manifest(*model, 0);
  if (!first) return ipc::Failed{first.error().code, first.error().message};
  return ipc::ModelOpened{model->id, model->bytes, was_resident, model->manifest_bytes,
                          *std::move(first)};
}

void Models::read_manifest(const Waiter& waiter, const ipc::ReadManifest& request) {
  if (!leased_by(request.model, waiter.session)) {
    return replies_.refuse(
        waiter, {ErrorCode::kNotFound, "The session has no such model open. Open it first."});
  }
  auto part = part_of_manifest(*table_.find(request.model), request.offset);
  if (!part) return replies_.refuse(waiter, part.error());
  replies_.reply(waiter, {waiter.number, ipc::ManifestPart{*std::move(part)}});
}

void Models::refuse_openers(Model& model, DomainId domain, const Error& error) {
  emit_failure(model, failure_of(model, domain, error));
  std::vector<Waiter> refused;
  std::erase_if(model.openers, [&](const Opener& opener) {
    if (!opener.needs_worker || opener.domain != domain) return false;
    refused.push_back(opener.waiter);
    return true;
  });
  for (const Waiter& waiter : refused) left(model, waiter.session);
  replies_.refuse_each(refused, error);
}

// --- workers

void Models::on_model_added(DomainId domain, const ipc::ModelAdded& event) {
  Model* const model = mappings_.on_model_added(domain, event);
  if (model == nullptr) return;
  if (event.code == ErrorCode::kOk) return settle(*model);
  refuse_openers(*model, domain, {event.code, event.message});
  residency_.let_go(*model);
}

void Models::on_model_parked(DomainId domain, const ipc::ModelParked& event) {
  if (Model* const model = mappings_.on_model_parked(domain, event)) residency_.let_go(*model);
}

// While it is resident or on its way, its bytes are on their way to the worker, too.
void Models::on_model_wanted(DomainId domain, const ipc::ModelWanted& event) {
  if (Model* const model = mappings_.on_model_wanted(domain, event)) residency_.want(*model);
}

void Models::on_model_dropped(DomainId domain, const ipc::ModelDropped& event) {
  if (Model* const model = mappings_.on_model_dropped(domain, event)) residency_.let_go(*model);
}

void Models::worker_died(DomainId domain, const WorkerDeath& death) {
  for (auto& [id, model] : table_.all()) {
    if (mappings_.worker_died(model, domain, death)) {
      refuse_openers(model, domain,
                     {ErrorCode::kWorkerLost, "The worker died whenever it took in the model."});
    }
    residency_.let_go(model);
  }
}

// --- out again

void Models::session_left(SessionId session) {
  std::vector<LoadId> unwanted;
  for (const auto& [id, opening] : openings_) {
    if (opening.request.opener.waiter.session == session) unwanted.push_back(id);
  }
  for (auto& [id, model] : table_.all()) {
    std::erase_if(model.openers,
                  [&](const Opener& opener) { return opener.waiter.session == session; });
    model.forget_sources_of(session);
    if (model.leases.erase(session) > 0) {
      table_.touch(model);
      model.idle_since_ns = clock_.monotonic_ns();
    }
    if (model.phase == ModelPhase::kLoading && model.openers.empty() && !model.returns()) {
      unwanted.push_back(model.load);
    }
  }
  for (const LoadId id : unwanted) fail(id, {ErrorCode::kCancelled, "Nobody waits any more."});
  residency_.review();
}

bool Models::leased_by(ModelId id, SessionId session) {
  const Model* const model = table_.find(id);
  return model != nullptr && model->manifest.valid() && model->leases.contains(session);
}

uint32_t Models::leases_of(SessionId session) const {
  return static_cast<uint32_t>(
      std::count_if(table_.all().begin(), table_.all().end(),
                    [&](const auto& entry) { return entry.second.leases.contains(session); }));
}

uint64_t Models::bytes_shared_by(SessionId session) const {
  uint64_t bytes = 0;
  for (const auto& [id, model] : table_.all()) {
    if (model.leases.contains(session)) bytes += model.bytes;
  }
  return bytes;
}

bool Models::lacks_memory_for(SessionId session) const {
  return std::ranges::any_of(table_.all(), [&](const auto& entry) {
    const Model& model = entry.second;
    return is_opened_by(model, session) && queue_.waits_for_memory(model.load);
  });
}

bool Models::loads_for(SessionId session) const {
  const auto identifies = [&](const auto& opening) {
    return opening.second.request.opener.waiter.session == session;
  };
  const auto reads = [&](const auto& entry) { return is_opened_by(entry.second, session); };
  return std::ranges::any_of(openings_, identifies) || std::ranges::any_of(table_.all(), reads);
}

bool Models::awaited_by(SessionId session) const {
  return std::ranges::any_of(table_.all(), [&](const auto& entry) {
    const Model& model = entry.second;
    return model.leases.contains(session) && model.phase != ModelPhase::kResident &&
           Mappings::is_wanted(model);
  });
}

}  // namespace djinn::daemon
