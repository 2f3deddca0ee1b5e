// SPDX-License-Identifier: Apache-2.0

// SessionState: what of a session must outlive a worker. It lies in the session's state extent, a
// memfd that djinnd makes and shares with the worker alone; clients never see it.
//
//   commit word   the session's step number. Storing it makes all of a step real at once.
//   versioned     a table entry that exists twice, each copy stamped with the step that wrote it;
//                 the copy with the larger stamp not above the commit word is the valid one
//   step record   versioned: which submissions are complete, how far a generation is, what to tell
//                 the client about the last step
//   ref entry     versioned: where a storage lies in the session's extent, or why it has no bytes
//   sequence      versioned: length and row padding of a sequence group
//   undo log      old bytes of ranges that the running step overwrites in place
//   in flight     the private copy of the one submission that the lane is working on
//   given up      submissions that djinnd wants ended; djinnd alone writes this
//   operator      the name of the one that the running step is in
//   idle refs     how many bytes of the session's extent are committed and hold no ref
//   touched refs  the ref entries that were ever staged; nobody looks at the rest of the table,
//                 which has no pages before it is used
//
// A step: begin() -> stage_*() and save_for_undo() -> commit(); it may be suspended, and be rolled
// back or recovered no less. Until commit() nothing staged is
// valid; a process that dies anywhere before it leaves the former step, and recover() puts back
// what the undo log saved and forgets the staged copies.
//
// invariant: no copy's stamp is above commit word + 1.
// invariant: undo entries belong to step commit word + 1, or are void.
//
// One thread of the worker writes. djinnd reads with read_progress(), on a private copy of the
// head, and writes with give_up_in_flight() and leave_step() alone.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kernel/base/bytes.h"
#include "kernel/base/ids.h"
#include "kernel/base/result.h"
#include "kernel/gc/fault_points.h"

