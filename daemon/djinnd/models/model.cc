// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/models/model.h"

#include <algorithm>
#include <utility>

#include "daemon/djinnd/models/mappings.h"
#include "ipc/limits.h"
#include "kernel/base/assert.h"

namespace djinn::daemon {
namespace {

using enum ModelPhase;
constexpr std::array<Transition<ModelPhase>, 8> kTransitions{{
    {kLoading, kResident},
    {kLoading, kOnDisk},
    {kResident, kEvicting},
    {kResident, kUnloading},
    {kEvicting, kOnDisk},
    {kEvicting, kResident},
    {kOnDisk, kLoading},
    {kOnDisk, kUnloading},
}};

bool is_same_file(const load::FileIdentity& a, const load::FileIdentity& b) {
  return a.device_major == b.device_major && a.device_minor == b.device_minor && a.inode == b.inode;
}

bool is_memory(const load::FileIdentity& file) {
  return file.content.has_value();
}

// Tells whether the error says that the files are no longer what the model was read from.
bool are_others(const Error& error) {
  return error.code == ErrorCode::kFileChanged || error.code == ErrorCode::kHashMismatch;
}

}  // namespace

Event event_of(EventKind kind, const Model& model, std::string text,
               std::optional<ErrorCode> error) {
  Event event = device_event(model.device(), kind, std::move(text));
  event.owner = model.owner();
  event.model = model.id;
  event.bytes = model.bytes;
  event.error = error;
  return event;
}

bool may_follow(ModelPhase from, ModelPhase to) {
  return is_listed(kTransitions, from, to);
}

Error refusal_of(ModelUse use) {
  DJINN_ASSERT(use != ModelUse::kNone);
  if (use == ModelUse::kMoving) {
    return {ErrorCode::kBusy, "The model is being loaded or unloaded. Repeat it then."};
  }
  return {ErrorCode::kBusy, "The model is in use. Close the sessions that hold it, then repeat."};
}

ModelUse Model::use() const {
  const bool still = phase == ModelPhase::kResident || phase == ModelPhase::kOnDisk;
  if (!still || !openers->empty()) return ModelUse::kMoving;
  return leases->empty() ? ModelUse::kNone : ModelUse::kHeld;
}

bool may_compare(const ModelKey& resident, const ModelKey& opened) {
  if (resident.device != opened.device || resident.plan_hash != opened.plan_hash) return false;
  if (resident.domain == opened.domain) return load::all_unchanged(resident.files, opened.files);
  return load::of_same_sizes(resident.files, opened.files) &&
         std::ranges::none_of(opened.files, is_memory);
}

bool may_share(const ModelKey& resident, const ModelKey& opened) {
  if (resident.device != opened.device || resident.plan_hash != opened.plan_hash) return false;
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

bool Model::held_beside(Owner user) const {
  const auto is_others = [&](const auto& lease) { return lease.second.domain != user; };
  return std::ranges::any_of(*leases, is_others) ||
         std::ranges::any_of(*openers, [&](const Opener& opener) { return opener.domain != user; });
}

// What the caller said of a model, or an owner whom they may steer.
template <typename Said>
static const Said* said_for(const std::map<Owner, Said>& users, Owner owner, const Caller& caller) {
  if (const auto own = users.find(caller.user); own != users.end()) return &own->second;
  const auto owners = users.find(owner);
  return owners != users.end() && caller.may_steer(owner) ? &owners->second : nullptr;
}

ModelName Model::name_for(const Caller& caller) const {
  const ModelName* const said = said_for(names, owner(), caller);
  return said != nullptr ? *said : ModelName();
}

std::optional<srg::Numerics> Model::numerics_for(const Caller& caller) const {
  const srg::Numerics* const said = said_for(numerics, owner(), caller);
  return said != nullptr ? std::optional(*said) : std::nullopt;
}

// A name without a path does not replace one that has it.
void Model::call(Owner user, ModelName name) {
  const bool is_new = !names.contains(user);
  if (is_new && names.size() >= limits::kModelUsers) return;
  if (is_new || !name.path.empty()) names[user] = std::move(name);
}

bool Model::is_awaited_by(Owner user) const {
  const auto waits = [&](const auto& entry) {
    return entry.first.owner == user && entry.second.wanted;
  };
  return std::ranges::any_of(*mapped, waits) ||
         std::ranges::any_of(*openers, [&](const Opener& opener) { return opener.domain == user; });
}

bool Model::has_openers_on(DeviceId device) const {
  return std::ranges::any_of(*openers,
                             [&](const Opener& opener) { return opener.device == device; });
}

bool Model::is_mapped_by(Owner user) const {
  return std::ranges::any_of(*mapped, [&](const auto& entry) { return entry.first.owner == user; });
}

void Model::add_source(ModelKey opened, std::vector<SharedFd> files,
                       std::vector<std::string> called, SessionId session) {
  uint32_t patience = Source::kPatience;
  for (Source& source : sources) {
    if (source.user() != opened.domain) continue;
    if (load::all_unchanged(source.key.files, opened.files)) {
      source.file_names = std::move(called);
      source.sessions.insert(session);
      return;
    }
    patience = source.patience;
  }
  Source& added = sources.emplace_back();
  added.key = std::move(opened);
  added.files = std::move(files);
  added.file_names = std::move(called);
  added.sessions.insert(session);
  added.patience = patience;
}

void Model::forget_sources_of(SessionId session) {
  for (Source& source : sources) source.sessions.erase(session);
  forget_unheld();
}

// Sources that no session holds are forgotten, except for one that is being read.
void Model::forget_unheld() {
  const auto unheld = std::remove_if(sources.begin() + 1, sources.end(), [](const Source& source) {
    return source.sessions.empty() && !source.load.valid();
  });
  sources.erase(unheld, sources.end());
}

Source* Model::source_of(LoadId reader) {
  const auto found = std::ranges::find(sources, reader, &Source::load);
  return found == sources.end() || !reader.valid() ? nullptr : &*found;
}

void Model::progressed(LoadId reader, uint64_t bytes_read) {
  bytes_loaded = std::min(bytes_read, bytes);
  if (Source* const source = source_of(reader)) source->silent = 0;
}

const Source* Model::source_for(SessionId session) const {
  const auto found = std::ranges::find_if(
      sources, [&](const Source& source) { return source.sessions.contains(session); });
  return found == sources.end() ? nullptr : &*found;
}

Source* Model::next_source() {
  Source* next = nullptr;
  const auto turn = [&](const Source& source) {
    return std::pair(source.patience, !is_awaited_by(source.user()));
  };
  for (Source& source : sources) {
    if (!source.tried && (next == nullptr || turn(source) < turn(*next))) next = &source;
  }
  return next;
}

void Model::look_at(Source& source, bool on_files) {
  if (!on_files) {
    source.silent = 0;
    return;
  }
  ++source.silent;
  const bool keeps_others = std::ranges::any_of(sources, [&](const Source& other) {
    return other.user() != source.user() && !other.tried && is_awaited_by(other.user());
  });
  source.in_the_way = keeps_others ? source.in_the_way + 1 : 0;
}

bool Model::has_waited_enough_for(const Source& source) const {
  if (source.in_the_way >= Source::kInTheWay) return true;
  if (source.silent < source.patience) return false;
  const auto is_others = [&](Owner user) { return user != source.user(); };
  return std::ranges::any_of(sources,
                             [&](const Source& s) { return is_others(s.user()) && !s.tried; }) ||
         std::ranges::any_of(
             *mapped, [&](const auto& m) { return is_others(m.first.owner) && m.second.wanted; }) ||
         std::ranges::any_of(*openers, [&](const Opener& o) { return is_others(o.domain); });
}

bool Model::keeps_others_waiting(const Source& source) const {
  const bool is_joined = std::ranges::any_of(
      *openers, [&](const Opener& opener) { return opener.domain != source.user(); });
  const bool dawdles = source.in_the_way >= Source::kInTheWay &&
                       bytes_loaded < source.in_the_way * Source::kPaceBytes;
  return is_joined && (source.silent >= source.patience || dawdles);
}

void Model::put_aside(Source& source, const Error& error) {
  const bool silent = error.code == ErrorCode::kTimeout;
  source.load = {};
  source.tried = true;
  for (Source& own : sources) {
    if (!silent || own.user() != source.user()) continue;
    own.tried = true;
    own.patience = std::min(2 * own.patience, Source::kPatienceMax);
  }
  // The last source stays: it tells what the model was read from.
  if (!are_others(error) || sources.size() == 1) return;
  sources.erase(sources.begin() + (&source - sources.data()));
}

void Model::end_return() {
  for (Source& source : sources) {
    source.load = {};
    source.tried = false;
  }
  forget_unheld();
}

void Model::close_contents() {
  Source& first = sources.front();
  DJINN_ASSERT(first.files.size() <= first.key.files.size());
  for (size_t i = 0; i < first.files.size(); ++i) {
    if (first.key.files[i].content) first.files[i].reset();
  }
}

bool seen_by(const Model& model, const Caller& caller) {
  const Owner user = caller.user;
  return caller.may_steer(model.owner()) || model.is_mapped_by(user) ||
         model.pins->contains(user) || model.keep_alives_ms.contains(user) ||
         model.names.contains(user) ||
         std::ranges::any_of(model.sources, [&](const Source& s) { return s.user() == user; });
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

Model* ModelTable::find_shared(const ModelKey& opened, const std::set<ModelId>& other,
                               bool joins_loads) {
  for (auto& [id, model] : models_) {
    const bool is_first_load = model.phase == ModelPhase::kLoading && !model.returns();
    const bool is_others_load = is_first_load && model.owner() != opened.domain;
    if (other.contains(id) || (is_others_load && !joins_loads)) continue;
    // A model whose files look the same and hold other bytes would fail again.
    const bool spoilt = model.lost && model.lost->code == ErrorCode::kHashMismatch;
    const bool stays = model.phase != ModelPhase::kUnloading && !spoilt;
    if (!stays || !may_share(model.key(), opened)) continue;
    // A model that comes back is read from the files that are opened now, if it has no others, and
    // its hash is compared. Otherwise files that were young when they were read prove nothing, and
    // their bytes are compared (find_alike). One that workers still have stays as it is.
    const bool goes = model.phase == ModelPhase::kEvicting && Mappings::is_parked(model);
    const bool comes_back = goes || model.phase == ModelPhase::kOnDisk;
    const bool from_these = comes_back && model.sources.size() == 1;
    if (from_these || load::were_settled(model.key().files)) return &model;
  }
  return nullptr;
}

Model* ModelTable::find_alike(const ModelKey& opened, const std::set<ModelId>& other) {
  Model* found = nullptr;
  for (auto& [id, model] : models_) {
    // A load of another user's is no candidate, because it may never end.
    const bool there = model.phase == ModelPhase::kResident ||
                       (model.phase == ModelPhase::kLoading && model.owner() == opened.domain);
    if (!there || other.contains(id) || !may_compare(model.key(), opened)) continue;
    if (std::ranges::equal(model.key().files, opened.files, is_same_file)) return &model;
    if (found == nullptr) found = &model;
  }
  return found;
}

std::vector<Model*> ModelTable::evictable(DeviceId device, bool in_use) {
  std::vector<Model*> found;
  for (auto& [id, model] : models_) {
    const bool movable = model.device() == device && model.phase == ModelPhase::kResident &&
                         !model.pinned() && model.openers->empty() && model.in_use() == in_use &&
                         (!in_use || model.can_come_back());
    if (movable) found.push_back(&model);
  }
  std::sort(found.begin(), found.end(),
            [](const Model* a, const Model* b) { return a->last_used < b->last_used; });
  return found;
}

uint64_t ModelTable::leaving_bytes(DeviceId device) const {
  uint64_t bytes = 0;
  for (const auto& [id, model] : models_) {
    if (model.device() == device && model.is_leaving()) bytes += model.bytes;
  }
  return bytes;
}

uint64_t ModelTable::huge_bytes(DeviceId device) const {
  uint64_t bytes = 0;
  for (const auto& [id, model] : models_) {
    if (model.device() == device) bytes += model.huge_bytes;
  }
  return bytes;
}

}  // namespace djinn::daemon
