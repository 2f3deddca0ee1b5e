// SPDX-License-Identifier: Apache-2.0

// Openings: the conversation of an open, from files to a model that was read and hashed. How a
// model that went to disk comes back: returns.h.
//
// A load tells what the files are; only then is it known whether the model is there already.
//
//   opening      a request whose files are not known yet, or are being compared
//   alike        a model that the files may be of, which nothing but their bytes can tell
//   first load   of a model that nobody had: until it is resident and hashed
//
//   opening -> joined                   a model is proved to be of the same files
//   opening -> compared -> joined       its bytes are those of an alike one
//   opening -> compared -> opening      they are not, or it leaves: begun anew, without it
//   opening -> first load               there is no such model
//   first load -> opening               it failed, or kept others waiting: whoever had joined it
//                                       begins anew with their own files
//
// invariant: a load of these that has not ended is an opening's or a model's, and not both.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "daemon/djinnd/events/events.h"
#include "daemon/djinnd/loop/id_source.h"
#include "daemon/djinnd/models/leases.h"
#include "daemon/djinnd/models/load_failures.h"
#include "daemon/djinnd/models/load_queue.h"
#include "daemon/djinnd/models/model.h"
#include "daemon/djinnd/models/open_request.h"
#include "daemon/djinnd/models/pins.h"
#include "daemon/djinnd/models/places.h"
#include "daemon/djinnd/models/residency.h"
#include "ipc/limits.h"
#include "kernel/base/owner.h"

namespace djinn::daemon {

class Openings final : private LoadListener {
 public:
  // Of one user's models together: memory that nobody grants.
  static constexpr uint64_t kManifestBytesPerUser = 2 * limits::kManifestBytes;

  Openings(Loop& loop, IdSource& ids, ModelTable& table, LoadQueue& queue, const Places& places,
           const Pins& pins, Residency& residency, Leases& leases, LoadFailures& failures,
           Events& events);

  // Has the files looked at. The request has some, and its user's limits have room for it.
  void begin(OpenRequest request);
  // What it alone waited for is given up; its openers are gone from the models.
  void session_left(SessionId session);

  // The model is resident, or will not be: for whoever waits to compare their files with it.
  void decide_waiting(ModelId id);
  // The model leaves: whoever compares files with it goes on without it.
  void end_comparisons(const Model& model);
  // Gives what the model holds to loaders that were killed and still have it.
  void leave_to_loaders(Model& model);

  // Of the user's openings: of their plans, and of their files.
  [[nodiscard]] uint64_t plan_bytes_of(Owner user) const;
  [[nodiscard]] size_t files_of(Owner user) const;
  // Whether one is the session's.
  [[nodiscard]] bool waits_for(SessionId session) const;
  // Whose files were compared with a resident model, since nothing else proved them to be the same.
  [[nodiscard]] uint64_t compared() const { return compared_; }

 private:
  struct Opening {
    OpenRequest request;  // its files are with the load
    size_t file_count = 0;
    ModelKey key{};             // once they are identified
    ModelId alike{};            // what they are compared with, or will be when it is resident
    std::set<ModelId> other{};  // what they were compared with, and are not
    bool compared = false;      // with any
    bool joins_loads = true;    // other users' first ones; not again, where one has failed it
  };

  // --- what are the files?
  void begin(Opening opening, std::vector<SharedFd> files);
  void load_identified(Load& load, const ipc::Identified& files) override;
  // Which model the opening is of, as far as its files tell.
  void decide(Load& load);
  void join(Load& load, Model& model);

  // --- are they those of an alike model?
  void compare(Load& load, Opening& opening, const ipc::Planned& plan);
  void load_compared(Load& load, bool same) override;
  void try_another(Load& load);

  // --- a model that nobody had
  void become_model(Load& load, Opening opening);
  void load_planned(Load& load, const ipc::Planned& plan) override;
  // Refuses openers whose pins are too much for their quota.
  void refuse_pins(Model& model, uint64_t bytes);
  void extents_granted(LoadId id, const std::vector<uint64_t>& sizes, const Status& granted);
  void has_extents(LoadId id, const std::vector<uint64_t>& sizes, Result<std::vector<Fd>> made);
  void load_progressed(Load& load, uint64_t bytes_read) override;
  void load_finished(Load& load, const ipc::Loaded& loaded, Fd& manifest) override;
  Status seal(Model& model, Fd& manifest);
  [[nodiscard]] Status check_manifests(const Model& model, uint64_t bytes) const;
  void load_hashed(Load& load, const ipc::Hashed& hashed) override;

  // --- it fails
  void load_looked_at(Load& load, bool on_files) override;
  void load_failed(Load& load, const Error& error) override;
  // Because of the files, or of what serves them: who joined the load has files of their own.
  void files_failed(Model& model, const Error& error);
  // Ends the load and the model: whoever opens it is told.
  void fail(Model& model, const Error& error);
  // Its owner's files take too long: the others begin with their own, and the load goes on.
  void leave_alone(Model& model);
  // Openers that are not its owner's, with all that they brought, as openings that do not join it.
  std::vector<Opening> take_others(Model& model);
  [[nodiscard]] static Opening opening_of(const Model& model, const Opener& opener);
  void begin_again(std::vector<Opening> openings);
  void load_ended(LoadId id) override;

  // Of a first load.
  Model& model_of(LoadId load);

  Loop& loop_;
  IdSource& ids_;
  ModelTable& table_;
  LoadQueue& queue_;
  const Places& places_;
  const Pins& pins_;
  Residency& residency_;
  Leases& leases_;
  LoadFailures& failures_;
  Events& events_;
  std::map<LoadId, Opening> openings_;
  uint64_t compared_ = 0;
};

}  // namespace djinn::daemon
