// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/session.h"

#include <string.h>

#include <utility>

#include "kernel/base/assert.h"
#include "kernel/base/checked.h"

namespace djinn::worker {
namespace {

constexpr gc::StateGeometry kGeometry{limits::kRefs, limits::kSequences};

Result<pal::Mapping> map_state(const Fd& fd, uint64_t bytes) {
  DJINN_CHECK(pal::verify_memfd(fd, bytes, pal::Seals::kSize));
  return pal::map_shared(fd, bytes, pal::Access::kReadWrite);
}

// This does not ask for the memory's size: its client can make that call wait (ipc/README.md), and
// djinnd made the memory this large.
Result<pal::Mapping> map_memory(const Fd& fd, uint64_t bytes) {
  DJINN_TRY(const bool sealed, pal::has_seals(fd, pal::Seals::kShared));
  if (!sealed) return Error{ErrorCode::kMalformed, "A session's memory came without its seals."};
  return pal::map_shared(fd, bytes, pal::Access::kReadWrite);
}

// A session comes with these, and one for each chunk of refs.
constexpr size_t kDescriptors = 4;

Result<vmu::WindowMemory> import_refs(const ipc::AttachSession& command, std::span<Fd> fds,
                                      pal::DevicePal& pal) {
  vmu::WindowMemory memory{command.ref_bytes_max, {}, command.ref_bytes_granted};
  for (size_t i = 0; i < fds.size(); ++i) {
    const ipc::MemoryRange& place = command.ref_chunks[i];
    DJINN_TRY(pal::Extent extent,
              pal.import_extent(std::move(fds[i]), place.bytes, pal::Seals::kSize));
    memory.chunks.push_back({place.offset, std::move(extent)});
  }
  return memory;
}

}  // namespace

Session::Session(const ipc::AttachSession& command)
    : id_(command.session), service_(command.service) {
  if (command.refusal != ErrorCode::kOk) refusal_ = Error{command.refusal, command.refusal_text};
}

Session::~Session() {
  for (const auto& [index, sequence] : sequences_) sequence->drop();
}

Result<std::unique_ptr<Session>> Session::attach(const ipc::AttachSession& command,
                                                 std::vector<Fd> fds, pal::DevicePal& pal,
                                                 Grants& grants, gc::FaultPoints& faults) {
  std::unique_ptr<Session> session(new Session(command));
  DJINN_CHECK(session->map(command, std::move(fds), pal, grants, faults));
  return session;
}

Status Session::map(const ipc::AttachSession& command, std::vector<Fd> fds, pal::DevicePal& pal,
                    Grants& grants, gc::FaultPoints& faults) {
  if (fds.size() != kDescriptors + command.ref_chunks.size()) {
    return Error{ErrorCode::kMalformed, "A session came without its descriptors."};
  }
  DJINN_TRY(memory_, map_memory(fds[0], ipc::SessionLayout::bytes(command.staging_bytes)));
  DJINN_TRY(state_memory_, map_state(fds[1], gc::state_bytes(kGeometry)));
  submission_bell_ = std::move(fds[2]);
  completion_bell_ = std::move(fds[3]);
  DJINN_TRY(view_, ipc::SessionView::over(memory_.bytes()));
  DJINN_TRY(state_, gc::SessionState::open(state_memory_.bytes(), kGeometry, faults));
  DJINN_TRY(vmu::WindowMemory memory,
            import_refs(command, std::span(fds).subspan(kDescriptors), pal));
  DJINN_CHECK(roll_back_open_step(memory, pal));
  DJINN_TRY(refs_, Refs::open(command.session, std::move(memory), *state_, pal, grants));
  tell_idle_refs();
  ring_.emplace(*view_, state_->record().completed, state_->completions_published());
  if (state_->in_flight()) probation_steps_ = kProbationSteps;
  return {};
}

// A former worker may have died inside a step. Its in-place writes are undone before anybody reads
// the table of storages, through a mapping that ends here.
Status Session::roll_back_open_step(const vmu::WindowMemory& memory, pal::DevicePal& pal) {
  DJINN_TRY(pal::Reservation whole, pal.reserve(memory.bytes));
  for (const vmu::Chunk& chunk : memory.chunks) {
    DJINN_CHECK(
        pal.map(whole, chunk.offset, chunk.extent, 0, chunk.extent.bytes, pal::Access::kReadWrite));
  }
  const auto copy = [&](uint64_t from, uint64_t to, uint64_t bytes) {
    return pal.copy(whole, from, to, bytes);
  };
  return state_->recover(gc::one_by_one(memory.bytes, copy));
}

void Session::trim_refs() {
  refs_->trim();
  tell_idle_refs();
}

void Session::add_sequence(std::shared_ptr<Sequence> sequence) {
  DJINN_ASSERT(sequence && sequence->session() == id_);
  sequences_[sequence->handle().index] = std::move(sequence);
}

void Session::drop_sequence(SequenceHandle handle) {
  const auto found = sequences_.find(handle.index);
  if (found == sequences_.end() || found->second->handle() != handle) return;
  found->second->drop();
  sequences_.erase(found);
}

Result<std::shared_ptr<Sequence>> Session::find_sequence(SequenceHandle handle) const {
  const auto found = sequences_.find(handle.index);
  if (!handle.valid() || found == sequences_.end()) {
    return Error{ErrorCode::kNotFound, "The session has no such sequence group. Make one first."};
  }
  if (found->second->handle() != handle) {
    return Error{ErrorCode::kStaleHandle,
                 "The sequence group was dropped, and its slot has a new tenant."};
  }
  return found->second;
}

gc::SequenceEntry Session::sequence_entry(const Sequence& sequence) const {
  DJINN_ASSERT(sequence.session() == id_);
  gc::SequenceEntry entry = state_->sequence(sequence.handle().index);
  if (entry.generation != sequence.handle().generation) {
    entry = {};
    entry.generation = sequence.handle().generation;
    entry.rows = sequence.geometry().rows;
  }
  return entry;
}

Result<std::span<std::byte>> Session::staging_range(const ipc::StagingRange& range) const {
  if (!range_fits(range.offset, range.bytes, staging().size())) {
    return Error{ErrorCode::kOutOfRange,
                 "A range leaves the staging slab. Check its offset and length."};
  }
  return staging().subspan(range.offset, range.bytes);
}

Result<std::span<const std::byte>> Session::staged(const ipc::StagingRange& range) {
  DJINN_TRY(const auto bytes, staging_range(range));
  counts.bytes_in += bytes.size();
  return std::span<const std::byte>(bytes);
}

std::optional<ipc::Submission> Session::in_flight() const {
  const auto flight = state_->in_flight();
  if (!flight) return std::nullopt;
  ipc::Submission submission;
  DJINN_ASSERT(flight->descriptor.size() >= sizeof submission);
  memcpy(&submission, flight->descriptor.data(), sizeof submission);
  return submission;
}

// What was picked up has not begun while it waits for memory, but for a generation that made tokens
// already.
uint64_t Session::begin_by_ns() const {
  const auto flight = in_flight();
  if (!flight) return ring_->copy_submission().begin_by_ns;
  const bool made_token = state_->record().kind == gc::StepKind::kToken;
  return waits && !made_token ? flight->begin_by_ns : 0;
}

bool Session::is_cancelled() const {
  const auto flight = in_flight();
  return flight && gives_up(flight->run);
}

bool Session::gives_up(uint64_t run) const {
  return state_->is_given_up() || ring_->cancelled_through() >= run;
}

std::optional<Error> Session::take_refusal() {
  return std::exchange(refusal_, std::nullopt);
}

}  // namespace djinn::worker
