// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/simulation/worker.h"

#include <signal.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <utility>

#include "daemon/djinnd/simulation/machine.h"
#include "daemon/djinnd/simulation/names.h"
#include "ipc/codec/control_codec.h"
#include "ipc/exit_status.h"
#include "ipc/limits.h"
#include "kernel/base/assert.h"

namespace djinn::daemon::simulation {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kAskedBytesMax = 1024 * kKiB;
constexpr gc::StateGeometry kStateGeometry{limits::kRefs, limits::kSequences};

template <typename Map>
auto& any_of(Machine& machine, Map& map) {
  return *std::next(map.begin(), static_cast<std::ptrdiff_t>(machine.below(map.size())));
}

}  // namespace

Worker::Worker(Machine& machine, Loop& loop, DeviceId device, pid_t pid, Fd channel)
    : Child(pid),
      machine_(machine),
      device_(device),
      channel_(std::move(channel)),
      lane_(machine),
      poll_(loop, channel_.get(), [this] { readable(); }),
      work_(loop, [this] { work(); }),
      live_(loop, [this] { live(); }) {
  poll_.watch_readable();
  hangs_ = machine_.fault(40);              // it never becomes ready
  const bool is_slow = machine_.fault(20);  // the one before has left sessions without a worker
  if (!hangs_)
    live_.start_once(is_slow ? machine_.between(5'000, 30'000) : machine_.between(1, 200));
}

void Worker::end() {
  ending_ = true;
  poll_.pause();
  work_.stop();
  live_.stop();
}

uint64_t Worker::cpu_ns() const {
  if (!hangs_ || computes_one_in_ == 0) return 0;
  return (machine_.monotonic_ns() - hangs_since_ns_) / computes_one_in_;
}

void Worker::readable() {
  auto next = ipc::receive_datagram(channel_.get());
  if (!next.ok()) return machine_.processes().exit(pid(), 0);  // djinnd is gone
  if (!next.value()) return;
  commands_.push_back(*std::move(next.value()));
  work_soon();
}

void Worker::work_soon() {
  if (work_.active() || commands_.empty() || hangs_) return;
  work_.start_once(machine_.fault(30) ? machine_.below(2000) : machine_.below(4));
}

bool Worker::dies() {
  if (!machine_.is_lost(device_) && !machine_.fault(150)) return false;
  die();
  return true;
}

void Worker::die() {
  int status = SIGSEGV;
  if (machine_.one_in(4)) status = ipc::status_of_crash_at(ipc::AdmissionDesk::kQuick) << 8;
  machine_.processes().exit(pid(), status);
}

void Worker::work() {
  if (dies()) return;
  if (machine_.fault(150)) {
    hangs_ = true;
    constexpr auto kParts = std::to_array<uint64_t>({0, 0, 1, kHeldUpOneIn});
    computes_one_in_ = kParts[machine_.below(kParts.size())];
    hangs_since_ns_ = machine_.monotonic_ns();
    machine_.tell("worker {}: hangs", pid());
    return;
  }
  const ipc::Datagram command = std::move(commands_.front());
  commands_.pop_front();
  answer(command);
  if (!ending_ && !dies()) work_soon();
}

void Worker::say(const ipc::WorkerEvent& event) {
  if (ending_) return;
  if (!std::holds_alternative<ipc::LaneAwake>(event.body)) {
    machine_.tell("worker {}: says {}", pid(), name_of_body(event.body));
  }
  const Status sent = ipc::send_datagram(channel_.get(), ipc::encode(event));
  if (!sent) machine_.processes().exit(pid(), 0);  // djinnd has ended the channel
}

void Worker::answer(const ipc::Datagram& message) {
  const auto command = ipc::decode_worker_command(message.bytes);
  DJINN_ASSERT(command.ok());
  if (!std::holds_alternative<ipc::WakeLane>(command.value().body)) {
    machine_.tell("worker {}: hears {}", pid(), name_of_body(command.value().body));
  }
  std::visit([&](const auto& body) { answer_body(body, message.fds); }, command.value().body);
}

// --- sessions

