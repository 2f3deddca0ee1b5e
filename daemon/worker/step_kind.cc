// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/step_kind.h"

namespace djinn::worker {
namespace {

uint64_t mixed(uint64_t a, uint64_t b) {
  // The finalizer of SplitMix64 (Steele, Lea, Flood, 2014), so that near numbers end up far apart.
  uint64_t x = a * 0x9e3779b97f4a7c15 + b;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

StepKind kind_of_next_step(Session& session) {
  const ipc::Submission submission = session.ring().copy_submission();
  const uint64_t operation = submission.operation;
  switch (static_cast<ipc::Operation>(operation)) {
    case ipc::Operation::kRun:
      return {mixed(operation, submission.program)};
    case ipc::Operation::kRunOnce:
      return {mixed(operation, mixed(submission.graph_bytes, session.id().value))};
    case ipc::Operation::kGenerate:
      if (session.progression.token_ns != 0 && session.generation) {
        return {mixed(operation, mixed(1, session.generation->decode)), true};
      }
      return {mixed(operation, mixed(2, session.id().value))};
    default:
      return {mixed(operation, 0)};
  }
}

}  // namespace djinn::worker
