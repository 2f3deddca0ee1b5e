// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/models/leases.h"

#include <algorithm>
#include <set>
#include <utility>

#include "daemon/djinnd/models/copies.h"
#include "daemon/djinnd/models/extents.h"
#include "daemon/djinnd/models/pins.h"
#include "ipc/limits.h"
#include "kernel/base/assert.h"

namespace djinn::daemon {

Leases::Leases(const Clock& clock, ModelTable& table, const Devices& devices, Mappings& mappings,
               Residency& residency, Replies& replies, LoadFailures& failures, Copies& copies,
               ModelListener& listener)
    : clock_(clock),
      table_(table),
      devices_(devices),
      mappings_(mappings),
      residency_(residency),
      replies_(replies),
      failures_(failures),
      copies_(copies),
      listener_(listener) {}

void Leases::join(Model& model, const OpenRequest& request) {
  DJINN_ASSERT(model.phase != ModelPhase::kUnloading);
  const Owner user = request.opener.domain;
  ModelLease& lease = model.leases.value_[request.opener.waiter.session];
  DJINN_ASSERT(lease.count == 0 || lease.domain == user);
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
  if (request.numerics && keep_alive != model.keep_alives_ms.end()) {
    model.numerics[user] = *request.numerics;
  }
  model.call(user, {request.label, request.path});
  table_.touch(model);
  model.openers.value_.push_back(request.opener);
  residency_.want(model);
  listener_.models_changed();
  settle(model);
}

void Leases::leave(Model& model, SessionId session) {
  const auto lease = model.leases.value_.find(session);
  if (lease == model.leases->end()) return;
  DJINN_ASSERT(lease->second.count > 0);
  if (--lease->second.count == 0) {
    model.leases.value_.erase(lease);
    model.forget_sources_of(session);
  }
  model.idle_since_ns = clock_.monotonic_ns();
  residency_.review();
}

void Leases::session_left(SessionId session) {
  for (auto& [id, model] : table_.all()) {
    take_openers(model, [&](const Opener& opener) { return opener.waiter.session == session; });
    model.forget_sources_of(session);
    if (model.leases.value_.erase(session) == 0) continue;
    table_.touch(model);
    model.idle_since_ns = clock_.monotonic_ns();
  }
  residency_.review();
}

void Leases::settle(Model& model) {
  if (model.phase != ModelPhase::kResident) return;
  std::set<DeviceId> lacking = mappings_.wanting_gpus(model);
  const std::vector<Opener> served = take_openers(model, [&](const Opener& opener) {
    if (!opener.needs_worker) return true;
    const WorkerKey key = opener.worker();
    if (mappings_.bytes_for(model, key) == nullptr) {
      lacking.insert(key.device);
      return false;
    }
    mappings_.add(model, key);
    return Mappings::is_added(model, key);
  });
  for (const Opener& opener : served) {
    if (opener.needs_worker) copies_.touch(model.id, opener.worker().device);
    replies_.owe(opener.waiter, [this, id = model.id, opener]() -> ipc::DaemonReply {
      return {opener.waiter.number, opened(id, opener)};
    });
  }
  for (const DeviceId gpu : lacking) copies_.want(model, gpu);
}

// The model is looked up again, because an administrator may have unloaded it in the meantime.
decltype(ipc::DaemonReply::body) Leases::opened(ModelId id, const Opener& opener) {
  const Model* const model = table_.find(id);
  if (model == nullptr) {
    return ipc::Failed{ErrorCode::kNotFound, "There is no such model any more."};
  }
  auto first = part_of_manifest(*model, 0);
  if (!first) return ipc::Failed{first.error().code, first.error().message};
  const auto said = model->numerics.find(opener.domain);
  return ipc::ModelOpened{
      model->id,
      model->bytes,
      opener.was_resident,
      model->manifest_bytes,
      *std::move(first),
      said != model->numerics.end() ? std::optional(said->second) : std::nullopt};
}

std::vector<Opener> Leases::take_openers(Model& model,
                                         const std::function<bool(const Opener&)>& whose) {
  std::vector<Opener> taken;
  std::erase_if(model.openers.value_, [&](const Opener& opener) {
    const bool is_taken = whose(opener);
    if (is_taken) taken.push_back(opener);
    return is_taken;
  });
  return taken;
}

void Leases::refuse_openers(Model& model, Owner user, const std::function<bool(WorkerKey)>& whose,
                            const Error& error) {
  failures_.emit(model, failure_of(model, user, error));
  const std::vector<Opener> refused = take_openers(
      model, [&](const Opener& opener) { return opener.needs_worker && whose(opener.worker()); });
  for (const Opener& opener : refused) leave(model, opener.waiter.session);
  failures_.refuse_each(refused, error);
}

void Leases::forget(Model& model, const Opener& opener) {
  Pins::remove(model, opener.domain);
  model.keep_alives_ms.erase(opener.domain);
  model.numerics.erase(opener.domain);
  model.names.erase(opener.domain);
  leave(model, opener.waiter.session);
}

Error Leases::with_own_part(Error error, const Model& model) const {
  if (error.code != ErrorCode::kOutOfMemory || model.openers->empty()) return error;
  const SessionId session = model.openers->front().waiter.session;
  const bool is_alone = std::ranges::all_of(
      *model.openers, [&](const Opener& opener) { return opener.waiter.session == session; });
  if (is_alone)
    error.message += devices_.of(model.device()).own_part_of(Memory::of_session(session));
  return error;
}

}  // namespace djinn::daemon