void Worker::answer_body(const ipc::AttachSession& c, const std::vector<Fd>& fds) {
  DJINN_ASSERT(fds.size() == 4 + c.ref_chunks.size() && !sessions_.contains(c.session));
  if (machine_.fault(100)) {
    return say({ipc::SessionBroken{c.session, ErrorCode::kProtocolViolation, "It is broken."}});
  }
  AttachedSession& session = sessions_[c.session];
  session.ref_bytes_granted = c.ref_bytes_granted;
  session.ref_bytes_max = c.ref_bytes_max;
  for (const ipc::MemoryRange& chunk : c.ref_chunks) session.chunks[chunk.offset] = chunk.bytes;
  auto memory = fds[0].duplicate();
  auto mapped = pal::map_shared(fds[1], gc::state_bytes(kStateGeometry), pal::Access::kReadWrite);
  DJINN_ASSERT(memory.ok() && mapped.ok());
  session.memory = *std::move(memory);
  session.mapped = *std::move(mapped);
  auto state = gc::SessionState::open(session.mapped.bytes(), kStateGeometry, faults_);
  DJINN_ASSERT(state.ok());
  session.state.emplace(*std::move(state));
  const Status recovered = session.state->recover({});
  DJINN_ASSERT(recovered.ok());
  lane_.add(c.session, c.service, session, c.refusal != ErrorCode::kOk);
  live_.start_once(machine_.between(1, 100));
  say({ipc::Attached{c.session}});
}

void Worker::answer_body(const ipc::DetachSession& c, const std::vector<Fd>&) {
  lane_.remove(c.session);
  sessions_.erase(c.session);
  say({ipc::Detached{c.session}});
}

void Worker::answer_body(const ipc::AddSequence& c, const std::vector<Fd>& fds) {
  DJINN_ASSERT(fds.size() == (c.spilled ? 2U : 1U));
  const auto session = sessions_.find(c.session);
  const bool refuses = session == sessions_.end() || machine_.fault(40);
  if (refuses) {
    return say(
        {ipc::SequenceAdded{c.session, c.sequence, ErrorCode::kOutOfMemory, "It has no room."}});
  }
  session->second.groups[c.sequence] = {c.spilled ? 0 : c.bytes_granted, c.spilled,
                                        c.spilled ? c.bytes_granted : 0};
  say({ipc::SequenceAdded{c.session, c.sequence, ErrorCode::kOk, {}}});
}

void Worker::answer_body(const ipc::ReleaseSequence& c, const std::vector<Fd>&) {
  const auto session = sessions_.find(c.session);
  if (session != sessions_.end()) session->second.groups.erase(c.sequence);
  say({ipc::SequenceDropped{c.session, c.sequence}});
}

void Worker::answer_body(const ipc::SpillSequence& c, const std::vector<Fd>& fds) {
  DJINN_ASSERT(fds.size() == 1);
  const auto session = sessions_.find(c.session);
  const bool known = session != sessions_.end() && session->second.groups.contains(c.sequence);
  if (!known || asks_for(c.sequence) || machine_.fault(8)) {
    return say({ipc::SequenceSpilled{c.session, c.sequence, 0, ErrorCode::kIo, "The disk fails."}});
  }
  AttachedGroup& group = session->second.groups.at(c.sequence);
  const uint64_t bytes = std::exchange(group.granted, 0);
  group.spilled = true;
  group.spilled_bytes = bytes;
  say({ipc::SequenceSpilled{c.session, c.sequence, bytes, ErrorCode::kOk, {}}});
}

// --- models and programs

void Worker::answer_body(const ipc::AddModel& c, const std::vector<Fd>& fds) {
  DJINN_ASSERT(c.parked ? fds.size() == 1 : fds.size() > 1);
  if (machine_.fault(60)) {
    return say({ipc::ModelAdded{c.model, ErrorCode::kOutOfMemory, "It has no addresses left."}});
  }
  parked_.erase(c.model);
  models_.erase(c.model);
  (c.parked ? parked_ : models_).insert(c.model);
  if (!c.parked) wanted_.erase(c.model);
  say({ipc::ModelAdded{c.model, ErrorCode::kOk, {}}});
}

void Worker::answer_body(const ipc::DropModel& c, const std::vector<Fd>&) {
  models_.erase(c.model);
  parked_.erase(c.model);
  wanted_.erase(c.model);
  say({ipc::ModelDropped{c.model}});
}

void Worker::answer_body(const ipc::ParkModel& c, const std::vector<Fd>&) {
  if (models_.erase(c.model) > 0) parked_.insert(c.model);
  say({ipc::ModelParked{c.model}});
}

void Worker::answer_body(const ipc::ModelLost& c, const std::vector<Fd>&) {
  wanted_.erase(c.model);
}

