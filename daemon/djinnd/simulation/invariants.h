// SPDX-License-Identifier: Apache-2.0

// Invariants: what must hold of djinnd between any two events.
//
//   accounts   of each device: who holds bytes is there, and holds what its parts come to; a user's
//              bytes are the sum over what is theirs; nobody comes to have more than a quota allows
//   devices    what belongs to a device holds bytes of it alone, is in its workers alone, and is
//              sealed and freed by what made it
//   lifetimes  what names a session, a model, a load or a worker names one that is there
//   memory     what was made and what workers were granted is in the accounts until it is gone
//   kept       what a djinnd would leave if it died now is of use to the next
//   waiting    who waits has somebody who looks after it, and waits for what may come
//              (successors.h)
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "daemon/djinnd/daemon.h"
#include "daemon/djinnd/simulation/machine.h"
#include "daemon/djinnd/simulation/successors.h"
#include "daemon/djinnd/simulation/worker.h"
#include "ipc/kept_model.h"

namespace djinn::daemon::simulation {

class Invariants {
 public:
  // users: who may have sessions. kept: models that a predecessor left, before it starts.
  Invariants(Machine& machine, Daemon& daemon, std::vector<Owner> users,
             std::map<ModelId, ipc::KeptModel> kept);

  // What was kept and is not there when it has started.
  std::optional<std::string> not_taken_back();
  // What would not outlive a restart as it is, and djinnd has not said so.
  std::optional<std::string> not_kept();

  // Says what does not hold, if anything does not.
  std::optional<std::string> check();

  // What is left of clients who have gone; all but the one who observes have.
  std::optional<std::string> left_behind();
  // What is held when there is no model and no worker any more.
  std::optional<std::string> still_held();

 private:
  void fail(std::string what);
  void check_holders(const Memory& memory);
  void check_holder(const Memory& memory, Memory::Holder holder);
  // Where the holder is; nothing where it is gone.
  [[nodiscard]] std::optional<DeviceId> device_of(Memory::Holder holder);
  void check_sessions();
  void check_session(const Session& session);
  void check_users(const Memory& memory);
  void check_user_quotas(const Memory& memory);
  void check_session_quotas();
  void check_models();
  void check_model(const Model& model);
  void check_programs();
  void check_workers();
  void check_worker(const Worker& worker);
  void check_waiting();
  // Of the session, which holds memory of no other device.
  [[nodiscard]] const Memory& memory_of(const Session& session) const;
  [[nodiscard]] uint64_t held_by(vmu::HolderKind kind) const;
  // A session that is there, and whose client has not left.
  [[nodiscard]] bool is_live(SessionId id) const;

  Machine& machine_;
  Daemon& daemon_;
  const std::vector<Owner> users_;
  const std::map<ModelId, ipc::KeptModel> kept_;
  std::optional<std::string> failure_;
  struct Seen {
    uint64_t held_bytes = 0;
    uint64_t quota_bytes = 0;
  };
  std::map<WorkerKey, Seen> users_seen_;
  std::map<SessionId, Seen> sessions_seen_;
  std::vector<Successors> successors_;  // one for each device
};

}  // namespace djinn::daemon::simulation
