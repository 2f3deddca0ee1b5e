// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/sessions/session.h"

#include <errno.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "ipc/session_memory.h"
#include "kernel/base/assert.h"
#include "kernel/base/checked.h"
#include "kernel/gc/session_state.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon {
namespace {

constexpr gc::StateGeometry kStateGeometry{limits::kRefs, limits::kSequences};
constexpr uint64_t kPage = 4096;
constexpr uint32_t kHeadsMax = 4096;  // of a layer, and elements of a head: no model has more
constexpr uint32_t kHeadElementsMax = 65536;

// The head is written through a mapping that does not outlive this.
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
  switch (to) {
    case SessionPhase::kGreeting:
      return from == SessionPhase::kAttaching;  // its memory could not be had; it may ask again
    case SessionPhase::kAttaching:
      return from == SessionPhase::kGreeting;
    case SessionPhase::kLive:
      return from == SessionPhase::kGreeting || from == SessionPhase::kAttaching;
    case SessionPhase::kLeaving:
      return from != SessionPhase::kLeaving;
  }
  return false;
}

void Session::go(SessionPhase next) {
  DJINN_ASSERT(may_follow(phase, next));
  phase = next;
}

bool Session::runs() const {
  if (!has_memory()) return false;
  const auto now = memory.progress();
  return memory.is_asked() || (now.ok() && (now->running_step != 0 || now->in_flight));
}

std::vector<Fd> Session::take_memory() {
  std::vector<Fd> taken;
  for (Fd* fd : {&memory.state, &memory.refs}) taken.push_back(std::move(*fd));
  for (auto& [index, group] : sequences.all()) taken.push_back(std::move(group.memfd));
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

// --- SequenceSlots

Result<SequenceGroup*> SequenceSlots::make(const ipc::SequenceGeometry& geometry) {
  for (uint32_t index = 0; index < limits::kSequences; ++index) {
    if (groups_.contains(index)) continue;
    uint32_t& generation = generations_[index];
    if (++generation == 0) ++generation;  // zero is never valid
    SequenceGroup& group = groups_[index];
    group.handle = {index, generation};
    group.geometry = geometry;
    return &group;
  }
  return Error{
      ErrorCode::kLimitExceeded,
      fmt::format("The session has {} sequence groups, which is the limit. Drop one first.",
                  limits::kSequences)};
}

SequenceGroup* SequenceSlots::lookup(SequenceHandle handle) {
  const auto found = groups_.find(handle.index);
  return found != groups_.end() && found->second.handle == handle ? &found->second : nullptr;
}

Result<SequenceGroup*> SequenceSlots::find(SequenceHandle handle) {
  SequenceGroup* const group = lookup(handle);
  if (group != nullptr && group->phase != GroupPhase::kDropping) return group;
  const bool stale = handle.index < limits::kSequences && handle.valid() &&
                     handle.generation <= generations_[handle.index];
  if (stale) return Error{ErrorCode::kStaleHandle, "The sequence group was dropped."};
  return Error{ErrorCode::kNotFound, "The session has no such sequence group."};
}

// --- SessionMemory

uint64_t SessionMemory::bytes(uint64_t staging_bytes) {
  return ipc::SessionLayout::bytes(staging_bytes) + gc::state_bytes(kStateGeometry);
}

Result<SessionMemory> SessionMemory::make(uint64_t staging_bytes, uint64_t ref_bytes_max) {
  SessionMemory made;
  made.staging_bytes = staging_bytes;
  made.ref_bytes_max = ref_bytes_max;
  const uint64_t bytes = ipc::SessionLayout::bytes(staging_bytes);
  DJINN_TRY(made.memory, pal::make_memfd("djinn-session", bytes, pal::Seals::kShared));
  DJINN_CHECK(pal::commit_ahead(made.memory, 0, ipc::SessionLayout::kStagingOffset));
  DJINN_TRY(made.state, make_state());
  DJINN_TRY(made.refs, pal::make_memfd("djinn-refs", ref_bytes_max, pal::Seals::kShared));
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

// All zero where it cannot be read.
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

// --- what a client may ask for

Result<uint64_t> check_staging_bytes(uint64_t asked) {
  if (asked > limits::kStagingBytesMax) {
    return Error{ErrorCode::kLimitExceeded,
                 fmt::format("A staging slab has at most {} bytes; {} were asked for.",
                             limits::kStagingBytesMax, asked)};
  }
  return align_up(asked == 0 ? kPage : asked, kPage).value();
}

Status check_geometry(const ipc::SequenceGeometry& g) {
  const bool whole = g.rows > 0 && g.layers > 0 && g.kv_heads > 0 && g.head_dim > 0 &&
                     g.capacity > 0 && size_of(g.dtype) > 0;
  if (!whole) {
    return Error{ErrorCode::kInvalidArgument,
                 "A sequence group needs rows, layers, heads, a head dimension, a capacity and a "
                 "dtype."};
  }
  if (g.banks != 1 && g.banks != 2) {
    return Error{ErrorCode::kInvalidArgument,
                 "A sequence group has one bank of rows, or two if they are to be reordered."};
  }
  if (g.rows > limits::kRows || g.layers > limits::kLayers || g.kv_heads > kHeadsMax ||
      g.head_dim > kHeadElementsMax || g.capacity > limits::kSequenceTokens) {
    return Error{ErrorCode::kLimitExceeded,
                 fmt::format("A sequence group has at most {} rows, {} layers and {} tokens a row.",
                             limits::kRows, limits::kLayers, limits::kSequenceTokens)};
  }
  return {};
}

}  // namespace djinn::daemon
