// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/models/residency.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "daemon/djinnd/loop/log.h"
#include "daemon/djinnd/models/pins.h"
#include "ipc/limits.h"
#include "kernel/base/assert.h"
#include "kernel/base/clock.h"
#include "kernel/base/size_text.h"

namespace djinn::daemon {
namespace {

constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

uint64_t saturating_add(uint64_t a, uint64_t b) {
  return a > kNever - b ? kNever : a + b;
}

}  // namespace

Residency::Residency(Loop& loop, const Clock& clock, const Devices& devices, Mappings& mappings,
                     Replies& replies, Events& events, const Sessions& sessions, ModelTable& table,
                     Loads& loads, ModelListener& listener, uint64_t keep_alive_ms)
    : clock_(clock),
      devices_(devices),
      mappings_(mappings),
      replies_(replies),
      events_(events),
      sessions_(sessions),
      table_(table),
      loads_(loads),
      listener_(listener),
      keep_alive_ms_(keep_alive_ms),
      expiry_(loop, [this] { look(); }) {}

void Residency::emit(EventKind kind, const Model& model, const Leaving& leaving, const char* what) {
  const EvictReason reason = leaving.reason;
  Event event = event_of(kind, model,
                         fmt::format("model {} is {}: {}, {}", text_of(model.id), what,
                                     size_text(model.bytes), name_of(reason)));
  event.reason = reason;
  if (leaving.asked_by) event.by = events_.user_text(*leaving.asked_by);
  events_.emit(std::move(event));
}

// --- keep-alive

void Residency::set_keep_alive(uint64_t ms) {
  keep_alive_ms_ = ms;
  review();
}

uint64_t Residency::keep_alive_of(const Model& model) const {
  if (model.keep_alives_ms.empty()) return keep_alive_ms_;
  uint64_t longest_ms = 0;
  for (const auto& [user, ms] : model.keep_alives_ms) {
    longest_ms = std::max(longest_ms, ms.value_or(keep_alive_ms_));
  }
  return longest_ms;
}

// Gives the monotonic time at which an idle model's stay is over; kNever for other models.
static uint64_t deadline_of(const Model& model, uint64_t keep_alive_ms) {
  const bool waits = model.phase == ModelPhase::kResident || model.phase == ModelPhase::kOnDisk;
  if (!waits || model.in_use() || model.pinned() || keep_alive_ms == ipc::kKeepForever)
    return kNever;
  if (keep_alive_ms > kNever / kNsPerMs) return kNever;
  return saturating_add(model.idle_since_ns, keep_alive_ms * kNsPerMs);
}

uint64_t Residency::expires_at(const Model& model) const {
  const uint64_t deadline = deadline_of(model, keep_alive_of(model));
  if (deadline == kNever) return 0;
  const uint64_t now = clock_.monotonic_ns();
  return clock_.wall_ns() + (deadline > now ? deadline - now : 0);
}

void Residency::review() {
  expiry_.start_once(0);
}

// Unloads models whose stay is over, gives up on loaders that do not end, and sets the timer for
// the next of these. Requests for memory are tried again, because idle models may give way by now.
void Residency::look() {
  const uint64_t now = clock_.monotonic_ns();
  uint64_t next = kNever;
  std::vector<Model*> expired;
  for (auto& [id, model] : table_.all()) {
    const uint64_t deadline = deadline_of(model, keep_alive_of(model));
    const uint64_t patience = waits_until(model);
    if (deadline <= now) {
      expired.push_back(&model);
    } else if (patience <= now) {
      finish_if_free(model);
    } else {
      next = std::min({next, deadline, patience});
    }
  }
  for (Model* model : expired) begin_unload(*model, EvictReason::kExpired);
  devices_.reconsider();
  if (next != kNever) expiry_.start_once((next - now) / kNsPerMs + 1);
}

// --- down

static Error cannot_come_back(const Model& model) {
  if (!model.sha256) {
    return {ErrorCode::kBusy,
            "The model is not hashed yet, as for some seconds after a load: what was read again "
            "could not be compared. Repeat this then, or unload the model."};
  }
  return {ErrorCode::kBusy,
          "djinnd has not all of the model's files open, as after a restart, so it could not read "
          "it again. Load it once more, or unload it."};
}

bool Residency::runs(const Model& model, std::optional<DeviceId> device) const {
  return std::ranges::any_of(*model.leases, [&](const auto& lease) {
    const Session* const session = sessions_.find(lease.first);
    const bool counts = session != nullptr && (!device || session->device == *device);
    return counts && sessions_.runs(lease.first);
  });
}

bool Residency::is_held_on(const Model& model, DeviceId device) const {
  return std::ranges::any_of(*model.leases, [&](const auto& lease) {
    const Session* const session = sessions_.find(lease.first);
    return session != nullptr && session->device == device;
  });
}

bool Residency::is_held_up(const Model& model, std::optional<DeviceId> device) const {
  return std::ranges::any_of(*model.mapped, [&](const auto& by) {
    const bool counts = !by.second.parked && (!device || by.first.device == *device);
    return counts && sessions_.lane_steps().is_long(by.first);
  });
}

void Residency::evict(const Waiter& waiter, Model& model, const ipc::EvictModel& request,
                      Owner user) {
  const auto refuse = [&](ErrorCode code, std::string why) {
    replies_.refuse(waiter, {code, std::move(why)});
  };
  if (request.to == ipc::Tier::kHost) {
    return refuse(
        ErrorCode::kUnsupported,
        fmt::format(
            "Device {} has no host tier: its memory is the host's, and no GPU has a copy of "
            "the model. Evict to disk.",
            text_of(model.device())));
  }
  if (model.phase == ModelPhase::kOnDisk) return replies_.done(waiter);
  if (model.phase == ModelPhase::kEvicting) {
    return request.dry_run ? replies_.done(waiter) : model.evict_waiters.push_back(waiter);
  }
  const ModelUse use = model.use();
  if (use == ModelUse::kMoving) return replies_.refuse(waiter, refusal_of(use));
  if (model.pinned() && !request.force) {
    return refuse(ErrorCode::kBusy, "The model is pinned. Unpin it first, or force it.");
  }
  if (use == ModelUse::kHeld && (!request.force || runs(model))) {
    return refuse(ErrorCode::kBusy,
                  request.force ? "A run that uses the model is in flight. Cancel it, or wait."
                                : "The model is in use. Close the sessions that hold it, or force "
                                  "it: they get it back with their next run.");
  }
  if (!model.can_come_back()) return replies_.refuse(waiter, cannot_come_back(model));
  if (request.dry_run) return replies_.done(waiter);
  const std::set<Owner> pinned = *model.pins;
  Pins::remove_all(model);
  tell_of_pins(events_, model, pinned, user);
  model.evict_waiters.push_back(waiter);
  begin_evict(model, EvictReason::kRequested, user);
}

void Residency::unload(const Waiter& waiter, Model& model, Owner user) {
  model.evict_waiters.push_back(waiter);
  if (model.phase == ModelPhase::kUnloading) return;
  begin_unload(model, EvictReason::kRequested, user);
}

// A copy elsewhere goes with the model, so who runs on another device holds it as well.
std::vector<Weights::Candidate> Residency::evictable(DeviceId device, bool in_use) const {
  std::vector<Candidate> found;
  for (const Model* model : table_.evictable(device, in_use)) {
    found.push_back({model->id, model->bytes});
  }
  return found;
}

bool Residency::is_run(ModelId model, DeviceId) const {
  return runs(table_.all().at(model));
}

// A model that cannot come back is unloaded. Only models without leases are chosen, so nobody loses
// anything.
void Residency::send_away(ModelId id, DeviceId) {
  Model& model = table_.all().at(id);
  if (model.can_come_back()) return begin_evict(model, EvictReason::kPressure);
  begin_unload(model, EvictReason::kPressure);
}

Status Residency::make_place() {
  if (sessions_.draining()) {
    return Error{ErrorCode::kBusy,
                 "djinnd is draining and loads no model. Try again when it is resumed."};
  }
  if (table_.size() < limits::kModels || unload_idle()) return {};
  return Error{ErrorCode::kLimitExceeded,
               "Too many models are in use or pinned. Close or unpin one, then repeat."};
}

bool Residency::unload_idle() {
  std::map<Owner, size_t> owned;
  for (const auto& [id, model] : table_.all()) ++owned[model.owner()];
  Model* first = nullptr;
  const auto goes_before = [&](const Model& a, const Model& b) {
    const size_t of_a = owned[a.owner()], of_b = owned[b.owner()];
    return of_a != of_b ? of_a > of_b : a.last_used < b.last_used;
  };
  for (auto& [id, model] : table_.all()) {
    const bool idle =
        (model.phase == ModelPhase::kResident || model.phase == ModelPhase::kOnDisk) &&
        !model.in_use() && !model.pinned();
    if (idle && (first == nullptr || goes_before(model, *first))) first = &model;
  }
  if (first == nullptr) return false;
  begin_unload(*first, EvictReason::kTableFull);
  return true;
}

uint64_t Residency::pinned_bytes(DeviceId device) const {
  uint64_t bytes = 0;
  for (const auto& [id, model] : table_.all()) {
    const bool stays = model.pinned() && !model.extents.empty();
    if (stays && model.device() == device) bytes += model.bytes;
  }
  return bytes;
}

uint64_t Residency::held_up_bytes(DeviceId device) const {
  uint64_t bytes = 0;
  for (const auto& [id, model] : table_.all()) {
    if (model.device() == device && model.is_leaving() && is_held_up(model)) bytes += model.bytes;
  }
  return bytes;
}

void Residency::begin_leaving(Model& model, ModelPhase next, const Leaving& leaving) {
  enter(model, next);
  leaving_.insert_or_assign(model.id, leaving);
  listener_.models_changed();
  loads_.drop_copies(model.id);
  if (model.compared_by.empty()) return;
  loads_.end_comparisons(model);
  review();
}

void Residency::begin_evict(Model& model, EvictReason reason, std::optional<Owner> asked_by) {
  begin_leaving(model, ModelPhase::kEvicting, {reason, clock_.monotonic_ns(), asked_by});
  mappings_.park(model);
  if (model.load.valid()) loads_.abort_load(model.load);
  finish_if_free(model);
}

void Residency::begin_unload(Model& model, EvictReason reason, std::optional<Owner> asked_by) {
  begin_leaving(model, ModelPhase::kUnloading, {reason, clock_.monotonic_ns(), asked_by});
  listener_.model_gone(model.id);
  mappings_.drop(model);
  if (model.load.valid()) loads_.abort_load(model.load);
  finish_if_free(model);
}

// Closes the model's extents. Until that is done they exist, and count.
void Residency::free_then(Model& model, void (Residency::*finish)(ModelId)) {
  DJINN_ASSERT(!model.load.valid());
  leaving_.at(model.id).freeing = true;
  std::vector<Fd> extents;
  for (Fd& extent : model.extents) extents.push_back(std::move(extent));
  devices_.extents_of(model.device()).free(std::move(extents), [this, id = model.id, finish] {
    (this->*finish)(id);
  });
}

uint64_t Residency::waits_until(const Model& model) const {
  const auto leaving = leaving_.find(model.id);
  const bool waits = leaving != leaving_.end() && !leaving->second.freeing;
  if (!waits || model.compared_by.empty()) return kNever;
  return leaving->second.since_ns + kLoaderEndsMs * kNsPerMs;
}

void Residency::finish_if_free(Model& model) {
  const auto leaving = leaving_.find(model.id);
  if (leaving == leaving_.end() || leaving->second.freeing || model.load.valid()) return;
  if (!model.compared_by.empty() && waits_until(model) > clock_.monotonic_ns()) return;
  if (loads_.has_copies(model.id)) return;
  if (model.phase == ModelPhase::kUnloading && model.mapped->empty()) {
    return free_then(model, &Residency::finish_unload);
  }
  if (model.phase == ModelPhase::kEvicting && Mappings::is_parked(model)) {
    free_then(model, &Residency::finish_evict);
  }
}

void Residency::release(Model& model) {
  if (model.compared_by.empty()) {
    devices_.of(model.device()).release_all(Memory::of_model(model.id));
  } else {
    loads_.leave_to_loaders(model);
    devices_.of(model.device()).freed();  // who waits for these bytes waits in vain
  }
}

void Residency::finish_evict(ModelId id) {
  Model* const model = table_.find(id);
  if (model == nullptr || model->phase != ModelPhase::kEvicting) return;
  enter(*model, ModelPhase::kOnDisk);
  model->bytes_loaded = model->huge_bytes = 0;
  model->extents.clear();
  emit(EventKind::kModelEvicted, *model, leaving_.extract(id).mapped(), "evicted to disk");
  release(*model);
  replies_.owe_each(std::exchange(model->evict_waiters, {}), ipc::Done{});
  listener_.models_changed();
  const bool was_wanted = std::exchange(model->wanted, false);
  if (was_wanted || !model->openers->empty()) return want(*model);
  review();
}

void Residency::finish_unload(ModelId id) {
  Model* const model = table_.find(id);
  if (model == nullptr) return;
  emit(EventKind::kModelUnloaded, *model, leaving_.extract(id).mapped(), "unloaded");
  Model gone = std::move(*model);
  table_.erase(id);
  release(gone);
  replies_.owe_each(gone.evict_waiters, ipc::Done{});
}

// --- up

void Residency::want(Model& model) {
  if (model.phase == ModelPhase::kEvicting && !Mappings::is_parked(model)) return stay(model);
  if (model.phase == ModelPhase::kEvicting) model.wanted = true;
  if (model.phase != ModelPhase::kOnDisk) return;
  table_.touch(model);
  enter(model, ModelPhase::kLoading);
  listener_.models_changed();
  loads_.read_again(model);
}

// A worker may let go of the model only at the end of a long step, and whoever wants the model need
// not wait for that. The reclaimer looks again at the requests that wait for its memory.
void Residency::stay(Model& model) {
  DJINN_ASSERT(!leaving_.at(model.id).freeing && !model.extents.empty());
  leaving_.erase(model.id);
  enter(model, ModelPhase::kResident);
  mappings_.restore(model);
  for (const Waiter& waiter : std::exchange(model.evict_waiters, {})) {
    replies_.refuse(waiter, {ErrorCode::kBusy,
                             "The model was used again before all workers had let go of it. "
                             "Repeat it, or wait."});
  }
  listener_.models_changed();
  review();
}

void Residency::taken_back(Model& model) {
  enter(model, ModelPhase::kResident);
}

void Residency::arrived(Model& model) {
  DJINN_ASSERT(model.manifest.valid() && !model.extents.empty());
  DJINN_ASSERT(devices_.of(model.device()).held_by(Memory::of_model(model.id)) >= model.bytes);
  enter(model, ModelPhase::kResident);
  model.close_contents();
  model.bytes_loaded = model.bytes;
  model.loaded_wall_ns = clock_.wall_ns();
  model.lost.reset();
  events_.emit(
      event_of(EventKind::kModelLoaded, model,
               fmt::format("model {} is resident: {}", text_of(model.id), size_text(model.bytes))));
  mappings_.restore(model);
  review();
  listener_.models_changed();
}

void Residency::hashed(Model& model, const std::array<uint8_t, 32>& sha256) {
  DJINN_ASSERT(model.phase == ModelPhase::kResident && !model.sha256);
  model.sha256 = sha256;
  listener_.models_changed();
}

void Residency::try_next_source(Model& model) {
  enter(model, ModelPhase::kOnDisk);
  want(model);
}

void Residency::stays_away(Model& model, const LoadFailure& failure) {
  enter(model, ModelPhase::kOnDisk);
  model.lost = failure.error;
  mappings_.refuse_runs(model, failure);
  listener_.models_changed();
  review();
}

}  // namespace djinn::daemon