namespace djinn::gc {

// Between offsets of a session's extent.
struct ExtentCopy {
  uint64_t from = 0;
  uint64_t to = 0;
  uint64_t bytes = 0;
};

// A session's extent: what is saved and put back is copied inside it, and nobody here looks at it.
struct UndoExtent {
  uint64_t bytes = 0;
  // All of them; no range overlaps another.
  std::function<Status(std::span<const ExtentCopy> copies)> copy;
};
// One that is copied range by range.
[[nodiscard]] UndoExtent one_by_one(
    uint64_t bytes, std::function<Status(uint64_t from, uint64_t to, uint64_t bytes)> copy);

inline constexpr uint32_t kRowsMax = 32;  // rows of a sequence group; one bit each in a mask
inline constexpr uint32_t kUndoEntriesMax = 256;          // in-place ranges of one step
inline constexpr uint32_t kErrorTextBytes = 240;          // an error is three short sentences
inline constexpr uint32_t kOpNameBytes = 64;              // the longest has 58
inline constexpr uint32_t kInFlightBytesMax = 64 * 1024;  // the largest binding table

// kPartial: its bytes come in several steps, and nothing can name it before the last.
enum class RefState : uint32_t { kFree = 0, kLive = 1, kPoisoned = 2, kPartial = 3 };

struct RefEntry {
  RefState state = RefState::kFree;
  uint32_t generation = 0;
  uint64_t offset = 0;  // bytes into the session's extent
  uint64_t bytes = 0;
  uint32_t error = 0;  // kPoisoned: the ErrorCode of the step that would have made it
  uint32_t reserved = 0;
  uint64_t written = 0;  // kPartial: how many bytes, from the first on
};

struct SequenceEntry {
  uint32_t generation = 0;  // 0: no group here
  uint32_t rows = 0;
  uint32_t bank = 0;  // which copy of the rows is in use
  uint32_t reserved = 0;
  uint64_t length = 0;                       // committed tokens a row, left padding included
  std::array<uint32_t, kRowsMax> padding{};  // left padding of each row, in tokens
};

enum class StepKind : uint32_t {
  kNone = 0,
  kToken = 1,   // one token of a generation, or a part of its prompt; the submission goes on
  kDone = 2,    // a submission ended well
  kFailed = 3,  // a submission ended with error
};

struct StepRecord {
  StepKind kind = StepKind::kNone;
  uint32_t error = 0;           // kFailed
  uint64_t completed = 0;       // submissions completed, this step included
  uint64_t run = 0;             // the client's number of the submission
  uint64_t generated = 0;       // tokens a row of this run so far
  uint64_t prompt_read = 0;     // of its prompt, while there is more of it
  uint64_t finished_rows = 0;   // bit r: row r met a stop token
  uint64_t random_offset = 0;   // next unused Philox offset
  uint64_t failed_series = 0;   // of the last run of a series that failed; 0: none
  uint64_t failed_node = 0;     // kFailed, of a series: which of its graph, from 1; 0: none
  uint64_t tokens_in_step = 0;  // how many rows this step made a token for
  std::array<int32_t, kRowsMax> tokens{};  // of this step, one a row
  std::array<char, kErrorTextBytes> error_text{};
};

struct UndoEntry {
  uint64_t target = 0;  // bytes into the session's extent
  uint64_t saved = 0;   // where the old bytes lie in it
  uint64_t bytes = 0;
};

struct StateGeometry {
  uint32_t refs_max = 0;
  uint32_t sequences_max = 0;
  friend bool operator==(const StateGeometry&, const StateGeometry&) = default;
};

// Bytes of a state extent of this geometry, a multiple of 4096.
[[nodiscard]] uint64_t state_bytes(const StateGeometry& geometry);
// The table of refs comes last: as many of its entries, and all before them, have their pages from
// the beginning. Pages of the others are made before they are staged (ref_pages()).
inline constexpr uint32_t kRefsAtOnce = 256;
// Bytes from the extent's beginning, a multiple of 4096.
[[nodiscard]] uint64_t state_bytes_at_once(const StateGeometry& geometry);

// What a session's runs came to since it began, for whoever wants to know. They are not part of a
// step: one that is repeated counts what it moved once more.
struct RunCounts {
  uint64_t graphs = 0;    // ended well: of a graph that came with the submission
  uint64_t programs = 0;  // of a program by its id
  uint64_t generations = 0;
  uint64_t failed = 0;       // submissions of any kind
  uint64_t tokens = 0;       // of all rows
  uint64_t plan_misses = 0;  // runs that left their plan
  uint64_t bytes_in = 0;     // descriptors, binding blocks, and what was copied from staging
  uint64_t bytes_out = 0;    // completions, error texts, and what was copied to staging
  uint64_t last_tier = 0;  // of what computed last: 1 a graph, 2 a program, 3 a generation; 0: none

  // The count of that tier; null for none.
  uint64_t* of_tier(uint64_t tier) {
    if (tier == 1) return &graphs;
    if (tier == 2) return &programs;
    return tier == 3 ? &generations : nullptr;
  }
};

// What djinnd wants to know of a session after its worker died. Read from a private copy.
struct Progress {
  uint64_t commit = 0;
  uint64_t running_step = 0;  // 0: the lane was elsewhere
  uint64_t heartbeat = 0;     // changes while a long step goes on
  bool in_flight = false;     // a submission was picked up and is not complete
  std::string op;             // of the running step, where it is in one: "aten::linear"
  RunCounts counts{};
  uint64_t idle_ref_bytes = 0;  // committed for refs, and no ref's
};
inline constexpr size_t kStateHeadBytes = 4096;
// head: the first kStateHeadBytes of the extent, copied. Errors: kMalformed.
Result<Progress> read_progress(std::span<const std::byte> head);
// Asks the worker to give up the submission that it picked up last. head: the first kStateHeadBytes
// of the extent, mapped. Any process that has it.
void give_up_in_flight(std::span<std::byte> head);
// The process that was in the running step is dead: until the next begin() there is none. What it
// did is still undone by recover(). head: as above. djinnd calls it while no worker process has the
// session.
void leave_step(std::span<std::byte> head);

class SessionState {
 public:
  // Writes the head of a fresh, zeroed extent.
  static Status format(std::span<std::byte> memory, const StateGeometry& geometry);

  // memory: the mapped extent, 64-byte aligned, which outlives this. Validates geometry and every
  // invariant that a reader relies on. Errors: kMalformed.
  static Result<SessionState> open(std::span<std::byte> memory, const StateGeometry& geometry,
                                   FaultPoints& faults);

