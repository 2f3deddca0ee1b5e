// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/sessions/spill.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "daemon/djinnd/loop/log.h"
#include "ipc/limits.h"
#include "kernel/base/checked.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon {
namespace {

constexpr uint64_t kNsPerMs = 1'000'000;
// A group or a directory that failed is left alone for so long.
constexpr uint64_t kRetryNs = 10'000 * kNsPerMs;

Status make_directory(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return {};
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  std::filesystem::create_directories(parent, error);
  if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return {};
  return system_error("make the directory for spilled sequence groups", errno);
}

// Not every file system knows files that never had a name.
Result<Fd> make_named_file(const std::string& directory) {
  std::string path = directory + "/sequence-XXXXXX";
  Fd file(::mkostemp(path.data(), O_CLOEXEC));
  if (!file.valid()) return system_error("make a file for a sequence group", errno);
  ::unlink(path.c_str());
  return file;
}

// Its permissions are those that mkostemp gives, too.
Result<Fd> make_file(const std::string& directory) {
  DJINN_CHECK(make_directory(directory));
  Fd file(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (file.valid()) return file;
  return make_named_file(directory);
}

bool decommit_all(const Fd& memfd) {
  struct stat info {};
  return ::fstat(memfd.get(), &info) == 0 &&
         pal::decommit(memfd, 0, static_cast<uint64_t>(info.st_size)).ok();
}

}  // namespace

Session* Spill::find(SessionId session) const {
  const auto found = world_.sessions.find(session);
  return found == world_.sessions.end() ? nullptr : found->second.get();
}

void Spill::tell(EventKind kind, const Session& session, uint64_t bytes, const char* what) {
  Event event{kind,
              fmt::format("a sequence group of session {} is {}: {} bytes", text_of(session.id),
                          what, bytes),
              session.domain};
  event.session = session.id;
  event.of_device = true;
  event.bytes = bytes;
  world_.events.tell(std::move(event));
}

// --- who may go

void Spill::note_use(Session& session, const gc::Progress& progress) const {
  const bool used =
      progress.commit != session.commit_seen || progress.running_step != 0 || progress.in_flight;
  session.commit_seen = progress.commit;
  if (used) session.used_ns = world_.clock.monotonic_ns();
}

bool Spill::is_idle(const Session& session) const {
  return world_.clock.monotonic_ns() - session.used_ns >= rules_.idle_ms * kNsPerMs;
}

bool Spill::may_spill(const Session& session) const {
  return session.phase == SessionPhase::kLive && session.attached &&
         world_.domains.ready(session.domain) && !session.runs() &&
         !world_.memory.waits(Memory::of_session(session.id));
}

std::vector<Spill::Candidate> Spill::candidates(bool idle_only) const {
  std::vector<Candidate> found;
  const uint64_t now = world_.clock.monotonic_ns();
  if (rules_.directory.empty() || now < not_before_ns_) return found;
  for (const auto& [id, session] : world_.sessions) {
    if (session->sequences.size() == 0 || !may_spill(*session)) continue;
    if (const auto progress = session->memory.progress()) note_use(*session, *progress);
    if (idle_only && !is_idle(*session)) continue;
    for (auto& [index, group] : session->sequences.all()) {
      const bool movable = group.phase == GroupPhase::kLive && group.place == GroupPlace::kMemory &&
                           group.held_bytes() > 0 && now >= group.spill_not_before_ns;
      if (movable) found.push_back({session.get(), &group});
    }
  }
  std::ranges::stable_sort(found, {}, [](const Candidate& c) { return c.session->used_ns; });
  uint64_t on_disk = spilled_bytes() + spilling_bytes();
  std::erase_if(found, [&](const Candidate& candidate) {
    const uint64_t bytes = candidate.group->held_bytes();
    const bool fits = range_fits(on_disk, bytes, rules_.limit_bytes);
    if (fits) on_disk += bytes;
    return !fits;
  });
  return found;
}

uint64_t Spill::evictable_bytes() const {
  uint64_t bytes = 0;
  for (const Candidate& candidate : candidates(false)) bytes += candidate.group->held_bytes();
  return bytes;
}

uint64_t Spill::spilling_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [id, session] : world_.sessions) {
    for (const auto& [index, group] : session->sequences.all()) {
      if (group.place == GroupPlace::kSpilling) bytes += group.held_bytes();
    }
  }
  return bytes;
}

uint64_t Spill::spilled_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [id, session] : world_.sessions) {
    for (const auto& [index, group] : session->sequences.all()) bytes += group.spilled_bytes;
  }
  return bytes;
}

std::optional<uint64_t> Spill::ms_to_next_idle() const {
  std::optional<uint64_t> next;
  if (rules_.directory.empty()) return next;
  const uint64_t now = world_.clock.monotonic_ns();
  for (const auto& [id, session] : world_.sessions) {
    const bool in_memory = std::ranges::any_of(session->sequences.all(), [](const auto& entry) {
      return entry.second.place == GroupPlace::kMemory && entry.second.granted_bytes > 0;
    });
    if (!in_memory) continue;
    // One that runs, or could not go, is looked at again after a whole while.
    const uint64_t idle_ms = (now - session->used_ns) / kNsPerMs;
    const uint64_t ms = idle_ms < rules_.idle_ms ? rules_.idle_ms - idle_ms : rules_.idle_ms;
    next = std::min(next.value_or(ms), ms);
  }
  return next;
}

// --- out

uint64_t Spill::begin(uint64_t bytes, bool idle_only) {
  uint64_t coming = 0;
  for (const Candidate& candidate : candidates(idle_only)) {
    if (coming >= bytes) break;
    begin(candidate);
    coming += candidate.group->held_bytes();
  }
  return coming;
}

