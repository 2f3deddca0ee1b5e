// SPDX-License-Identifier: Apache-2.0

// Successors: asks for memory while a worker is dead, after each event, and judges whether whoever
// did would be told to wait. It knows itself when workers were lost.
//
//   here   what comes free by itself, and what others could be asked for now
//   soon   groups that rest, too, of sessions whose worker died less than ten seconds ago, and is
//          to have a successor that may have them
//
// invariant: who needs more than what is here waits if that and what comes soon are enough, and is
// refused else.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "daemon/djinnd/daemon.h"
#include "daemon/djinnd/simulation/machine.h"
#include "kernel/base/ids.h"

namespace djinn::daemon::simulation {

class Successors {
 public:
  // Of one device.
  Successors(Machine& machine, Daemon& daemon, Reclaimer& reclaimer)
      : machine_(machine), daemon_(daemon), judged_(reclaimer) {}

  // To be called after each event. Says what does not hold, if anything does not.
  std::optional<std::string> check();

 private:
  void note_losses();
  [[nodiscard]] uint64_t groups_soon();

  Machine& machine_;
  Daemon& daemon_;
  Reclaimer& judged_;
  std::set<SessionId> attached_;
  std::map<SessionId, uint64_t> lost_ns_;  // when their workers died, of those that have none since
};

}  // namespace djinn::daemon::simulation