  // After a worker died: rolls the undo log back into the session's extent, voids
  // staged copies. Idempotent. Errors: kMalformed when an undo range leaves the extent, or lies
  // over what was saved of it; those of the copy.
  Status recover(const UndoExtent& extent);

  // --- the running step
  // Marks step commit + 1 as running in this lane.
  void begin();
  // Leaves the step for now: nothing was staged or saved yet, and begin() will be called again.
  void pause();
  // In the midst of the step the lane goes elsewhere, and comes back. What was saved stays saved;
  // for whoever reads the progress the step is not running in between.
  void suspend();
  void resume();
  // Saves extent[target, target + bytes) at extent[saved, ...) of each range, all of them at once,
  // and then records them. Call before the first write to one. Errors: kLimitExceeded where that
  // makes more than kUndoEntriesMax ranges, those of the copy; none is recorded then.
  Status save_for_undo(const UndoExtent& extent, std::span<const UndoEntry> ranges);
  void stage_ref(uint32_t index, const RefEntry& entry);
  void stage_sequence(uint32_t index, const SequenceEntry& entry);
  void stage_record(const StepRecord& record);
  // Makes the step real. Everything staged is valid after it.
  void commit();
  // Gives the step up: undoes in-place writes, voids what was staged. The session is as at begin().
  Status roll_back(const UndoExtent& extent);

  // --- what is committed
  [[nodiscard]] uint64_t step() const;
  [[nodiscard]] RefEntry ref(uint32_t index) const;
  [[nodiscard]] SequenceEntry sequence(uint32_t index) const;
  [[nodiscard]] StepRecord record() const;
  [[nodiscard]] const StateGeometry& geometry() const { return geometry_; }
  // Ref entries from here on are free and of generation 0: they were never staged.
  [[nodiscard]] uint32_t refs_touched() const;
  // The pages of the entries [from, to), whole.
  [[nodiscard]] std::span<std::byte> ref_pages(uint32_t from, uint32_t to) const;

  // --- the submission in flight: copied here at pick-up, before it is validated
  // block.size() <= kInFlightBytesMax.
  void pick_up(uint64_t submission_index, std::span<const std::byte> descriptor,
               std::span<const std::byte> block);
  struct InFlight {
    uint64_t submission_index = 0;
    std::span<const std::byte> descriptor;
    std::span<const std::byte> block;
  };
  // The submission that was picked up and is not completed.
  [[nodiscard]] std::optional<InFlight> in_flight() const;
  // djinnd wants the submission that was picked up last to be given up.
  [[nodiscard]] bool is_given_up() const;

  // --- publication: how far the client has been told. Not part of a step.
  [[nodiscard]] uint64_t completions_published() const;
  [[nodiscard]] uint64_t step_published() const;
  void set_completions_published(uint64_t count);
  void set_step_published(uint64_t step);

  // One more heartbeat: the running step begins with an operator, or is in none any more (empty). A
  // name that is too long is cut.
  void beat(std::string_view op = {});
  // For djinnd, which may want them back. Not part of a step.
  void set_idle_ref_bytes(uint64_t bytes);
  // Adds to what was counted before, by former workers too; last_tier takes the place of the former
  // one, if there is one.
  void count(const RunCounts& more);

 private:
  friend Result<Progress> read_progress(std::span<const std::byte> head);
  friend void give_up_in_flight(std::span<std::byte> head);
  friend void leave_step(std::span<std::byte> head);
  struct Head;
  template <typename T>
  struct Versioned;

  SessionState(std::span<std::byte> memory, const StateGeometry& geometry, FaultPoints& faults);
  Status check_head() const;
  template <typename T>
  void stage(Versioned<T>& cell, const T& entry);
  template <typename T>
  [[nodiscard]] T valid_copy(const Versioned<T>& cell) const;
  template <typename T>
  void void_staged(Versioned<T>& cell);

  [[nodiscard]] Head& head() const;
  [[nodiscard]] Versioned<RefEntry>& ref_cell(uint32_t index) const;
  [[nodiscard]] Versioned<SequenceEntry>& sequence_cell(uint32_t index) const;
  Status undo(const UndoExtent& extent);
  void void_all_staged();

  std::span<std::byte> memory_;
  StateGeometry geometry_;
  FaultPoints* faults_;
};

}  // namespace djinn::gc
