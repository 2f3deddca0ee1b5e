// SPDX-License-Identifier: Apache-2.0

// Session memory: the one memfd that a client and the worker share. djinnd makes it, seals its
// size, and hands it to both with their ends of two bells (bell.h).
//
//   control lines   one cache line a word, so that the two sides never write the same line
//   submissions     64-byte slots, client -> worker
//   completions     64-byte slots, worker -> client
//   error texts     one a submission slot
//   staging         bytes that the client hands out: bindings, inputs, outputs
//
// Indices count from 0 and never wrap; slot = index & (capacity - 1), with the capacity from this
// header and never from memory. Everything here is hostile to the worker: it keeps private copies
// of its own indices and believes the client's only after a range check (ARCHITECTURE rule 2).
//
// A submission slot is free again when its submission is complete, not when it was picked up, so a
// worker that dies finds all open work in the ring.
//
// Sleeping: a side that is about to sleep on its bell sets its `waiting` word, looks at the ring
// once more, and sleeps. The other side publishes, then looks at `waiting`, and rings the bell only
// if it is set. A worker that finds no free completion slot sets `worker_blocked`, and a client
// that freed slots rings the submission bell. All these orders need more than acquire and release;
// ring.cc has it.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "ipc/limits.h"

namespace djinn::ipc {

enum class Operation : uint16_t {
  kNop = 0,              // completes at once: measures the path
  kRun = 1,              // a program with a RunBlock
  kRunOnce = 2,          // SRG bytes in staging with a RunBlock
  kGenerate = 3,         // a GenerateBlock: many steps, one submission
  kReadRef = 4,          // a ReadBlock: elements of a view of a ref to staging
  kWriteRef = 5,         // a WriteBlock: staging bytes become a new ref, or a part of one
  kReleaseRefs = 6,      // a ReleaseBlock
  kCropSequence = 7,     // a CropBlock
  kReorderSequence = 8,  // a ReorderBlock
};
inline constexpr size_t kOperations = 9;
static_assert(kOperations == static_cast<size_t>(Operation::kReorderSequence) + 1);

// One submission. Written by the client before it publishes the index.
//
// A run that fails poisons what it would have made and what it would have changed. Not so one of a
// series: where an operator of it fails, what the operators before that one have made and changed
// stays, and what the others would have changed stays as it was; what they would have made is
// poisoned; the completion says which node failed. Runs of the series that come behind it are
// refused, and change nothing. So a program that submits ahead finds all as at the operator that
// failed. A run on a sequence group keeps nothing of itself.
struct Submission {
  uint16_t operation = 0;       // Operation
  uint16_t reserved = 0;        // zero
  uint32_t binding_bytes = 0;   // of the binding block; 0 for kNop
  uint64_t run = 0;             // the client's number for it, larger than all before
  uint64_t binding_offset = 0;  // in staging
  uint64_t program = 0;         // kRun: ProgramId
  uint32_t graph_offset = 0;    // kRunOnce: SRG bytes in staging
  uint32_t graph_bytes = 0;
  // Its deadline, in CLOCK_MONOTONIC: what has not begun by then, or is predicted not to when the
  // lane finds it, is refused with kQueueFull, and nothing of it was done. 0: it waits for its turn
  uint64_t begin_by_ns = 0;
  uint64_t model = 0;   // kRunOnce: the model whose weights the graph names; 0 for none
  uint64_t series = 0;  // kRun, kRunOnce: the client's number for a series of runs; 0: of none
};
static_assert(sizeof(Submission) == 64);
static_assert(std::is_trivially_copyable_v<Submission>);

enum class CompletionKind : uint16_t {
  kDone = 1,   // the submission is complete; error says how
  kToken = 2,  // one generated token for each of row_count rows; the submission goes on
};

inline constexpr uint32_t kTokensPerCompletion = 8;

struct Completion {
  uint16_t kind = 0;   // CompletionKind
  uint16_t error = 0;  // kDone: ErrorCode; its text is in the error area
  uint32_t index = 0;  // kToken: which token of the run, from 0. kDone: tokens generated; of a run
                       // of a series that failed: which node of its graph did, from 1, or 0
  uint64_t run = 0;
  uint64_t random_offset = 0;  // kDone of a generation: the next unused random offset
  uint32_t first_row = 0;      // kToken
  uint32_t row_count = 0;      // kToken: at most kTokensPerCompletion
  int32_t tokens[kTokensPerCompletion] = {};
};
static_assert(sizeof(Completion) == 64);
static_assert(std::is_trivially_copyable_v<Completion>);

struct alignas(64) ControlLine {
  uint64_t word = 0;
};

// What a client says of its own calls. Nobody relies on it.
struct ClientStatement {
  std::array<uint64_t, 3> calls{};  // by tier: recorded, replayed, generated
  uint64_t local_models = 0;  // loaded into the client itself, because djinnd did not take them
  friend bool operator==(const ClientStatement&, const ClientStatement&) = default;
};

// The head of session memory.
struct SessionControl {
  ControlLine submissions_published;  // client: submissions [0, n) are written
  ControlLine submissions_completed;  // worker: submissions [0, n) are complete, their slots free
  ControlLine completions_published;  // worker
  ControlLine completions_consumed;   // client: completions [0, n) are read, their slots free
  ControlLine worker_waiting;         // worker: 1 while it sleeps or is about to
  ControlLine client_waiting;         // client: likewise
  ControlLine cancelled_through;  // client: every run with a number up to this is to be given up
  ControlLine worker_blocked;  // worker: 1 while it has completions to write and no slot for them
  alignas(64) ClientStatement statement;  // client; read by djinnd
};

struct SessionLayout {
  static constexpr uint64_t kControlOffset = 0;
  static constexpr uint64_t kSubmissionsOffset = 4096;
  static constexpr uint64_t kCompletionsOffset =
      kSubmissionsOffset + uint64_t{limits::kSubmissionSlots} * sizeof(Submission);
  static constexpr uint64_t kErrorTextsOffset =
      kCompletionsOffset + uint64_t{limits::kCompletionSlots} * sizeof(Completion);
  static constexpr uint64_t kStagingOffset =
      (kErrorTextsOffset + uint64_t{limits::kSubmissionSlots} * limits::kErrorTextBytes + 4095) /
      4096 * 4096;
  // Bytes of the whole memfd for a staging slab of staging_bytes (a multiple of 4096).
  static constexpr uint64_t bytes(uint64_t staging_bytes) { return kStagingOffset + staging_bytes; }
};
static_assert(sizeof(SessionControl) <= SessionLayout::kSubmissionsOffset);
static_assert(SessionLayout::kStagingOffset % 4096 == 0);
// A graph's place is found in 32 bits.
static_assert(limits::kStagingBytesMax <= UINT32_MAX);
// A slot is found by masking.
static_assert(std::has_single_bit(limits::kSubmissionSlots));
static_assert(std::has_single_bit(limits::kCompletionSlots));

}  // namespace djinn::ipc