void Worker::answer_body(const ipc::AddProgram& c, const std::vector<Fd>& fds) {
  DJINN_ASSERT(fds.size() == 1);
  say({ipc::ProgramLookedAt{c.program, ipc::AdmissionDesk::kQuick}});
  if (dies()) return;
  if (machine_.fault(10)) {
    say({ipc::ProgramRefused{c.program, ErrorCode::kUnsupported, "It has no such operator."}});
  } else {
    say({ipc::ProgramAdded{c.program, {}, 0}});
  }
  if (!ending_) say({ipc::ProgramLookedAt{{}, ipc::AdmissionDesk::kQuick}});
}

void Worker::answer_body(const ipc::DropProgram&, const std::vector<Fd>&) {}

// --- memory

void Worker::answer_body(const ipc::GrantAnswer& c, const std::vector<Fd>&) {
  const auto asked = asked_.extract(c.request);
  DJINN_ASSERT(!asked.empty() || has_lied_);
  if (asked.empty()) return;
  const Asked& what = asked.mapped();
  if (c.code != ErrorCode::kOk) return;
  if (what.kind == ipc::GrantKind::kHeap) heap_bytes_ += what.bytes;
  const auto session = sessions_.find(what.session);
  if (session == sessions_.end()) return;
  if (what.kind == ipc::GrantKind::kRefs) session->second.ref_bytes_granted += what.bytes;
  const auto group = session->second.groups.find(what.sequence);
  if (what.kind != ipc::GrantKind::kSequence || group == session->second.groups.end()) return;
  group->second.granted += what.bytes;
  if (!what.returns) return;
  group->second.spilled = false;
  group->second.spilled_bytes = 0;
  say({ipc::SequenceRestored{what.session, what.sequence}});
}

void Worker::answer_body(const ipc::GiveMemory& c, const std::vector<Fd>& fds) {
  const auto asked = asked_.extract(c.request);
  DJINN_ASSERT(!asked.empty() || has_lied_);
  if (asked.empty()) return;
  const Asked& what = asked.mapped();
  if (what.kind == ipc::GrantKind::kSlab) {
    DJINN_ASSERT(fds.size() == 1);
    slab_bytes_ = c.bytes;
    return;
  }
  DJINN_ASSERT(what.kind == ipc::GrantKind::kRefs && fds.size() == what.places.size());
  const auto session = sessions_.find(what.session);
  if (session == sessions_.end()) return;
  session->second.ref_bytes_granted += c.bytes;
  for (const ipc::MemoryRange& place : what.places) {
    session->second.chunks[place.offset] = place.bytes;
  }
}

void Worker::answer_body(const ipc::GetWorkerStats&, const std::vector<Fd>&) {
  say({ipc::WorkerStats{}});
}

void Worker::answer_body(const ipc::GetLaneSchedule&, const std::vector<Fd>&) {
  say({ipc::LaneSchedule{}});
}

void Worker::answer_body(const ipc::WakeLane&, const std::vector<Fd>&) {
  say({ipc::LaneAwake{}});
}

void Worker::answer_body(const ipc::JoinBaton&, const std::vector<Fd>&) {}

// The worker may have less than it told, and keeps the part of its heap that is in use.
void Worker::answer_body(const ipc::TrimRefs& c, const std::vector<Fd>&) {
  give_back_heap();
  if (ending_) return;
  const auto session = sessions_.find(c.session);
  if (session != sessions_.end()) give_back_refs(c.session, session->second);
  if (!ending_) say({ipc::RefsTrimmed{c.session}});
}

// --- what it does unasked

// In its first turn the worker says that it is ready.
void Worker::live() {
  if (hangs_ || dies()) return;
  if (!std::exchange(ready_, true)) say({ipc::WorkerReady{2, 1, true}});
  lane_.run();
  if (!ending_ && !sessions_.empty() && machine_.faults()) {
    switch (machine_.below(6)) {
      case 0:
      case 1:
        ask_for_something();
        break;
      case 2:
        give_something_back();
        break;
      case 3:
        want_a_model();
        break;
      case 4:
        bring_back();
        break;
      default:
        if (machine_.fault(60)) lie();
        break;
    }
  }
  const bool has_work = lane_.has_work() || (machine_.faults() && !sessions_.empty());
  if (!ending_)
    live_.start_once(has_work ? machine_.between(1, 100) : machine_.between(2000, 9000));
}

