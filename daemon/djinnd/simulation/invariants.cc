// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/simulation/invariants.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "daemon/djinnd/loop/log.h"
#include "daemon/djinnd/simulation/daemon_for_tests.h"
#include "kernel/vmu/grants.h"

namespace djinn::daemon::simulation {

using Access = DaemonForTests;

namespace {

uint64_t bytes_of(const ipc::KeptModel& model) {
  return std::accumulate(model.extent_bytes.begin(), model.extent_bytes.end(), uint64_t{0});
}

// Tells whether the record says what the model is.
bool is_record_of(const Model& model, const ipc::KeptModel& record) {
  const auto is_pin = [&](uint64_t user) { return model.pins->contains(*Owner::of_number(user)); };
  const auto is_said = [&](const ipc::KeptNumerics& one) {
    const auto said = model.numerics.find(*Owner::of_number(one.user));
    return said != model.numerics.end() && said->second == one.numerics;
  };
  return record.domain == model.owner().number() && record.device == text_of(model.device()) &&
         record.extent_bytes == model.extent_bytes && record.sha256 == model.sha256 &&
         record.huge_bytes == model.huge_bytes && record.pinned_by.size() == model.pins->size() &&
         std::ranges::all_of(record.pinned_by, is_pin) &&
         record.keep_alives.size() == model.keep_alives_ms.size() &&
         record.numerics.size() == model.numerics.size() &&
         std::ranges::all_of(record.numerics, is_said) &&
         record.files.size() == model.key().files.size();
}

}  // namespace

Invariants::Invariants(Machine& machine, Daemon& daemon, std::vector<Owner> users,
                       std::map<ModelId, ipc::KeptModel> kept)
    : machine_(machine), daemon_(daemon), users_(std::move(users)), kept_(std::move(kept)) {
  for (const auto& reclaimer : Access::reclaimers(daemon)) {
    successors_.emplace_back(machine, daemon, *reclaimer);
  }
}

void Invariants::fail(std::string what) {
  if (!failure_) failure_ = std::move(what);
}

std::optional<std::string> Invariants::check() {
  for (const auto& memory : Access::devices(daemon_).all()) {
    check_holders(*memory);
    check_users(*memory);
    check_user_quotas(*memory);
  }
  check_sessions();
  check_session_quotas();
  check_models();
  check_programs();
  check_workers();
  check_waiting();
  if (const auto wrong = machine_.systemd().check()) fail(*wrong);
  return failure_;
}

bool Invariants::is_live(SessionId id) const {
  const Session* const session = Access::sessions(daemon_).find(id);
  return session != nullptr && session->phase != SessionPhase::kLeaving;
}

const Memory& Invariants::memory_of(const Session& session) const {
  return Access::devices(daemon_).of(session.device);
}

uint64_t Invariants::held_by(vmu::HolderKind kind) const {
  return Access::devices(daemon_).held_by({kind});
}

// --- accounts

void Invariants::check_holders(const Memory& memory) {
  const Status books = memory.check();
  if (!books) fail(books.error().message);
  for (const auto& [holder, bytes] : Access::held(memory)) check_holder(memory, holder);
}

std::optional<DeviceId> Invariants::device_of(Memory::Holder holder) {
  using enum vmu::HolderKind;
  switch (holder.kind) {
    case kSession: {
      const SessionId id{holder.id};
      if (const Session* const session = Access::sessions(daemon_).find(id)) return session->device;
      const auto released = Access::released_from(daemon_, id);
      return released ? std::optional(released->device) : std::nullopt;
    }
    case kModel: {
      const Model* const model = Access::table(daemon_).find(ModelId{holder.id});
      return model != nullptr ? std::optional(model->device()) : std::nullopt;
    }
    case kLoad:
      return Access::device_of(daemon_, LoadId{holder.id});
    case kLane:
    case kHeap: {
      const auto key = Access::worker_of(daemon_, holder);
      const bool is_there = key && Access::domains(daemon_).ready(*key);
      return is_there ? std::optional(key->device) : std::nullopt;
    }
  }
  return std::nullopt;
}

void Invariants::check_holder(const Memory& memory, Memory::Holder holder) {
  const auto device = device_of(holder);
  if (device == memory.device()) return;
  fail(fmt::format("bytes of {} are held by kind {} number {:012x}, which is {}",
                   text_of(memory.device()), static_cast<int>(holder.kind), holder.id,
                   device ? "on " + text_of(*device) : "gone"));
}

void Invariants::check_sessions() {
  for (const auto& [id, session] : Access::sessions(daemon_).all()) check_session(*session);
}

void Invariants::check_session(const Session& session) {
  const Memory& memory = memory_of(session);
  const uint64_t held = memory.held_by(Memory::of_session(session.id));
  const auto wrong = [&](const char* what) {
    fail(fmt::format("session {}: {}", text_of(session.id), what));
  };
  uint64_t expected = session.ref_bytes_granted;
  for (const auto& [index, group] : session.sequences.all()) expected += group.granted_bytes();
  if (session.has_memory()) expected += SessionMemory::bytes(session.memory.staging_bytes);
  const bool is_being_made = session.phase == SessionPhase::kAttaching && !session.has_memory();
  if (held != expected && !is_being_made) {
    wrong(fmt::format("holds {} bytes, and its parts come to {}", held, expected).c_str());
  }
  if (is_being_made && expected != 0) wrong("has parts before it has memory");
  const bool leaves = session.phase == SessionPhase::kLeaving;
  if (session.aside_bytes() != Access::aside_of(memory, session.id)) {
    wrong("has another number of bytes on disk than its account");
  }
  const uint64_t in_chunks =
      session.memory.chunk_bytes() + session.ref_bytes_coming + session.ref_bytes_freeing;
  if (session.device != kHostDevice && !leaves && in_chunks != session.ref_bytes_granted) {
    wrong("has more or less memory for refs than is granted");
  }
  if (leaves != (session.channel == nullptr)) wrong("has a channel and leaves, or neither");
  if (leaves && memory.waits(Memory::of_session(session.id))) {
    wrong("leaves, and waits for memory");
  }
  const bool has_worker = Access::domains(daemon_).ready(session.worker());
  if (session.attached && !has_worker) wrong("is attached to a worker that is dead");
  if (leaves && !session.attached) wrong("leaves, and no worker has it");
  if ((session.hello != 0) != (session.phase == SessionPhase::kAttaching)) {
    wrong("is attaching and has no Hello to answer, or has one and is not");
  }
}

void Invariants::check_users(const Memory& memory) {
  std::map<Owner, uint64_t> sums;
  for (const auto& [holder, bytes] : Access::held(memory)) {
    if (holder.kind == vmu::HolderKind::kLane || holder.kind == vmu::HolderKind::kHeap) {
      if (const auto key = Access::worker_of(daemon_, holder)) sums[key->owner] += bytes;
      continue;
    }
    if (holder.kind != vmu::HolderKind::kSession) continue;
    const SessionId id{holder.id};
    const Session* const session = Access::sessions(daemon_).find(id);
    const auto of =
        session != nullptr ? std::optional(session->worker()) : Access::released_from(daemon_, id);
    if (of) sums[of->owner] += bytes;
  }
  for (const auto& [id, session] : Access::sessions(daemon_).all()) {
    if (session->device == memory.device()) sums[session->domain] += session->aside_bytes();
  }
  for (const Owner user : users_) {
    const uint64_t held = memory.held_by_user(user);
    if (held == sums[user]) continue;
    fail(fmt::format("the account of user {} on {} has {} bytes, and what is theirs comes to {}",
                     user.number(), text_of(memory.device()), held, sums[user]));
  }
}

// A user who has more than a quota that was lowered keeps it, and gets no more. Slabs are left out,
// because a new one is granted before the former one is gone.
void Invariants::check_user_quotas(const Memory& memory) {
  std::map<Owner, uint64_t> slabs;
  for (const auto& [holder, bytes] : Access::held(memory)) {
    const auto key =
        holder.kind == vmu::HolderKind::kLane ? Access::worker_of(daemon_, holder) : std::nullopt;
    if (key) slabs[key->owner] = bytes;
  }
  for (const Owner user : users_) {
    const Seen now{memory.held_by_user(user) - slabs[user],
                   Access::quotas(daemon_).of(user, memory.total_bytes()).memory_bytes};
    const Seen before = std::exchange(users_seen_[{user, memory.device()}], now);
    const bool grew = now.held_bytes > before.held_bytes;
    if (grew && now.held_bytes > std::max(now.quota_bytes, before.quota_bytes)) {
      fail(fmt::format("user {} has come to hold {} bytes of {}, and may have {}", user.number(),
                       now.held_bytes, text_of(memory.device()), now.quota_bytes));
    }
  }
}

void Invariants::check_session_quotas() {
  std::map<SessionId, Seen> seen;
  for (const auto& [id, session] : Access::sessions(daemon_).all()) {
    const Memory& memory = memory_of(*session);
    const Seen now{memory.held_by(Memory::of_session(id)) + session->aside_bytes(),
                   memory.session_quota()};
    const Seen before = sessions_seen_[id];
    if (now.held_bytes > before.held_bytes &&
        now.held_bytes > std::max(now.quota_bytes, before.quota_bytes)) {
      fail(fmt::format("session {} has come to hold {} bytes, and may have {}", text_of(id),
                       now.held_bytes, now.quota_bytes));
    }
    seen[id] = now;
  }
  sessions_seen_ = std::move(seen);
}

// --- lifetimes

void Invariants::check_models() {
  for (const auto& [id, model] : Access::table(daemon_).all()) check_model(model);
  uint64_t granted = held_by(vmu::HolderKind::kModel) + held_by(vmu::HolderKind::kLoad);
  for (const auto& [id, record] : kept_) {
    const bool returns = Access::returning(daemon_).contains(id);
    if (returns) granted += bytes_of(record);
    if (!returns && Access::table(daemon_).find(id) == nullptr) machine_.memory().freed(id);
  }
  if (machine_.memory().strayed() > 0) fail("an extent came to the source of another device");
  if (machine_.memory().bytes() > granted) machine_.memory().forget_closed();
  const uint64_t there = machine_.memory().bytes();
  if (there > granted) {
    fail(fmt::format("{} bytes of weights are there, and {} are granted", there, granted));
  }
}

void Invariants::check_model(const Model& model) {
  const auto wrong = [&](const char* what) {
    fail(fmt::format("model {}: {}", text_of(model.id), what));
  };
  for (const auto& [session, lease] : *model.leases) {
    if (!is_live(session)) wrong("a session that has left has a lease on it");
    if (lease.count == 0) wrong("a lease has no opens");
  }
  for (const Opener& opener : *model.openers) {
    if (!is_live(opener.waiter.session)) wrong("a session that has left waits for it");
    if (!model.leases->contains(opener.waiter.session)) wrong("who opens it has no lease");
  }
  for (const Source& source : model.sources) {
    for (const SessionId session : source.sessions) {
      if (!is_live(session)) wrong("a session that has left has a source of it");
    }
  }
  for (const LoadId load : model.compared_by) {
    if (!Access::has_load(daemon_, load)) wrong("it is compared by a load that is gone");
  }
  if (model.load.valid() && !Access::has_load(daemon_, model.load)) {
    wrong("it is read by a load that is gone");
  }
  if (model.phase == ModelPhase::kLoading && !model.load.valid()) wrong("nobody loads it");
  const Memory& memory = Access::devices(daemon_).of(model.device());
  const uint64_t held = memory.held_by(Memory::of_model(model.id));
  const uint64_t loaded =
      held + (model.load.valid() ? memory.held_by(Memory::of_load(model.load)) : 0);
  if (machine_.memory().bytes_of(model.extents) > loaded) {
    wrong("it has extents that its device has not granted");
  }
  if (model.phase == ModelPhase::kResident && (model.extents.empty() || held < model.bytes)) {
    wrong("it is resident without memory");
  }
  if (model.phase == ModelPhase::kOnDisk && held != 0) wrong("it is on disk, and holds memory");
  const uint64_t huge_bytes_max = model.phase == ModelPhase::kOnDisk ? 0 : model.bytes;
  if (model.huge_bytes > huge_bytes_max) wrong("more of it lies in huge pages than is there");
  for (const auto& [key, mapped] : *model.mapped) {
    if (mapped.added && !Access::domains(daemon_).ready(key)) wrong("a dead worker has it");
    if (key.device != model.device()) wrong("a worker of another device has it");
  }
}

void Invariants::check_programs() {
  for (const auto& [id, program] : Access::programs(daemon_).table().all()) {
    const auto wrong = [&, id = id](const char* what) {
      fail(fmt::format("program {}: {}", text_of(id), what));
    };
    const bool has_model = Access::table(daemon_).find(program.model) != nullptr;
    if (program.model.valid() && !has_model) wrong("its model is gone");
    for (const SessionId user : program.users) {
      if (!is_live(user)) wrong("a session that has left uses it");
    }
    for (const Waiter& waiter : program.waiters) {
      if (!is_live(waiter.session)) wrong("a session that has left waits for it");
    }
    if (program.told && !Access::domains(daemon_).ready(program.worker)) {
      wrong("a dead worker knows of it");
    }
  }
}

// --- memory

void Invariants::check_workers() {
  machine_.processes().for_each([this](const Child& child) {
    const auto* const worker = dynamic_cast<const Worker*>(&child);
    if (worker == nullptr) return;
    if (const auto& wrong = worker->lane().wrong()) fail(*wrong);
    if (!worker->has_lied()) check_worker(*worker);
  });
}

void Invariants::check_worker(const Worker& worker) {
  const auto wrong = [&](const char* what) {
    fail(fmt::format("worker {}: {}", worker.pid(), what));
  };
  std::optional<WorkerKey> key;
  for (const auto& [id, attached] : worker.sessions()) {
    Session* const session = Access::sessions(daemon_).find(id);
    if (session == nullptr) {
      wrong("it has a session that is gone");
      return;
    }
    key = session->worker();
    if (key->device != worker.device()) wrong("it has a session of another device");
    if (attached.ref_bytes_granted > session->ref_bytes_granted) {
      wrong("it was granted more for refs than the session holds");
    }
    for (const auto& [offset, bytes] : attached.chunks) {
      const auto chunk = session->memory.refs.find(offset);
      if (chunk == session->memory.refs.end() || chunk->second.bytes != bytes) {
        wrong("it has memory for refs that the session has not");
      }
    }
    for (const auto& [handle, group] : attached.groups) {
      SequenceGroup* const known = session->sequences.lookup(handle);
      if (known == nullptr) {
        wrong("it has a sequence group that is gone");
      } else if (group.granted > known->granted_bytes()) {
        wrong("it was granted more for a sequence group than that holds");
      }
    }
  }
  for (const ModelId id : worker.mapped()) {
    const Model* const model = Access::table(daemon_).find(id);
    if (model == nullptr || model->extents.empty()) {
      wrong("it maps a model that is gone");
    } else if (model->device() != worker.device()) {
      wrong("it maps a model of another device");
    }
  }
  if (worker.slab_bytes() + worker.heap_bytes() == 0 || !key) return;
  uint64_t held = 0;
  for (const auto& [holder, bytes] : Access::held(Access::devices(daemon_).of(worker.device()))) {
    const bool is_lane =
        holder.kind == vmu::HolderKind::kLane || holder.kind == vmu::HolderKind::kHeap;
    if (is_lane && Access::worker_of(daemon_, holder) == key) held += bytes;
  }
  if (held < worker.slab_bytes() + worker.heap_bytes()) {
    wrong("its lane was granted more than it holds");
  }
}

// --- waiting

void Invariants::check_waiting() {
  if (const auto load = Access::forgotten_load(daemon_)) {
    fail(fmt::format("load {} is queued, and its turn has a place", text_of(*load)));
  }
  for (const auto& memory : Access::devices(daemon_).all()) {
    const bool is_looked_at = Access::waiting_is_looked_at(daemon_, memory->device());
    if (Access::one_waits_for_others(*memory) && !is_looked_at) {
      fail(fmt::format("a request waits for memory of {}, and nobody looks after it",
                       text_of(memory->device())));
    }
  }
  for (Successors& one : successors_) {
    if (const auto wrong = one.check()) fail(*wrong);
  }
}

// --- restarts

// If a device has memory for all of its models, each is there at once. Otherwise some of them wait,
// go, or are given up.
std::optional<std::string> Invariants::not_taken_back() {
  std::map<std::string, uint64_t> bytes;
  for (const auto& [id, record] : kept_) bytes[record.device] += bytes_of(record);
  for (const auto& [id, record] : kept_) {
    const Memory* const memory = Access::devices(daemon_).find(record.device);
    const bool has_room = memory != nullptr && bytes[record.device] <= memory->total_bytes();
    const Model* const model = Access::table(daemon_).find(id);
    if (model == nullptr && !has_room) continue;
    if (model == nullptr) return fmt::format("model {} was kept, and is lost", text_of(id));
    if (has_room && model->phase != ModelPhase::kResident) {
      return fmt::format("model {} was kept, and has to go", text_of(id));
    }
    if (is_record_of(*model, record)) continue;
    return fmt::format("model {} was kept, and is another now", text_of(id));
  }
  for (const auto& [id, model] : Access::table(daemon_).all()) {
    if (!kept_.contains(id)) return fmt::format("model {} comes from nowhere", text_of(id));
  }
  return std::nullopt;
}

std::optional<std::string> Invariants::not_kept() {
  if (Access::keeps_nothing(daemon_)) return std::nullopt;
  const auto kept = machine_.systemd().models();
  for (const auto& [id, model] : Access::table(daemon_).all()) {
    if (model.phase != ModelPhase::kResident) continue;
    const auto record = kept.find(id);
    if (record == kept.end()) {
      if (Access::is_told_not_kept(daemon_, id)) continue;
      return fmt::format("model {} is not kept, and nobody is told", text_of(id));
    }
    if (!is_record_of(model, record->second)) {
      return fmt::format("what is kept of model {} is out of date", text_of(id));
    }
  }
  return std::nullopt;
}

// --- at the end

std::optional<std::string> Invariants::left_behind() {
  const size_t sessions = Access::sessions(daemon_).all().size();
  if (sessions > 1) return fmt::format("{} sessions are left of clients who left", sessions - 1);
  if (const size_t released = Access::released(daemon_); released > 0) {
    return fmt::format("the memory of {} sessions is not free", released);
  }
  if (const size_t loads = Access::loads(daemon_); loads > 0) {
    return fmt::format("{} loads are left", loads);
  }
  for (const auto& memory : Access::devices(daemon_).all()) {
    if (memory->waiting() == 0) continue;
    return fmt::format("{} requests wait for memory of {}", memory->waiting(),
                       text_of(memory->device()));
  }
  for (const auto& [id, model] : Access::table(daemon_).all()) {
    if (model.in_use()) return fmt::format("model {} is in use by nobody", text_of(id));
  }
  return std::nullopt;
}

std::optional<std::string> Invariants::still_held() {
  for (const auto& memory : Access::devices(daemon_).all()) {
    for (const auto& [holder, bytes] : Access::held(*memory)) {
      return fmt::format("kind {} number {:012x} holds {} bytes of {} when all have left",
                         static_cast<int>(holder.kind), holder.id, bytes,
                         text_of(memory->device()));
    }
  }
  if (const size_t models = Access::table(daemon_).size(); models > 0) {
    return fmt::format("{} models are left", models);
  }
  if (const size_t descriptors = machine_.systemd().descriptors(); descriptors > 0) {
    return fmt::format("systemd keeps {} descriptors of no model", descriptors);
  }
  if (const uint64_t bytes = machine_.memory().bytes(); bytes > 0) {
    return fmt::format("{} bytes of weights are left", bytes);
  }
  return std::nullopt;
}

}  // namespace djinn::daemon::simulation
