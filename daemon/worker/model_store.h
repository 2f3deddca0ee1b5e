// SPDX-License-Identifier: Apache-2.0

// MappedModel: a sealed model in this process: its extents mapped read-only, its tensors by name.
//
//   parked   the addresses are reserved and nothing is mapped there: programs can be admitted, and
//            nothing may run. A model that comes back is where it was.
//   in use   the lane's step reads it: it is not parked before that has ended
//
// A lock stands between the step and the thread that parks, so a step that does not use the model
// keeps its bytes from nobody, however long it takes.
//
// invariant: every weight's bytes lie inside one reservation, and these live as long as the model.
// invariant: what is in use is not parked.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "kernel/base/fd.h"
#include "kernel/base/ids.h"
#include "kernel/base/result.h"
#include "kernel/executor/executor.h"
#include "kernel/pal/device_pal.h"
#include "kernel/srg/load_plan.h"

namespace djinn::worker {

class MappedModel {
 public:
  // fds: the manifest, then one sealed memfd for each extent; of a parked one the manifest alone.
  // Errors: kMalformed when the manifest and the extents do not agree; what mapping gives.
  static Result<std::shared_ptr<MappedModel>> map(ModelId id, std::vector<Fd> fds, bool parked,
                                                  pal::DevicePal& pal);

  // --- any thread
  // Of a parked one, which is so no more, and nothing of another; fds as for map(). What fails
  // leaves it parked.
  Status map_again(std::vector<Fd> fds, pal::DevicePal& pal);
  // Gives whether it is parked now: it is not while it is in use.
  [[nodiscard]] bool park(pal::DevicePal& pal);
  [[nodiscard]] bool parked() const;

  // --- lane's thread
  // Gives whether its bytes are there, and stay so for this step.
  [[nodiscard]] bool use();
  // A step has ended that used it. One that is set aside may use it as well.
  void end_use();

  [[nodiscard]] ModelId id() const { return id_; }
  [[nodiscard]] const exec::WeightTable& weights() const { return weights_; }

 private:
  MappedModel(ModelId id, bool parked, std::vector<pal::Reservation> extents,
              exec::WeightTable weights)
      : id_(id), parked_(parked), extents_(std::move(extents)), weights_(std::move(weights)) {}

  const ModelId id_;
  mutable std::mutex mutex_;  // of what follows, but the weights' names and places
  bool parked_;
  uint32_t uses_ = 0;
  std::vector<pal::Reservation> extents_;
  exec::WeightTable weights_;
};

}  // namespace djinn::worker
