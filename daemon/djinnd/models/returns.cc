// SPDX-License-Identifier: Apache-2.0

// The functions stand in the order in which a return calls them.
#include "daemon/djinnd/models/returns.h"

#include <fmt/format.h>

#include <algorithm>

#include "daemon/djinnd/loop/log.h"
#include "daemon/djinnd/models/extents.h"
#include "kernel/base/assert.h"

namespace djinn::daemon {

Returns::Returns(ModelTable& table, LoadQueue& queue, Residency& residency, Leases& leases,
                 Openings& openings, LoadFailures& failures, Events& events)
    : table_(table),
      queue_(queue),
      residency_(residency),
      leases_(leases),
      openings_(openings),
      failures_(failures),
      events_(events) {}

void Returns::read_again(Model& model) {
  DJINN_ASSERT(model.returns() && model.extents.empty());
  Source* const source = model.next_source();
  DJINN_ASSERT(source != nullptr);
  const LoadQueue::Turn turn{.user = source->user(), .returns = true};
  model.load = source->load = queue_.add(source->files, model.device(), turn, *this);
  source->silent = source->in_the_way = 0;
  events_.emit(event_of(EventKind::kModelLoading, model,
                        fmt::format("model {} is read again", text_of(model.id))));
}

void Returns::load_identified(Load& load, const ipc::Identified& files) {
  Model& model = model_of(load.id());
  Source& source = source_of(model);
  // Files that look unchanged are read; the hash then shows whether they are.
  const std::vector<load::FileIdentity> now = identities_of(files);
  if (!load::all_unchanged(source.key.files, now)) {
    return source_failed(model, {ErrorCode::kFileChanged,
                                 "The model's files have changed since it was read first. Close "
                                 "it, and open it anew."});
  }
  source.silent = 0;
  look_again(source.key, now);
  load.plan(model.plan);
}

void Returns::load_planned(Load& load, const ipc::Planned& plan) {
  Model& model = model_of(load.id());
  if (plan.extent_bytes != model.extent_bytes) {
    return source_failed(
        model, {ErrorCode::kLoaderLost, "The loader planned the model otherwise than before."});
  }
  queue_.request_memory(load, model.bytes, [this, id = load.id()](const Status& granted) {
    extents_granted(id, granted);
  });
}

void Returns::extents_granted(LoadId id, const Status& granted) {
  Model& model = model_of(id);
  if (!granted) return fail(model, leases_.with_own_part(granted.error(), model));
  queue_.make_extents(
      *queue_.find(id), model.extent_bytes,
      [this, id](Result<std::vector<Fd>> made) { has_extents(id, std::move(made)); });
}

void Returns::has_extents(LoadId id, Result<std::vector<Fd>> made) {
  Model& model = model_of(id);
  if (!made) return fail(model, made.error());
  const std::vector<uint64_t> sizes = model.extent_bytes;
  give_extents(model, *std::move(made), sizes);
  source_of(model).silent = 0;
  queue_.find(id)->read_into(model.extents, true);
}

void Returns::load_progressed(Load& load, uint64_t bytes_read) {
  model_of(load.id()).progressed(load.id(), bytes_read);
}

void Returns::load_finished(Load& load, const ipc::Loaded& loaded, Fd& manifest) {
  Model& model = model_of(load.id());
  queue_.count(loaded);
  const Status sealed = seal(model, manifest);
  if (!sealed) return source_failed(model, sealed.error());
  note_huge_pages(model, loaded);
  queue_.hand_over(load, model.id);
}

// Only the size of the new manifest is checked: the manifest of the first load is known to be
// right, and stays.
Status Returns::seal(const Model& model, const Fd& manifest) {
  const auto bytes = size_of_manifest(manifest);
  return bytes ? queue_.seal(model) : Status(bytes.error());
}

void Returns::load_hashed(Load& load, const ipc::Hashed& hashed) {
  Model& model = model_of(load.id());
  DJINN_ASSERT(model.sha256.has_value());
  if (hashed.sha256 != *model.sha256) {
    return source_failed(model, {ErrorCode::kHashMismatch,
                                 "The model's files hold other bytes than when it was read first. "
                                 "Check the disk, then close the model and open it anew."});
  }
  model.end_return();
  residency_.arrived(model);
  leases_.settle(model);
  openings_.decide_waiting(model.id);
}

// --- it fails

void Returns::load_looked_at(Load& load, bool on_files) {
  Model* const model = table_.find_by_load(load.id());
  const bool is_back = model == nullptr || !model->returns();
  if (is_back) return;
  Source& source = source_of(*model);
  model->look_at(source, on_files);
  if (!model->has_waited_enough_for(source)) return;
  source_failed(*model, {ErrorCode::kTimeout,
                         "The file system of the model's files does not answer, or not soon. Try "
                         "again."});
}

void Returns::load_failed(Load& load, const Error& error) {
  source_failed(model_of(load.id()), error);
}

void Returns::source_failed(Model& model, const Error& error) {
  const LoadId load = model.load;
  Source& source = source_of(model);
  const LoadFailure failure = failure_of(model, source, error);
  model.put_aside(source, error);
  const bool goes_on = model.next_source() != nullptr && queue_.check_loaders().ok();
  if (!goes_on) return give_up(model, failure);
  failures_.emit_end(model, failure);
  queue_.abandon(model);
  residency_.try_next_source(model);
  queue_.abort(load);
}

void Returns::fail(Model& model, const Error& error) {
  give_up(model, failure_of(model, source_of(model), error));
}

void Returns::give_up(Model& model, const LoadFailure& failure) {
  const LoadId load = model.load;
  failures_.emit_end(model, failure);
  queue_.abandon(model);
  openings_.decide_waiting(model.id);
  const std::vector<Opener> openers =
      leases_.take_openers(model, [](const Opener&) { return true; });
  for (const Opener& opener : openers) leases_.leave(model, opener.waiter.session);
  model.end_return();
  residency_.stays_away(model, failure);
  queue_.abort(load);
  failures_.refuse_each(openers, failure.error);
}

void Returns::load_ended(LoadId id) {
  Model* const model = table_.find_by_load(id);
  if (model == nullptr) return;  // another source is read
  if (model->returns()) {
    source_failed(*model,
                  {ErrorCode::kLoaderLost, "The loader died before it had compared the hash."});
  }
  if (model->load == id) model->load = {};  // else the next source is read
  residency_.let_go(*model);
}

Model& Returns::model_of(LoadId load) {
  Model* const model = table_.find_by_load(load);
  DJINN_ASSERT(model != nullptr && model->returns());
  return *model;
}

Source& Returns::source_of(Model& model) {
  Source* const source = model.source_of(model.load);
  DJINN_ASSERT(source != nullptr);
  return *source;
}

}  // namespace djinn::daemon
