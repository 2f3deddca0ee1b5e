// SPDX-License-Identifier: Apache-2.0

// ProgramTable: graphs that a worker has admitted, or is about to, by their fingerprint.
//
//   fingerprint   SHA-256 of worker, model and the hash of the graph: equal ones are one program
//   user          a session that defined the program; a program without users may be forgotten
//
//   admitting -> admitted    a worker said what its outputs are
//   admitting, admitted -> gone
//
//   told, here   of the worker that is: it knows of the program; it has admitted it
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "daemon/djinnd/access/replies.h"
#include "daemon/djinnd/workers/worker_key.h"
#include "daemon/djinnd/workers/worker_supervisor.h"
#include "ipc/limits.h"
#include "ipc/messages.h"
#include "kernel/base/fd.h"
#include "kernel/base/ids.h"
#include "kernel/base/owned_state.h"
#include "kernel/load/hash.h"

namespace djinn::daemon {

enum class ProgramPhase : uint8_t { kAdmitting, kAdmitted };
[[nodiscard]] bool may_follow(ProgramPhase from, ProgramPhase to);
class Programs;  // programs.h

using Fingerprint = load::Digest;
// Pure. Errors: kInternal if the hash cannot be computed.
Result<Fingerprint> fingerprint_of(WorkerKey key, ModelId model, const load::Digest& graph);

struct Program {
  ProgramId id;
  WorkerKey worker;
  ModelId model;  // invalid: it names no weights
  Fingerprint fingerprint{};
  OwnedState<ProgramPhase, Programs> phase;
  SharedFd graph;  // djinnd's own sealed copy
  uint64_t graph_bytes = 0;
  std::vector<ipc::OutputShape> outputs;  // as a worker said, like the next three
  std::string name;
  ipc::Workload workload = ipc::Workload::kUnknown;
  uint32_t fast_nodes = 0;
  std::set<SessionId> users;
  std::vector<Waiter> waiters;
  bool told = false;
  bool here = false;
  uint32_t deaths = 0;  // of workers that looked at it
  uint64_t last_used = 0;
};

class ProgramTable {
 public:
  // Graphs that djinnd keeps for one worker: a thousand of usual size, or four of the largest.
  // Its worker keeps each as well, decoded: five times the bytes of those that clients of ours
  // send, twenty times at most (srg_codec.h). The kernel refuses it private memory beyond what all
  // models and sessions may have, and some 512 MiB.
  static constexpr uint64_t kBytesPerDomain = uint64_t{64} << 20;
  // Of a worker whose user uses none of its programs: those that a script finds when it starts
  // again.
  static constexpr uint64_t kBytesUnused = uint64_t{8} << 20;
  static_assert(kBytesPerDomain == 4 * limits::kGraphBytes && kBytesUnused <= kBytesPerDomain);

  Program& add(Program program);
  Program* find(ProgramId id);
  Program* find(const Fingerprint& fingerprint);
  void erase(ProgramId id);
  void touch(Program& program) { program.last_used = ++uses_; }

  // Of the worker, whether there is room for one more graph of so many bytes.
  [[nodiscard]] bool has_room(WorkerKey key, uint64_t bytes) const;
  // The admitted program of the worker without users that was used longest ago; or null.
  Program* oldest_unused(WorkerKey key);
  // The programs that the worker has no right to any more: none while a session uses one of its
  // programs, or waits for one; else the programs beyond kBytesUnused, of which those that were
  // used last stay.
  [[nodiscard]] std::vector<ProgramId> left_over(WorkerKey key) const;

  [[nodiscard]] std::map<ProgramId, Program>& all() { return programs_; }
  [[nodiscard]] const std::map<ProgramId, Program>& all() const { return programs_; }
  [[nodiscard]] size_t size() const { return programs_.size(); }

 private:
  std::map<ProgramId, Program> programs_;
  std::map<Fingerprint, ProgramId> by_fingerprint_;
  uint64_t uses_ = 0;
};

}  // namespace djinn::daemon
