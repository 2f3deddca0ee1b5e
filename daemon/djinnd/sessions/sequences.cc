// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/sessions/sequences.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "daemon/djinnd/loop/descriptors.h"
#include "daemon/djinnd/loop/log.h"
#include "ipc/codec/control_codec.h"
#include "ipc/limits.h"
#include "kernel/base/assert.h"
#include "kernel/base/checked.h"
#include "kernel/base/size_text.h"
#include "kernel/gc/sequence_layout.h"

namespace djinn::daemon {
namespace {

// Names the part of the session's memory that the group is; part 0 is for refs.
uint64_t part_of(SequenceHandle sequence) {
  return uint64_t{sequence.generation} << 32 | sequence.index;
}

Status make_directory(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return {};
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  std::filesystem::create_directories(parent, error);
  if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return {};
  return system_error("make " + path + ", memory.spill_directory", errno);
}

// Makes a file with a name and removes the name, for file systems without O_TMPFILE.
Result<Fd> make_named_file(const std::string& directory) {
  std::string path = directory + "/sequence-XXXXXX";
  Fd file(::mkostemp(path.data(), O_CLOEXEC));
  if (!file.valid()) {
    return system_error("make a file in " + directory + ", memory.spill_directory", errno);
  }
  ::unlink(path.c_str());
  return file;
}

// The permissions are the same as those that mkostemp gives.
Result<Fd> make_file(const std::string& directory) {
  DJINN_CHECK(make_directory(directory));
  Fd file(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (file.valid()) return file;
  return make_named_file(directory);
}

Error too_large(uint64_t bytes, uint64_t others) {
  const std::string beside =
      others == 0
          ? ""
          : fmt::format("beside the {} that the session's other groups could, ", size_text(others));
  return {ErrorCode::kLimitExceeded,
          fmt::format("The sequence group could grow to {}, {}and a session's groups may have room "
                      "to grow to {} together. Lower its capacity or its rows{}.",
                      size_text(bytes), beside, size_text(limits::kSequenceAddressBytes),
                      others == 0 ? "" : ", or drop another group")};
}

// Gives the bytes of such a group's extent. Errors: kInvalidArgument, kLimitExceeded.
Result<uint64_t> extent_bytes_of(const ipc::SequenceGeometry& g) {
  DJINN_CHECK(check_geometry(g));
  DJINN_TRY(const gc::SequenceLayout layout,
            gc::SequenceLayout::make(g.banks * g.rows, g.layers, g.kv_heads, g.head_dim,
                                     size_of(g.dtype), g.capacity));
  return layout.file_bytes();
}

// Checks that the session may have one more group: its worker maps each as a whole, though it is
// sparse.
Status check_addresses(const Session& session, uint64_t bytes) {
  uint64_t others = 0;
  for (const auto& [index, group] : session.sequences.all()) others += group.extent_bytes;
  DJINN_ASSERT(others <= limits::kSequenceAddressBytes);
  if (range_fits(others, bytes, limits::kSequenceAddressBytes)) return {};
  return too_large(bytes, others);
}

}  // namespace

Sequences::Sequences(const Clock& clock, const Devices& devices, Domains& domains, Events& events,
                     QuotaRefusals& refusals, Replies& replies, WorkQueue& file_work,
                     const SessionTable& sessions, const LaneSteps& lane_steps,
                     const Deaths& deaths, SpillRules rules)
    : clock_(clock),
      devices_(devices),
      domains_(domains),
      events_(events),
      refusals_(refusals),
      replies_(replies),
      file_work_(file_work),
      sessions_(sessions),
      spill_(clock, devices, domains, sessions, lane_steps, deaths, std::move(rules)) {}

SequenceGroup* Sequences::find(SessionId id, WorkerKey key, SequenceHandle handle) const {
  Session* const session = sessions_.find(id, key);
  return session != nullptr ? session->sequences.lookup(handle) : nullptr;
}

void Sequences::set_granted(const Session& session, SequenceGroup& group, uint64_t bytes) const {
  DJINN_ASSERT(bytes >= group.freeing_bytes);
  group.granted_bytes_ = bytes;
  note_aside(session);
}

void Sequences::note_aside(const Session& session) const {
  memory_of(session).set_aside(Memory::of_session(session.id), session.aside_bytes());
}

// --- made and dropped

void Sequences::make(Session& session, uint32_t number, const ipc::SequenceGeometry& geometry) {
  const Waiter waiter{session.id, number};
  const auto bytes = extent_bytes_of(geometry);
  if (!bytes) return replies_.refuse(waiter, bytes.error());
  if (const Status fits = check_addresses(session, *bytes); !fits) {
    return replies_.refuse(waiter, fits.error());
  }
  ExtentSource& extents = devices_.extents_of(session.device);
  if (extents.sequences_have_parts()) {
    return make_extent(waiter, session.device, geometry, {*bytes, 0});
  }
  const auto whole = align_up(*bytes, extents.granularity_bytes());
  DJINN_ASSERT(whole);
  memory_of(session).request(
      Memory::of_session(session.id), *whole,
      [this, waiter, device = session.device, geometry, bytes = *whole](const Status& granted) {
        if (granted) return make_extent(waiter, device, geometry, {bytes, bytes});
        replies_.refuse(waiter, granted.error());
      });
}

void Sequences::make_extent(const Waiter& waiter, DeviceId device,
                            const ipc::SequenceGeometry& geometry, GroupBytes bytes) {
  devices_.extents_of(device).create(ExtentUse::kSequence, bytes.of_extent,
                                     [this, waiter, device, geometry, bytes](Result<Fd> extent) {
                                       has_extent(waiter, device, geometry, bytes,
                                                  std::move(extent));
                                     });
}

void Sequences::has_extent(const Waiter& waiter, DeviceId device,
                           const ipc::SequenceGeometry& geometry, GroupBytes bytes,
                           Result<Fd> made) {
  Fd extent;
  Status added;
  if (made.ok()) {
    extent = *std::move(made);
  } else {
    added = made.error();
  }
  Session* const session = sessions_.find(waiter.session);
  const bool wanted = session != nullptr && session->phase != SessionPhase::kLeaving;
  if (wanted && added) added = add(*session, waiter.number, geometry, bytes, extent);
  devices_.extents_of(device).free(std::move(extent));  // unless a group has it
  if (!wanted || added) return;
  if (bytes.granted > 0)
    memory_of(*session).release(Memory::of_session(session->id), bytes.granted);
  replies_.refuse(waiter, added.error());
}

// The limits are checked again, because other groups may have been made since this one was asked
// for.
Status Sequences::add(Session& session, uint32_t number, const ipc::SequenceGeometry& geometry,
                      GroupBytes bytes, Fd& extent) {
  DJINN_CHECK(check_descriptors_left(extent));
  DJINN_CHECK(check_addresses(session, bytes.of_extent));
  DJINN_TRY(SequenceGroup* const group, session.sequences.make(geometry));
  DJINN_ASSERT(group->phase == GroupPhase::kAdding && group->granted_bytes() == 0);
  group->extent = std::move(extent);
  group->extent_bytes = bytes.of_extent;
  if (bytes.granted > 0) set_granted(session, *group, bytes.granted);
  group->waiter = {session.id, number};
  if (session.attached) send(session, *group);
  return {};
}

void Sequences::send_all(const Session& session) const {
  for (const auto& [index, group] : session.sequences.all()) {
    if (group.extent.valid()) send(session, group);
  }
}

void Sequences::send(const Session& session, const SequenceGroup& group) const {
  const bool spilled = group.place == GroupPlace::kSpilled;
  std::vector<int> fds{group.extent.get()};
  if (spilled) fds.push_back(group.spill_file.get());
  domains_.send(session.worker(),
                {ipc::AddSequence{session.id, group.handle, group.geometry,
                                  spilled ? group.spilled_bytes : group.held_bytes(), spilled}},
                fds);
}

void Sequences::drop(Session& session, uint32_t number, SequenceHandle handle) {
  const Waiter waiter{session.id, number};
  auto found = session.sequences.find(handle);
  if (!found) return replies_.refuse(waiter, found.error());
  SequenceGroup& group = **found;
  if (group.phase == GroupPhase::kAdding) {
    return replies_.refuse(waiter, {ErrorCode::kBusy, "The sequence group is still being made."});
  }
  enter(group, GroupPhase::kDropping);
  group.waiter = waiter;
  memory_of(session).cancel(Memory::of_session(session.id), part_of(handle));
  refuse_asks(session, group);
  if (!session.attached) return erase(session, group);  // no worker has it
  domains_.send(session.worker(), {ipc::ReleaseSequence{session.id, handle}});
}

// The memory exists, and counts, until it is freed.
void Sequences::erase(const Session& session, SequenceGroup& group) {
  if (!group.extent.valid()) return;
  if (group.phase != GroupPhase::kDropping) enter(group, GroupPhase::kDropping);
  let_go_of_file(group);
  std::vector<Fd> extents;
  extents.push_back(std::move(group.extent));
  devices_.extents_of(session.device)
      .free(std::move(extents),
            [this, id = session.id, handle = group.handle] { erased(id, handle); });
}

void Sequences::erased(SessionId id, SequenceHandle handle) {
  Session* const session = sessions_.find(id);
  SequenceGroup* const group = session != nullptr ? session->sequences.lookup(handle) : nullptr;
  if (group == nullptr) return;
  DJINN_ASSERT(group->phase == GroupPhase::kDropping && !group->extent.valid());
  const Waiter waiter = group->waiter;
  const uint64_t bytes = group->granted_bytes();
  session->sequences.erase(handle);
  note_aside(*session);
  memory_of(*session).release(Memory::of_session(id), bytes);
  if (waiter.number != 0) replies_.done(waiter);
}

void Sequences::refuse_asks(Session& session) const {
  for (auto& [index, group] : session.sequences.all()) refuse_asks(session, group);
}

void Sequences::refuse_asks(const Session& session, SequenceGroup& group) const {
  for (const ipc::GrantRequest& request : std::exchange(group.asks, {})) {
    domains_.answer_grant(session.worker(), request.request, memory_is_given_up());
  }
}

Status Sequences::on_sequence_added(WorkerKey key, const ipc::SequenceAdded& event) {
  SequenceGroup* const group = find(event.session, key, event.sequence);
  if (group == nullptr || group->phase == GroupPhase::kDropping) return {};
  const Waiter waiter = std::exchange(group->waiter, {});
  if (event.code == ErrorCode::kOk) {
    group->deaths = 0;
    if (group->phase == GroupPhase::kAdding) enter(*group, GroupPhase::kLive);
    replies_.reply(waiter, {waiter.number, ipc::SequenceMade{event.sequence}});
    return {};
  }
  Error error{event.code, event.message};
  if (waiter.number == 0) return error;  // it was there before the worker died
  erase(*sessions_.find(event.session), *group);
  replies_.refuse(waiter, error);
  return {};
}

void Sequences::on_sequence_dropped(WorkerKey key, const ipc::SequenceDropped& event) {
  SequenceGroup* const group = find(event.session, key, event.sequence);
  if (group == nullptr || group->phase != GroupPhase::kDropping) return;
  erase(*sessions_.find(event.session), *group);
}

void Sequences::worker_died(Session& session, const WorkerDeath& death) {
  std::vector<SequenceHandle> gone;
  for (auto& [index, group] : session.sequences.all()) {
    left_by_worker(session, group);
    const OwedAnswer adding{OwedAnswer::Kind::kAddSequence, session.id.value, group.handle};
    const bool kills = death.suspect == adding && ++group.deaths >= limits::kDeathsWithoutProgress;
    if (group.phase == GroupPhase::kDropping || kills) gone.push_back(group.handle);
  }
  for (const SequenceHandle handle : gone) {
    SequenceGroup& group = *session.sequences.lookup(handle);
    const Waiter waiter = group.waiter;
    const bool refused = group.phase != GroupPhase::kDropping && waiter.number != 0;
    if (refused) group.waiter = {};
    erase(session, group);
    if (!refused) continue;
    replies_.refuse(waiter,
                    {ErrorCode::kWorkerLost, "The worker died whenever it took in the group."});
  }
}

// --- memory

void Sequences::on_grant_request(WorkerKey key, const ipc::GrantRequest& event) {
  const Session* const session = sessions_.find(event.session, key);
  SequenceGroup* const group = find(event.session, key, event.sequence);
  const bool known = group != nullptr && session->may_be_granted();
  if (!known) return domains_.answer_grant(key, event.request, session_has_ended());
  if (group->frees > 0) return group->asks.push_back(event);  // until its memory is free
  const Memory::Holder holder = Memory::of_session(session->id);
  const auto answer = [this, key, event](const Status& status) { granted(key, event, status); };
  const bool returns = event.bytes <= group->aside_bytes();
  if (returns) {
    return memory_of(*session).request_return(holder, event.bytes, answer, part_of(event.sequence));
  }
  memory_of(*session).request(holder, event.bytes, answer, part_of(event.sequence));
}

void Sequences::granted(WorkerKey key, const ipc::GrantRequest& event, const Status& status) {
  Session* const session = sessions_.find(event.session, key);
  if (session != nullptr) refusals_.note(key.owner, key.device, session->id, status);
  if (session != nullptr && status) {
    if (SequenceGroup* const group = session->sequences.lookup(event.sequence)) {
      set_granted(*session, *group, group->granted_bytes() + event.bytes);
    } else {
      memory_of(*session).release(Memory::of_session(session->id), event.bytes);
    }
  }
  domains_.answer_grant(key, event.request, status);
}

bool Sequences::on_grant_return(WorkerKey key, const ipc::GrantReturn& event) {
  SequenceGroup* const group = find(event.session, key, event.sequence);
  if (group == nullptr) return true;  // all of it was given back with the session, or the group
  if (event.bytes > group->held_bytes()) return false;
  set_granted(*sessions_.find(event.session), *group, group->granted_bytes() - event.bytes);
  devices_.of(key.device).release(Memory::of_session(event.session), event.bytes);
  return true;
}

// --- to disk

void Sequences::check_spill() {
  if (!spill_.is_wanted()) return;
  if (spill_.directory().empty()) {
    return cannot_spill("there is no cache directory, and memory.spill_directory names none");
  }
  file_work_.run([directory = spill_.directory()] { return make_file(directory); },
                 [this](Result<Fd> file) {
                   if (!file.ok()) return cannot_spill(file.error().message);
                   file_work_.close(*std::move(file));
                 });
}

void Sequences::cannot_spill(const std::string& why) {
  const std::string fault = ipc::showable_sentence(why);
  if (!spill_.note_failure(fault)) return;
  Event event = device_event(devices_.first().device(), EventKind::kSpillUnavailable,
                             "no sequence group can go to disk, and all stay in memory when it is "
                             "short: let djinnd write to memory.spill_directory, or set it to "
                             "\"\" for none");
  event.sentence = fault;
  events_.emit(std::move(event));
}

uint64_t Sequences::begin_spill(DeviceId device, uint64_t bytes, bool idle_only) {
  uint64_t coming = 0;
  for (const Spill::Candidate& candidate : spill_.candidates(device, idle_only)) {
    if (coming >= bytes) break;
    begin_spill(candidate);
    coming += candidate.group->held_bytes();
  }
  return coming;
}

void Sequences::begin_spill(const Spill::Candidate& candidate) {
  SequenceGroup& group = *candidate.group;
  DJINN_ASSERT(candidate.session->attached && group.phase == GroupPhase::kLive);
  enter(group, GroupPlace::kSpilling);
  group.spill_attempt = ++attempts_;
  file_work_.run(
      [directory = spill_.directory()] { return make_file(directory); },
      [this, id = candidate.session->id, handle = group.handle, attempt = group.spill_attempt](
          Result<Fd> file) { has_file(id, handle, attempt, std::move(file)); });
}

void Sequences::has_file(SessionId id, SequenceHandle handle, uint64_t attempt, Result<Fd> file) {
  Session* const session = sessions_.find(id);
  SequenceGroup* const group = session != nullptr ? session->sequences.lookup(handle) : nullptr;
  const bool wanted = group != nullptr && group->place == GroupPlace::kSpilling &&
                      group->phase == GroupPhase::kLive && group->spill_attempt == attempt;
  if (!wanted) {
    if (file.ok()) file_work_.close(*std::move(file));
    return;
  }
  if (file.ok() && !spill_.may_spill(*session)) {  // it has begun to run meanwhile
    file_work_.close(*std::move(file));
    enter(*group, GroupPlace::kMemory);
    return memory_of(*session).freed();
  }
  if (!file.ok()) {
    cannot_spill(file.error().message);
    return stays(*session, *group);
  }
  spill_.note_success();
  DJINN_ASSERT(!group->spill_file.valid());
  group->spill_file = *std::move(file);
  const int fds[] = {group->spill_file.get()};
  domains_.send(session->worker(), {ipc::SpillSequence{id, handle}}, fds);
}

// Requests that wait for the group's memory are tried again: they wait for something else now, or
// are refused.
void Sequences::stays(const Session& session, SequenceGroup& group) {
  enter(group, GroupPlace::kMemory);
  let_go_of_file(group);
  group.spill_not_before_ns = spill_.retry_ns();
  memory_of(session).freed();
}

bool Sequences::on_sequence_spilled(WorkerKey key, const ipc::SequenceSpilled& event) {
  SequenceGroup* const found = find(event.session, key, event.sequence);
  if (found == nullptr) return true;  // one that was dropped in the meantime breaks no protocol
  SequenceGroup& group = *found;
  const Session& session = *sessions_.find(event.session);
  if (group.place != GroupPlace::kSpilling || !group.spill_file.valid()) return false;
  if (event.code != ErrorCode::kOk) {
    log("a sequence group stays in memory: {}", event.message);
    stays(session, group);
    return true;
  }
  if (event.bytes > group.held_bytes()) return false;
  enter(group, GroupPlace::kSpilled);
  group.spilled_bytes = event.bytes;
  group.spill_deaths = 0;
  emit(EventKind::kSequenceSpilled, session, event.bytes, "spilled to disk");
  free_memory(session, group, event.bytes);
  return true;
}

void Sequences::free_memory(const Session& session, SequenceGroup& group, uint64_t bytes) {
  DJINN_ASSERT(group.extent.valid() && bytes <= group.held_bytes());
  ++group.frees;
  group.freeing_bytes += bytes;
  devices_.extents_of(session.device)
      .decommit(std::span(&group.extent, 1), [this, id = session.id, handle = group.handle, bytes](
                                                 bool done) { freed(id, handle, bytes, done); });
}

void Sequences::freed(SessionId id, SequenceHandle handle, uint64_t bytes, bool done) {
  Session* const session = sessions_.find(id);
  SequenceGroup* const group = session != nullptr ? session->sequences.lookup(handle) : nullptr;
  if (group == nullptr) return;
  DJINN_ASSERT(group->frees > 0 && group->freeing_bytes >= bytes);
  --group->frees;
  group->freeing_bytes -= bytes;
  DJINN_ASSERT(group->frees > 0 || group->freeing_bytes == 0);
  std::vector<ipc::GrantRequest> asks;
  if (group->frees == 0) asks = std::exchange(group->asks, {});
  const WorkerKey key = session->worker();
  if (done) {
    set_granted(*session, *group, group->granted_bytes() - bytes);
    memory_of(*session).release(Memory::of_session(id), bytes);
  } else {
    log("spilled memory could not be freed: {}", size_text(bytes));  // it is there: it counts
    memory_of(*session).freed();  // who waits for it waits for something else, or is refused
  }
  for (const ipc::GrantRequest& request : asks) on_grant_request(key, request);
}

void Sequences::let_go_of_file(SequenceGroup& group) const {
  file_work_.close(std::move(group.spill_file));
}

void Sequences::let_go_of_files(Session& session) const {
  for (auto& [index, group] : session.sequences.all()) let_go_of_file(group);
}

// --- back

void Sequences::on_sequence_restored(WorkerKey key, const ipc::SequenceRestored& event) {
  SequenceGroup* const group = find(event.session, key, event.sequence);
  if (group == nullptr || group->place != GroupPlace::kSpilled) return;
  const Session& session = *sessions_.find(event.session);
  enter(*group, GroupPlace::kMemory);
  let_go_of_file(*group);
  emit(EventKind::kSequenceRestored, session, std::exchange(group->spilled_bytes, 0),
       "back from disk");
  note_aside(session);
}

void Sequences::left_by_worker(const Session& session, SequenceGroup& group) {
  group.asks.clear();
  if (group.place == GroupPlace::kSpilling) {
    const bool had_begun = group.spill_file.valid();
    enter(group, GroupPlace::kMemory);
    let_go_of_file(group);
    if (had_begun && ++group.spill_deaths >= limits::kDeathsWithoutProgress) {
      group.spill_not_before_ns = spill_.retry_ns();
    }
  }
  if (group.place != GroupPlace::kSpilled || !group.extent.valid()) return;
  const uint64_t bytes = group.held_bytes();  // for its return
  if (bytes > 0) free_memory(session, group, bytes);
}

void Sequences::emit(EventKind kind, const Session& session, uint64_t bytes, const char* what) {
  Event event{kind,
              fmt::format("a sequence group of session {} is {}: {}", text_of(session.id), what,
                          size_text(bytes)),
              session.domain};
  event.session = session.id;
  event.device = session.device;
  event.bytes = bytes;
  events_.emit(std::move(event));
}

}  // namespace djinn::daemon
