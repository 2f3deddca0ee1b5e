// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/model.h"

#include <algorithm>
#include <utility>

#include "kernel/base/assert.h"

namespace djinn::daemon {

Event event_of(EventKind kind, const Model& model) {
  Event event = device_event(kind, {});
  event.owner = model.key.domain;
  event.model = model.id;
  event.bytes = model.bytes;
  return event;
}

bool may_follow(ModelPhase from, ModelPhase to) {
  switch (to) {
    case ModelPhase::kLoading:
      return from == ModelPhase::kOnDisk;
    case ModelPhase::kResident:
      return from == ModelPhase::kLoading;
    case ModelPhase::kEvicting:
      return from == ModelPhase::kResident;
    case ModelPhase::kOnDisk:
      return from == ModelPhase::kEvicting || from == ModelPhase::kLoading;
    case ModelPhase::kUnloading:
      return from == ModelPhase::kResident || from == ModelPhase::kOnDisk;
  }
  return false;
}

namespace {

// Each may be of as many descriptors as the model's own.
constexpr size_t kCopiesMax = 3;

}  // namespace

Error refusal_of(ModelUse use) {
  DJINN_ASSERT(use != ModelUse::kNone);
  if (use == ModelUse::kMoving) {
    return {ErrorCode::kBusy, "The model is being loaded or unloaded. Repeat it then."};
  }
  return {ErrorCode::kBusy, "The model is in use. Close the sessions that hold it, then repeat."};
}

ModelUse Model::use() const {
  const bool still = phase == ModelPhase::kResident || phase == ModelPhase::kOnDisk;
  if (!still || !openers.empty()) return ModelUse::kMoving;
  return leases.empty() ? ModelUse::kNone : ModelUse::kHeld;
}

namespace {

bool is_same_file(const load::FileIdentity& a, const load::FileIdentity& b) {
  return a.device_major == b.device_major && a.device_minor == b.device_minor && a.inode == b.inode;
}

}  // namespace

bool may_compare(const ModelKey& resident, const ModelKey& opened) {
  if (resident.plan_hash != opened.plan_hash) return false;
  return resident.domain == opened.domain ? load::all_unchanged(resident.files, opened.files)
                                          : load::of_same_sizes(resident.files, opened.files);
}

bool may_share(const ModelKey& resident, const ModelKey& opened) {
  if (resident.plan_hash != opened.plan_hash) return false;
  return resident.domain == opened.domain ? load::same_within_domain(resident.files, opened.files)
                                          : load::same_across_domains(resident.files, opened.files);
}

void look_again(ModelKey& key, const std::vector<load::FileIdentity>& now) {
  const bool as_good = std::ranges::equal(now, key.files, [](const auto& later, const auto& first) {
    return later.unwritten && load::unchanged(first, later);
  });
  if (as_good) key.files = now;
}

std::vector<load::FileIdentity> identities_of(const ipc::Identified& identified) {
  std::vector<load::FileIdentity> files;
  for (const ipc::FileIdentity& f : identified.files) {
    files.push_back({f.device_major, f.device_minor, f.inode, f.bytes, f.mtime_ns, f.ctime_ns,
                     f.on_block_device, static_cast<uint64_t>(identified.now_ns)});
    files.back().unwritten = f.unwritten;
    if (!f.content) continue;
    std::ranges::transform(*f.content, files.back().content.emplace().begin(),
                           [](uint8_t byte) { return std::byte{byte}; });
  }
  return files;
}

void Model::go(ModelPhase next) {
  DJINN_ASSERT(may_follow(phase, next));
  phase = next;
}

std::string Model::path_for(const Caller& caller) const {
  const auto owners = paths.find(key.domain);
  if (owners != paths.end() && caller.may_steer(key.domain)) return owners->second;
  const auto own = paths.find(caller.user);
  return own == paths.end() ? "" : own->second;
}

void Model::add_copy(Copy copy, SessionId session) {
  if (copy.user == key.domain) return;
  // A client's sealed memory would be held twice.
  if (std::ranges::any_of(copy.seen, [](const auto& file) { return file.content.has_value(); })) {
    return;
  }
  const auto present = std::ranges::find(copies, copy.user, &Copy::user);
  if (present != copies.end()) {
    copy.sessions = std::move(present->sessions);
    copies.erase(present);
  }
  copy.sessions.insert(session);
  if (copies.size() < kCopiesMax) copies.push_back(std::move(copy));
}

void Model::forget_copies_of(SessionId session) {
  std::erase_if(copies, [&](Copy& copy) {
    return copy.sessions.erase(session) > 0 && copy.sessions.empty();
  });
}

void Model::turn_to_copy(bool keeps_present) {
  DJINN_ASSERT(!copies.empty());
  Copy next = std::move(copies.front());
  copies.erase(copies.begin());
  std::swap(key.domain, next.user);
  std::swap(key.files, next.seen);
  std::swap(files, next.files);
  next.sessions.clear();  // it goes with the model
  if (keeps_present) copies.push_back(std::move(next));
}

bool seen_by(const Model& model, const Caller& caller) {
  return caller.may_steer(model.key.domain) || model.mapped.contains(caller.user);
}

Model& ModelTable::add(Model model) {
  const ModelId id = model.id;
  const auto [at, fresh] = models_.emplace(id, std::move(model));
  DJINN_ASSERT(fresh);
  touch(at->second);
  return at->second;
}

Model* ModelTable::find(ModelId id) {
  const auto found = models_.find(id);
  return found == models_.end() ? nullptr : &found->second;
}

Model* ModelTable::find_by_load(LoadId load) {
  for (auto& [id, model] : models_) {
    if (model.load == load) return &model;
  }
  return nullptr;
}

Model* ModelTable::find_shared(const ModelKey& opened) {
  for (auto& [id, model] : models_) {
    // Files that look the same and are not what they were would be so again.
    const bool spoilt = model.lost && model.lost->code == ErrorCode::kHashMismatch;
    const bool stays = model.phase != ModelPhase::kUnloading && !spoilt;
    if (!stays || !may_share(model.key, opened)) continue;
    // What comes back is read from what is opened now, and its hash is compared; of what was read
    // before, young files' bytes are.
    const bool comes_back =
        model.phase == ModelPhase::kEvicting || model.phase == ModelPhase::kOnDisk;
    if (comes_back || load::were_settled(model.key.files)) return &model;
  }
  return nullptr;
}

Model* ModelTable::find_alike(const ModelKey& opened, const std::set<ModelId>& other) {
  Model* found = nullptr;
  for (auto& [id, model] : models_) {
    // Another user's load may never end.
    const bool there = model.phase == ModelPhase::kResident ||
                       (model.phase == ModelPhase::kLoading && model.key.domain == opened.domain);
    if (!there || other.contains(id) || !may_compare(model.key, opened)) continue;
    if (std::ranges::equal(model.key.files, opened.files, is_same_file)) return &model;
    if (found == nullptr) found = &model;
  }
  return found;
}

std::vector<Model*> ModelTable::evictable(bool in_use) {
  std::vector<Model*> found;
  for (auto& [id, model] : models_) {
    const bool movable = model.phase == ModelPhase::kResident && !model.pinned() &&
                         model.in_use() == in_use && (!in_use || model.can_come_back());
    if (movable) found.push_back(&model);
  }
  std::sort(found.begin(), found.end(),
            [](const Model* a, const Model* b) { return a->last_used < b->last_used; });
  return found;
}

uint64_t ModelTable::leaving_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [id, model] : models_) {
    const bool leaving = (model.phase == ModelPhase::kUnloading && !model.extents.empty()) ||
                         model.phase == ModelPhase::kEvicting;
    if (leaving) bytes += model.bytes;
  }
  return bytes;
}

}  // namespace djinn::daemon
