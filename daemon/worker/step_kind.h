// SPDX-License-Identifier: Apache-2.0

// What is known of a session's next step before it begins: of what kind it is, and those of a kind
// take about the same time; what it computes, where none of its kind ever ran; with whose steps it
// can be computed; and what comes behind it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "daemon/worker/program_table.h"
#include "daemon/worker/step.h"
#include "ipc/binding.h"
#include "kernel/sched/step_times.h"

namespace djinn::worker {

struct StepKind {
  uint64_t number = 0;    // for sched::StepTimes
  bool is_token = false;  // of a generation, and not its first
};

// Of the same submission: tokens of a generation, as many as it may make, and their kind.
struct StepsBehind {
  uint64_t count = 0;
  uint64_t kind = 0;
  uint64_t parts = 0;  // of the prompt, before those, each taken for one like the next step
};

struct ExpectedStep {
  sched::Work work;
  sched::Kernels kernels = sched::Kernels::kExact;
};

// Token steps of one key can be computed together: those of generations, and runs that append one
// token to each row of a sequence group, as the loop of a client submits them, by one program whose
// token steps join (ProgramTable::joins_steps).
struct StepBatch {
  uint64_t key = 0;   // 0: the step is computed by itself
  uint32_t rows = 0;  // that it has
  friend bool operator==(const StepBatch&, const StepBatch&) = default;
};

// The client's word in the ring is believed, and what its block says, which may be another one when
// the step begins: whatever that is, it is charged for the time that the step takes. The block is
// read when something is asked for that it says, and once. Valid until the session's next step
// begins. Lane's thread.
class NextStep {
 public:
  // Nothing where nothing is submitted, or the client's indices cannot be.
  static std::optional<NextStep> of(Session& session, const ProgramTable& programs);

  // By operation and program; of a generation the first step is told from the others, and by the
  // length of its prompt. A graph that is run once is of a kind of its session's own, by its size.
  [[nodiscard]] StepKind kind();
  // Key 0: it is computed by itself.
  [[nodiscard]] StepBatch batch();
  // Of a step that runs a program that is here; nothing of others. Where the block says nonsense,
  // nothing, or something wrong: the step itself finds out. Linear in the program's size.
  [[nodiscard]] std::optional<ExpectedStep> expected();
  [[nodiscard]] StepsBehind behind();

 private:
  // What a run's symbols are, as far as they are told before it begins.
  struct RunSize {
    ProgramId program;
    SequenceHandle sequence;
    std::span<const int64_t> symbols{};  // of a run; of a generation the next two say more
    int64_t rows = 1;
    int64_t tokens = 1;
    int64_t past = 0;   // of a part of a prompt
    uint64_t left = 0;  // likewise: of the prompt, these tokens included
  };

  NextStep(Session& session, const ProgramTable& programs, const ipc::Submission& submission)
      : session_(session), programs_(programs), submission_(submission) {}
  [[nodiscard]] bool is(ipc::Operation operation) const;
  // Of a generation, and not its first.
  [[nodiscard]] bool makes_token() const;
  // Null where it says nonsense.
  [[nodiscard]] const ipc::RunBlock* run_block();
  [[nodiscard]] const ipc::GenerateBlock* generate_block();
  [[nodiscard]] uint64_t kind_of_generation();
  [[nodiscard]] std::optional<RunSize> size_of_run();
  [[nodiscard]] std::optional<RunSize> size_of_generation();
  [[nodiscard]] static std::vector<int64_t> symbols_of(const srg::Graph& graph, const RunSize& run,
                                                       int64_t past);

  Session& session_;
  const ProgramTable& programs_;
  ipc::Submission submission_;
  std::optional<Result<ipc::RunBlock>> run_block_;
  std::optional<Result<ipc::GenerateBlock>> generate_block_;
};

// Of a step that has begun. Lane's thread.
[[nodiscard]] StepBatch batch_of(const Step& step, const ProgramTable& programs);

}  // namespace djinn::worker