bool Worker::asks_for(SequenceHandle sequence) const {
  return std::ranges::any_of(asked_,
                             [&](const auto& entry) { return entry.second.sequence == sequence; });
}

bool Worker::asks_for_slab() const {
  return std::ranges::any_of(
      asked_, [](const auto& entry) { return entry.second.kind == ipc::GrantKind::kSlab; });
}

void Worker::ask(const Asked& asked) {
  const uint64_t number = ++last_request_;
  asked_.emplace(number, asked);
  say({ipc::GrantRequest{number, asked.kind, asked.session, asked.sequence, asked.bytes, false,
                         asked.places}});
}

void Worker::ask_for_something() {
  if (asked_.size() > 8) return;
  auto& [id, session] = any_of(machine_, sessions_);
  const uint64_t bytes = 4 * kKiB * machine_.between(1, kAskedBytesMax / 4 / kKiB);
  switch (machine_.below(5)) {
    case 0:
      if (asks_for_slab()) return;
      return ask({ipc::GrantKind::kSlab, {}, {}, bytes});
    case 1:
      return ask({ipc::GrantKind::kHeap, {}, {}, bytes / 4 + 1});
    case 2:
      return ask_for_refs(id, session, bytes);
    default:
      break;
  }
  if (session.groups.empty()) return;
  const auto& [handle, group] = any_of(machine_, session.groups);
  if (!group.spilled) ask({ipc::GrantKind::kSequence, id, handle, bytes});
}

bool Worker::is_taken(SessionId id, const AttachedSession& session, ipc::MemoryRange place) const {
  const auto meets = [&](uint64_t offset, uint64_t bytes) {
    return place.offset < offset + bytes && offset < place.offset + place.bytes;
  };
  for (const auto& [offset, bytes] : session.chunks) {
    if (meets(offset, bytes)) return true;
  }
  return std::ranges::any_of(asked_, [&](const auto& entry) {
    return entry.second.session == id &&
           std::ranges::any_of(entry.second.places, [&](const ipc::MemoryRange& one) {
             return meets(one.offset, one.bytes);
           });
  });
}

// The worker asks for one place, or for two places in a row, and now and then for one behind the
// window's end.
void Worker::ask_for_refs(SessionId id, const AttachedSession& session, uint64_t bytes) {
  Asked asked{ipc::GrantKind::kRefs, id, {}, bytes};
  if (device_ == kHostDevice) return ask(asked);
  const uint64_t offset = 4 * kKiB * machine_.below(session.ref_bytes_max / 4 / kKiB);
  if (is_taken(id, session, {offset, bytes})) return;
  const uint64_t first = bytes > 4 * kKiB && machine_.one_in(2) ? 4 * kKiB : bytes;
  asked.places.push_back({offset, first});
  if (first < bytes) asked.places.push_back({offset + first, bytes - first});
  ask(asked);
}

void Worker::give_back_refs(SessionId id, AttachedSession& session) {
  if (session.ref_bytes_granted == 0) return;
  uint64_t bytes = 0;
  uint64_t offset = 0;
  if (device_ == kHostDevice) {
    bytes = machine_.between(1, session.ref_bytes_granted);
  } else {
    const auto chunk = session.chunks.extract(any_of(machine_, session.chunks).first);
    offset = chunk.key();
    bytes = chunk.mapped();
  }
  session.ref_bytes_granted -= bytes;
  say({ipc::GrantReturn{ipc::GrantKind::kRefs, id, {}, bytes, offset}});
}

void Worker::give_back_heap() {
  if (heap_bytes_ == 0) return;
  const uint64_t bytes = machine_.between(1, heap_bytes_);
  heap_bytes_ -= bytes;
  say({ipc::GrantReturn{ipc::GrantKind::kHeap, {}, {}, bytes}});
}

void Worker::bring_back() {
  auto& [id, session] = any_of(machine_, sessions_);
  for (const auto& [handle, group] : session.groups) {
    if (!group.spilled || group.granted > 0 || group.spilled_bytes == 0) continue;
    if (asks_for(handle)) continue;
    return ask({ipc::GrantKind::kSequence, id, handle, group.spilled_bytes, true});
  }
}

void Worker::give_something_back() {
  auto& [id, session] = any_of(machine_, sessions_);
  if (machine_.one_in(3) && heap_bytes_ > 0) return give_back_heap();
  if (session.ref_bytes_granted > 0 && machine_.one_in(2)) return give_back_refs(id, session);
  if (session.groups.empty()) return;
  auto& [handle, group] = any_of(machine_, session.groups);
  if (group.granted == 0 || group.spilled) return;
  const uint64_t bytes = machine_.between(1, group.granted);
  group.granted -= bytes;
  say({ipc::GrantReturn{ipc::GrantKind::kSequence, id, handle, bytes}});
}

