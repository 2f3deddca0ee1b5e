// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/sessions/session.h"

#include <errno.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "ipc/session_memory.h"
#include "kernel/base/assert.h"
#include "kernel/base/checked.h"
#include "kernel/base/size_text.h"
#include "kernel/gc/session_state.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon {
namespace {

constexpr gc::StateGeometry kStateGeometry{limits::kRefs, limits::kSequences};
constexpr uint64_t kPage = 4096;
static_assert(limits::kStagingBytesMax % kPage == 0 && limits::kStagingBytesDefault % kPage == 0);

// The head is written through a mapping that ends with this function.
Result<Fd> make_state() {
  const uint64_t bytes = gc::state_bytes(kStateGeometry);
  DJINN_TRY(Fd state, pal::make_memfd("djinn-state", bytes, pal::Seals::kShared));
  DJINN_CHECK(pal::commit_ahead(state, 0, gc::state_bytes_at_once(kStateGeometry)));
  DJINN_TRY(const pal::Mapping mapped, pal::map_shared(state, bytes, pal::Access::kReadWrite));
  DJINN_CHECK(gc::SessionState::format(mapped.bytes(), kStateGeometry));
  return state;
}

}  // namespace

bool may_follow(SessionPhase from, SessionPhase to) {
  using enum SessionPhase;
  static constexpr auto kLegal = std::to_array<Transition<SessionPhase>>({
      {kGreeting, kAttaching},
      {kGreeting, kLive},
      {kGreeting, kLeaving},
      {kAttaching, kGreeting},  // its memory could not be had; it may ask again
      {kAttaching, kLive},
      {kAttaching, kLeaving},
      {kLive, kLeaving},
  });
  return is_listed(kLegal, from, to);
}

bool Session::runs() const {
  if (!has_memory()) return false;
  const auto now = memory.progress();
  return now.ok() ? runs(*now) : memory.is_asked();
}

bool Session::runs(const gc::Progress& now) const {
  DJINN_ASSERT(has_memory());
  return now.running_step != 0 || now.in_flight || memory.is_asked();
}

std::vector<Fd> Session::take_extents() {
  DJINN_ASSERT(phase == SessionPhase::kLeaving);
  std::vector<Fd> taken;
  for (auto& [offset, extent] : memory.refs) taken.push_back(std::move(extent.fd));
  memory.refs.clear();
  for (auto& [index, group] : sequences.all()) taken.push_back(std::move(group.extent));
  return taken;
}

void Session::close_bells() {
  for (Fd* fd :
       {&memory.submission_bell, &memory.completion_bell.bell, &memory.completion_bell.listener}) {
    if (fd->valid()) closer->close(std::move(*fd));
  }
}

uint64_t Session::aside_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [index, group] : sequences.all()) bytes += group.aside_bytes();
  return bytes;
}

bool Session::moves_groups() const {
  return std::ranges::any_of(sequences.all(),
                             [](const auto& entry) { return entry.second.moves(); });
}

// --- SessionTable

Session& SessionTable::add(std::unique_ptr<Session> session) {
  DJINN_ASSERT(session->id.valid());
  const SessionId id = session->id;
  const auto [at, is_new] = sessions_.emplace(id, std::move(session));
  DJINN_ASSERT(is_new);
  return *at->second;
}

Session* SessionTable::find(SessionId id) const {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : found->second.get();
}

Session* SessionTable::find(SessionId id, WorkerKey worker) const {
  Session* const session = find(id);
  return session != nullptr && session->worker() == worker ? session : nullptr;
}

// --- SessionMemory

uint64_t SessionMemory::bytes(uint64_t staging_bytes) {
  return ipc::SessionLayout::bytes(staging_bytes) + state_bytes();
}

uint64_t SessionMemory::state_bytes() {
  return gc::state_bytes(kStateGeometry);
}

uint64_t SessionMemory::chunk_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [offset, extent] : refs) bytes += extent.bytes;
  return bytes;
}

Result<SessionMemory> SessionMemory::make(uint64_t staging_bytes) {
  DJINN_ASSERT(staging_bytes > 0 && staging_bytes % kPage == 0);
  SessionMemory made;
  made.staging_bytes = staging_bytes;
  const uint64_t bytes = ipc::SessionLayout::bytes(staging_bytes);
  DJINN_TRY(made.memory, pal::make_memfd("djinn-session", bytes, pal::Seals::kShared));
  DJINN_CHECK(pal::commit_ahead(made.memory, 0, ipc::SessionLayout::kStagingOffset));
  DJINN_TRY(made.state, make_state());
  DJINN_TRY(made.submission_bell, ipc::make_submission_bell());
  DJINN_TRY(made.completion_bell, ipc::make_completion_bell());
  return made;
}

Result<gc::Progress> SessionMemory::progress() const {
  DJINN_TRY(const auto head, pal::read_memfd(state, gc::kStateHeadBytes));
  return gc::read_progress(head);
}

namespace {

Result<pal::Mapping> map_head(const Fd& state) {
  return pal::map_shared(state, gc::kStateHeadBytes, pal::Access::kReadWrite);
}

// Gives zeros if the words cannot be read.
ipc::SessionControl control_of(const Fd& memory) {
  ipc::SessionControl control;
  const ssize_t got =
      ::pread(memory.get(), &control, sizeof control, ipc::SessionLayout::kControlOffset);
  return got == ssize_t{sizeof control} ? control : ipc::SessionControl{};
}

}  // namespace

bool SessionMemory::is_asked() const {
  const ipc::SessionControl control = control_of(memory);
  return control.submissions_published.word != control.submissions_completed.word;
}

bool SessionMemory::client_is_awaited() const {
  return control_of(memory).worker_blocked.word != 0;
}

ipc::ClientStatement SessionMemory::statement() const {
  return control_of(memory).statement;
}

Status SessionMemory::cancel_in_flight() const {
  DJINN_TRY(const pal::Mapping head, map_head(state));
  gc::give_up_in_flight(head.bytes());
  return {};
}

Status SessionMemory::leave_step() const {
  DJINN_TRY(const pal::Mapping head, map_head(state));
  gc::leave_step(head.bytes());
  return {};
}

Error session_has_ended() {
  return {ErrorCode::kCancelled, "The session has ended."};
}

Error memory_is_given_up() {
  return {ErrorCode::kCancelled, "What the memory was for is given up."};
}

// --- what a client may ask for

Result<uint64_t> check_staging_bytes(uint64_t asked) {
  if (asked > limits::kStagingBytesMax) {
    return Error{ErrorCode::kLimitExceeded,
                 fmt::format("A staging slab has at most {}; {} were asked for.",
                             size_text(limits::kStagingBytesMax), size_text(asked))};
  }
  return align_up(asked == 0 ? kPage : asked, kPage).value();
}

}  // namespace djinn::daemon
