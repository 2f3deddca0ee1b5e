// SPDX-License-Identifier: Apache-2.0

// Step: one step of a session while it is being executed: what was submitted, what it dooms if it
// fails, and how it ends. The unit that is committed or repeated (ARCHITECTURE rule 10).
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "daemon/worker/session.h"
#include "ipc/session_memory.h"

namespace djinn::worker {

struct Step {
  Session& session;
  ipc::Submission submission;        // the private copy
  std::span<const std::byte> block;  // likewise, in the state extent
  std::vector<RefHandle> doomed{};   // refs that a failure poisons: those it would make or change
  bool keeps = false;                // it fails, and what is staged is to be committed with that
  bool is_whole = false;             // of a series: what failed is no node's, so nothing is kept
  uint64_t failed_node = 0;          // of a series: in which node of the graph, from 1; 0: none
  const Sequence* group = nullptr;   // that its run has bound
  uint64_t tokens = 0;               // that the run appends to each of the group's rows

  [[nodiscard]] bool is_of_series() const { return submission.series != 0; }
};

// How an operation ended its step, if it is neither pending nor failed (Outcome<Ending>).
enum class Ending {
  kDone,   // the submission is complete
  kToken,  // a token was made, or a part of the prompt was read; the submission goes on
};

}  // namespace djinn::worker