void Worker::want_a_model() {
  if (parked_.empty()) return;
  const ModelId model = any_of(machine_, parked_);
  if (wanted_.insert(model).second) say({ipc::ModelWanted{model}});
}

// djinnd may end the worker for that, but only its own user may lose anything.
void Worker::lie() {
  has_lied_ = true;
  machine_.tell("worker {}: lies", pid());
  if (!machine_.one_in(8)) return say(some_event());
  const std::byte nonsense[] = {std::byte{1}, std::byte{2}, std::byte{3}};
  [[maybe_unused]] const Status sent = ipc::send_datagram(channel_.get(), nonsense);
}

SessionId Worker::some_session() {
  std::vector<SessionId> all{{}, {1}};
  machine_.processes().for_each([&](const Child& child) {
    const auto* const worker = dynamic_cast<const Worker*>(&child);
    if (worker == nullptr) return;
    for (const auto& [id, session] : worker->sessions()) all.push_back(id);
  });
  return all[machine_.below(all.size())];
}

ModelId Worker::some_model() {
  std::vector<ModelId> all{{}, {1}};
  machine_.processes().for_each([&](const Child& child) {
    const auto* const worker = dynamic_cast<const Worker*>(&child);
    if (worker != nullptr) all.insert(all.end(), worker->mapped().begin(), worker->mapped().end());
  });
  all.insert(all.end(), parked_.begin(), parked_.end());
  return all[machine_.below(all.size())];
}

SequenceHandle Worker::some_sequence(SessionId session) {
  const auto own = sessions_.find(session);
  const bool known = own != sessions_.end() && !own->second.groups.empty();
  if (known && !machine_.one_in(4)) return any_of(machine_, own->second.groups).first;
  return {static_cast<uint32_t>(machine_.below(3)), static_cast<uint32_t>(machine_.below(3))};
}

uint64_t Worker::some_bytes() {
  switch (machine_.below(4)) {
    case 0:
      return machine_.below(2);
    case 1:
      return UINT64_MAX - machine_.below(2 * kAskedBytesMax);
    case 2:
      return uint64_t{1} << machine_.below(64);
    default:
      return 4 * kKiB * machine_.below(kAskedBytesMax / 4 / kKiB);
  }
}

ipc::WorkerEvent Worker::some_event() {
  const SessionId session = some_session();
  const SequenceHandle sequence = some_sequence(session);
  const ErrorCode code = machine_.one_in(2) ? ErrorCode::kOk : ErrorCode::kIo;
  const std::string why = code == ErrorCode::kOk ? "" : "It lies.";
  const auto kind = static_cast<ipc::GrantKind>(machine_.between(1, 4));
  switch (machine_.below(16)) {
    case 0:
      return {ipc::Attached{session}};
    case 1:
      return {ipc::Detached{session}};
    case 2:
      return {ipc::ModelAdded{some_model(), code, why}};
    case 3:
      return {ipc::ModelDropped{some_model()}};
    case 4:
      return {ipc::ModelParked{some_model()}};
    case 5:
      return {ipc::ModelWanted{some_model()}};
    case 6:
      return {ipc::SequenceAdded{session, sequence, code, why}};
    case 7:
      return {ipc::SequenceDropped{session, sequence}};
    case 8:
      return {ipc::SequenceSpilled{session, sequence, some_bytes(), code, why}};
    case 9:
      return {ipc::SequenceRestored{session, sequence}};
    case 10:
      return {ipc::SessionBroken{session, ErrorCode::kProtocolViolation, "It lies."}};
    case 11:
      return {ipc::RefsTrimmed{session}};
    case 12:
      return {ipc::WorkerReady{1, 1, true}};
    case 13:
      return {ipc::LaneAwake{}};
    case 14:
      return {ipc::GrantReturn{kind, session, sequence, some_bytes(), some_bytes()}};
    default:
      return {ipc::GrantRequest{machine_.below(8),
                                kind,
                                session,
                                sequence,
                                some_bytes(),
                                machine_.one_in(2),
                                {{some_bytes(), some_bytes()}}}};
  }
}

}  // namespace djinn::daemon::simulation
