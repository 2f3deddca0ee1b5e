// SPDX-License-Identifier: Apache-2.0

// Returns: the conversation of a return: a model whose bytes went to disk is read again, from one
// of its sources after the other, until one gives what it was (model.h says which is next, and for
// how long).
//
//   read -> identified -> planned -> granted -> read -> hashed -> resident
//   any of these -> read       the source does not give it, and there is another
//   any of these -> on disk    nobody gives it: who waits is told, and the next use tries again
//
// invariant: nothing is resident again whose hash is not the one that it had.
#pragma once

#include <vector>

#include "daemon/djinnd/events/events.h"
#include "daemon/djinnd/models/leases.h"
#include "daemon/djinnd/models/load_failures.h"
#include "daemon/djinnd/models/load_queue.h"
#include "daemon/djinnd/models/model.h"
#include "daemon/djinnd/models/openings.h"
#include "daemon/djinnd/models/residency.h"

namespace djinn::daemon {

class Returns final : private LoadListener {
 public:
  // openings: who waits to compare their files with a model that returns.
  Returns(ModelTable& table, LoadQueue& queue, Residency& residency, Leases& leases,
          Openings& openings, LoadFailures& failures, Events& events);

  // The model is loading again, and has a source that was not tried.
  void read_again(Model& model);

 private:
  void load_identified(Load& load, const ipc::Identified& files) override;
  void load_planned(Load& load, const ipc::Planned& plan) override;
  void extents_granted(LoadId id, const Status& granted);
  void has_extents(LoadId id, Result<std::vector<Fd>> made);
  void load_progressed(Load& load, uint64_t bytes_read) override;
  void load_finished(Load& load, const ipc::Loaded& loaded, Fd& manifest) override;
  Status seal(const Model& model, const Fd& manifest);
  void load_hashed(Load& load, const ipc::Hashed& hashed) override;

  // --- it fails
  void load_looked_at(Load& load, bool on_files) override;
  void load_failed(Load& load, const Error& error) override;
  // Because of the source, or of what serves it: others are left, or not.
  void source_failed(Model& model, const Error& error);
  // It stays on disk, since no source would do better.
  void fail(Model& model, const Error& error);
  void give_up(Model& model, const LoadFailure& failure);
  void load_ended(LoadId id) override;

  // The model that the load brings back, and what it reads.
  Model& model_of(LoadId load);
  static Source& source_of(Model& model);

  ModelTable& table_;
  LoadQueue& queue_;
  Residency& residency_;
  Leases& leases_;
  Openings& openings_;
  LoadFailures& failures_;
  Events& events_;
};

}  // namespace djinn::daemon
