// SPDX-License-Identifier: Apache-2.0

// Session: one attached session in this process: its memory mapped, its ring, its surviving state,
// its refs and sequence groups. Belongs to the lane's thread from attach to detach.
//
// A Session that was attached after a worker's death goes on where the committed state says: what
// was committed but not told is told again, what was in flight is executed again from its private
// copy.
#pragma once

#include <bit>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "daemon/worker/lane_counts.h"
#include "daemon/worker/refs.h"
#include "daemon/worker/sequence.h"
#include "ipc/bell.h"
#include "ipc/binding.h"
#include "ipc/limits.h"
#include "ipc/messages.h"
#include "ipc/ring.h"
#include "kernel/gc/session_state.h"
#include "kernel/pal/memfd.h"
#include "kernel/srg/graph.h"

namespace djinn::worker {

// What a client may send fits what the surviving state keeps of it.
static_assert(limits::kRows <= gc::kRowsMax);
static_assert(limits::kBindingTableBytes <= gc::kInFlightBytesMax);
// And what that keeps of an error fits the client's ring.
static_assert(gc::kErrorTextBytes <= limits::kErrorTextBytes);

// Which beginnings of a run were tried, by their number of nodes.
//
// invariant: works < fails <= the graph's nodes; nobody knows of those between.
struct Beginnings {
  explicit Beginnings(srg::Graph whole) : graph(std::move(whole)) {}

  srg::Graph graph;  // a copy: what is staged may be another one by the next try
  size_t works = 0;
  size_t fails = 0;
  size_t next = 0;  // to be tried; 0: the search has ended, and nothing can be kept
  size_t tries = 0;
  Error why;  // of the one that fails

  // Memory may get less while it searches, and a graph may tell of another failure each time.
  [[nodiscard]] bool may_go_on() const {
    return next > 0 && tries < 4 * static_cast<size_t>(std::bit_width(graph.nodes.size()));
  }
  void note_success() {
    works = next;
    next = (works + fails) / 2;
  }
  // failed_at: the node that an operator failed in.
  void note_failure(Error error, size_t count, std::optional<size_t> failed_at) {
    why = std::move(error);
    fails = failed_at ? *failed_at + 1 : count;
    if (works >= fails) works = 0;  // it did, before there was less memory
    next = failed_at ? *failed_at : (works + fails) / 2;
  }
};

class Session {
 public:
  // fds as ipc::AttachSession says. Recovers the state extent. Errors: kMalformed, or mapping's.
  static Result<std::unique_ptr<Session>> attach(const ipc::AttachSession& command,
                                                 std::vector<Fd> fds, pal::DevicePal& pal,
                                                 Grants& grants, gc::FaultPoints& faults);

  ~Session();
  [[nodiscard]] SessionId id() const { return id_; }
  [[nodiscard]] ServiceClass service() const { return service_; }
  [[nodiscard]] ipc::WorkerRing& ring() { return *ring_; }
  [[nodiscard]] gc::SessionState& state() { return *state_; }
  [[nodiscard]] Refs& refs() { return *refs_; }
  // Between two steps: gives back what its refs do not use.
  void trim_refs();
  // Says, where djinnd reads it, how much that is.
  void tell_idle_refs() { state_->set_idle_ref_bytes(refs_->idle_bytes()); }
  [[nodiscard]] std::span<std::byte> staging() const { return view_->staging(); }
  [[nodiscard]] const Fd& submission_bell() const { return submission_bell_; }
  void ring_completion_bell() const { ipc::ring_completion_bell(completion_bell_); }

  void add_sequence(std::shared_ptr<Sequence> sequence);
  void drop_sequence(SequenceHandle handle);
  // Errors: kNotFound, kStaleHandle.
  Result<std::shared_ptr<Sequence>> find_sequence(SequenceHandle handle) const;
  // The committed entry of a group; a fresh one (length 0) if no step touched it yet.
  [[nodiscard]] gc::SequenceEntry sequence_entry(const Sequence& sequence) const;

  // A part of the staging slab. Errors: kOutOfRange.
  Result<std::span<std::byte>> staging_range(const ipc::StagingRange& range) const;
  // As above, of which all is copied now.
  Result<std::span<const std::byte>> staged(const ipc::StagingRange& range);

  // The submission in flight was begun, and waits for memory or its model.
  bool waits = false;
  // The last step was a run that appended one token to each row of a group.
  bool was_token = false;
  // The deadline of the submission in flight or next to come, if it has one and has not begun; else
  // 0. Precondition: its ring has found a submission that is not complete.
  [[nodiscard]] uint64_t begin_by_ns() const;
  // Somebody gave up the submission in flight.
  [[nodiscard]] bool is_cancelled() const;
  // Of the submission in flight, whose run has that number.
  [[nodiscard]] bool gives_up(uint64_t run) const;
  // It had a submission in flight when the worker before died, perhaps in the same step as others':
  // so many steps of it are computed by themselves, so that the next death is of one session.
  [[nodiscard]] bool is_on_probation() const { return probation_steps_ > 0; }
  // A step has ended that was computed.
  void note_step() { probation_steps_ -= probation_steps_ > 0 ? 1 : 0; }
  // Once, when djinnd gave up on the submission in flight, or the lane on the one that is to be
  // picked up: why.
  [[nodiscard]] std::optional<Error> take_refusal();
  [[nodiscard]] bool has_refusal() const { return refusal_.has_value(); }
  void refuse(Error why) { refusal_ = std::move(why); }
  // The decoded block of the generation in flight, so that a token does not decode it again.
  std::optional<ipc::GenerateBlock> generation;
  // Of the submission in flight, if it is of a series and cannot be run as a whole (operations.h).
  std::optional<Beginnings> beginnings;
  // Of the submission in flight or next to come, for the lane's counts.
  Progression progression;
  // What has happened since it was told to djinnd.
  gc::RunCounts counts;

 private:
  explicit Session(const ipc::AttachSession& command);
  Status map(const ipc::AttachSession& command, std::vector<Fd> fds, pal::DevicePal& pal,
             Grants& grants, gc::FaultPoints& faults);

  [[nodiscard]] std::optional<ipc::Submission> in_flight() const;
  Status roll_back_open_step(const vmu::WindowMemory& memory, pal::DevicePal& pal);

  SessionId id_;
  ServiceClass service_;
  std::optional<Error> refusal_;
  static constexpr uint32_t kProbationSteps = 64;
  uint32_t probation_steps_ = 0;
  pal::Mapping memory_;
  pal::Mapping state_memory_;
  Fd submission_bell_;
  Fd completion_bell_;
  std::optional<ipc::SessionView> view_;
  std::optional<gc::SessionState> state_;
  std::optional<Refs> refs_;
  std::optional<ipc::WorkerRing> ring_;
  std::map<uint32_t, std::shared_ptr<Sequence>> sequences_;  // by handle index
};

}  // namespace djinn::worker