void Spill::begin(const Candidate& candidate) {
  SequenceGroup& group = *candidate.group;
  group.place = GroupPlace::kSpilling;
  group.spill_attempt = ++attempts_;
  world_.file_work.run(
      [directory = rules_.directory] { return make_file(directory); },
      [this, id = candidate.session->id, handle = group.handle, attempt = group.spill_attempt](
          Result<Fd> file) { has_file(id, handle, attempt, std::move(file)); });
}

void Spill::has_file(SessionId id, SequenceHandle handle, uint64_t attempt, Result<Fd> file) {
  Session* const session = find(id);
  SequenceGroup* const group = session != nullptr ? session->sequences.lookup(handle) : nullptr;
  const bool wanted = group != nullptr && group->place == GroupPlace::kSpilling &&
                      group->phase == GroupPhase::kLive && group->spill_attempt == attempt;
  if (!wanted) {
    if (file.ok()) world_.file_work.close(*std::move(file));
    return;
  }
  if (file.ok() && !may_spill(*session)) {  // it has begun to run meanwhile
    world_.file_work.close(*std::move(file));
    group->place = GroupPlace::kMemory;
    return world_.memory.freed();
  }
  if (!file.ok()) {
    log("no sequence group is spilled: {}", file.error().message);
    not_before_ns_ = world_.clock.monotonic_ns() + kRetryNs;
    return stays(*group);
  }
  group->spill_file = *std::move(file);
  const int fds[] = {group->spill_file.get()};
  world_.domains.send(session->domain, {ipc::SpillSequence{id, handle}}, fds);
}

// Who waits for its memory waits for something else, or is refused.
void Spill::stays(SequenceGroup& group) {
  group.place = GroupPlace::kMemory;
  let_go_of_file(group);
  group.spill_not_before_ns = world_.clock.monotonic_ns() + kRetryNs;
  world_.memory.freed();
}

bool Spill::hear(const Session& session, SequenceGroup& group, const ipc::SequenceSpilled& event) {
  if (group.place != GroupPlace::kSpilling || !group.spill_file.valid()) return false;
  if (event.code != ErrorCode::kOk) {
    log("a sequence group stays in memory: {}", event.message);
    stays(group);
    return true;
  }
  if (event.bytes > group.held_bytes()) return false;
  group.place = GroupPlace::kSpilled;
  group.spilled_bytes = event.bytes;
  group.spill_deaths = 0;
  tell(EventKind::kSequenceSpilled, session, event.bytes, "spilled to disk");
  free_memory(session, group, event.bytes);
  return true;
}

void Spill::free_memory(const Session& session, SequenceGroup& group, uint64_t bytes) {
  ++group.frees;
  group.freeing_bytes += bytes;
  const auto then = [this, id = session.id, handle = group.handle, bytes](bool done) {
    freed(id, handle, bytes, done);
  };
  Result<Fd> memfd = group.memfd.duplicate();
  if (!memfd.ok()) return then(decommit_all(group.memfd));  // no descriptor is left
  world_.memory_work.run([memfd = *std::move(memfd)] { return decommit_all(memfd); }, then);
}

void Spill::freed(SessionId id, SequenceHandle handle, uint64_t bytes, bool done) {
  Session* const session = find(id);
  SequenceGroup* const group = session != nullptr ? session->sequences.lookup(handle) : nullptr;
  if (group == nullptr) return;
  --group->frees;
  group->freeing_bytes -= bytes;
  std::vector<ipc::GrantRequest> asks;
  if (group->frees == 0) asks = std::exchange(group->asks, {});
  const DomainId domain = session->domain;
  if (done) {
    group->granted_bytes -= bytes;
    note_aside(*session);
    world_.memory.release(Memory::of_session(id), bytes);
  } else {
    log("spilled memory could not be freed: {} bytes", bytes);  // it is there, and so it counts
    world_.memory.freed();  // who waits for it waits for something else, or is refused
  }
  for (const ipc::GrantRequest& request : asks) world_.grant(domain, request);
}

bool Spill::put_off(SequenceGroup& group, const ipc::GrantRequest& request) {
  if (group.frees == 0) return false;
  group.asks.push_back(request);
  return true;
}

void Spill::let_go_of_file(SequenceGroup& group) const {
  world_.file_work.close(std::move(group.spill_file));
}

void Spill::let_go_of_files(Session& session) const {
  for (auto& [index, group] : session.sequences.all()) let_go_of_file(group);
}

// --- back

void Spill::note_aside(const Session& session) const {
  world_.memory.set_aside(Memory::of_session(session.id), session.aside_bytes());
}

void Spill::restored(const Session& session, SequenceGroup& group) {
  if (group.place != GroupPlace::kSpilled) return;
  group.place = GroupPlace::kMemory;
  let_go_of_file(group);
  tell(EventKind::kSequenceRestored, session, std::exchange(group.spilled_bytes, 0),
       "back from disk");
  note_aside(session);
}

void Spill::worker_died(const Session& session, SequenceGroup& group) {
  group.asks.clear();
  if (group.place == GroupPlace::kSpilling) {
    const bool had_begun = group.spill_file.valid();
    group.place = GroupPlace::kMemory;
    let_go_of_file(group);
    if (had_begun && ++group.spill_deaths >= limits::kDeathsWithoutProgress) {
      group.spill_not_before_ns = world_.clock.monotonic_ns() + kRetryNs;
    }
  }
  if (group.place != GroupPlace::kSpilled || !group.memfd.valid()) return;
  const uint64_t bytes = group.held_bytes();  // for its return
  if (bytes > 0) free_memory(session, group, bytes);
}

}  // namespace djinn::daemon
