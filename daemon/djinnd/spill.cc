#include "daemon/djinnd/spill.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "daemon/djinnd/log.h"
#include "ipc/limits.h"
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

}  // namespace

bool free_memory_of(const SequenceGroup& group) {
  struct stat info {};
  return ::fstat(group.memfd.get(), &info) == 0 &&
         pal::decommit(group.memfd, 0, static_cast<uint64_t>(info.st_size)).ok();
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
                           group.granted_bytes > 0 && now >= group.spill_not_before_ns;
      if (movable) found.push_back({session.get(), &group});
    }
  }
  std::ranges::stable_sort(found, {}, [](const Candidate& c) { return c.session->used_ns; });
  return found;
}

uint64_t Spill::evictable_bytes() const {
  uint64_t bytes = 0;
  for (const Candidate& candidate : candidates(false)) bytes += candidate.group->granted_bytes;
  return bytes;
}

uint64_t Spill::leaving_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [id, session] : world_.sessions) {
    for (const auto& [index, group] : session->sequences.all()) {
      if (group.place == GroupPlace::kSpilling) bytes += group.granted_bytes;
    }
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

bool Spill::moves_any(DomainId domain) const {
  return std::ranges::any_of(world_.sessions, [&](const auto& entry) {
    return entry.second->domain == domain && entry.second->moves_groups();
  });
}

// --- out

uint64_t Spill::begin(uint64_t bytes, bool idle_only) {
  uint64_t coming = 0;
  for (const Candidate& candidate : candidates(idle_only)) {
    if (coming >= bytes) break;
    const Status begun = begin(candidate);
    if (begun) {
      coming += candidate.group->granted_bytes;
      continue;
    }
    log("no sequence group is spilled: {}", begun.error().message);
    not_before_ns_ = world_.clock.monotonic_ns() + kRetryNs;
    break;
  }
  return coming;
}

// Its permissions are those that mkostemp gives, too.
Result<Fd> Spill::make_file() {
  DJINN_CHECK(make_directory(rules_.directory));
  Fd file(::open(rules_.directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (file.valid()) return file;
  return make_named_file(rules_.directory);
}

Status Spill::begin(const Candidate& candidate) {
  auto& [session, group] = candidate;
  DJINN_TRY(group->spill_file, make_file());
  group->place = GroupPlace::kSpilling;
  const int fds[] = {group->spill_file.get()};
  world_.domains.send(session->domain, {ipc::SpillSequence{session->id, group->handle}}, fds);
  return {};
}

void Spill::put_off(SequenceGroup& group) {
  group.place = GroupPlace::kMemory;
  group.spill_file.reset();
  group.spill_not_before_ns = world_.clock.monotonic_ns() + kRetryNs;
}

bool Spill::hear(const Session& session, SequenceGroup& group, const ipc::SequenceSpilled& event) {
  if (group.place != GroupPlace::kSpilling) return false;
  if (event.code != ErrorCode::kOk) {
    log("a sequence group stays in memory: {}", event.message);
    put_off(group);
    world_.memory.freed();  // who waits for it waits for something else, or is refused
    return true;
  }
  if (event.bytes > group.granted_bytes) return false;
  group.place = GroupPlace::kSpilled;
  group.spilled_bytes = event.bytes;
  group.spill_deaths = 0;
  tell(EventKind::kSequenceSpilled, session, event.bytes, "spilled to disk");
  if (!free_memory_of(group)) return true;  // it is still there, and so it counts
  group.granted_bytes -= event.bytes;
  world_.memory.release(Memory::of_session(session.id), event.bytes);
  return true;
}

// --- back

void Spill::restored(const Session& session, SequenceGroup& group) {
  if (group.place != GroupPlace::kSpilled) return;
  group.place = GroupPlace::kMemory;
  group.spill_file.reset();
  tell(EventKind::kSequenceRestored, session, std::exchange(group.spilled_bytes, 0),
       "back from disk");
}

void Spill::worker_died(const Session& session, SequenceGroup& group) {
  if (group.place == GroupPlace::kSpilling) {
    group.place = GroupPlace::kMemory;
    group.spill_file.reset();
    if (++group.spill_deaths >= limits::kDeathsWithoutProgress) put_off(group);
  }
  if (group.place != GroupPlace::kSpilled || group.granted_bytes == 0) return;
  if (!free_memory_of(group)) return;
  world_.memory.release(Memory::of_session(session.id), std::exchange(group.granted_bytes, 0));
}

}  // namespace djinn::daemon
