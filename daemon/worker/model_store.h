// SPDX-License-Identifier: Apache-2.0

// MappedModel: a sealed model in this process: its extents mapped read-only, its tensors by name.
//
//   parked   the addresses are reserved and nothing is mapped there: programs can be admitted, and
//            nothing may run. A model that comes back is where it was.
//
// invariant: every weight's bytes lie inside one reservation, and these live as long as the model.
#pragma once

#include <memory>
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

  // Of a parked one, which no run touches meanwhile; fds as for map(). What fails leaves it parked.
  Status map_again(std::vector<Fd> fds, pal::DevicePal& pal);

  // The rest is for the lane's thread.
  void park(pal::DevicePal& pal);
  void unpark();
  [[nodiscard]] bool parked() const { return parked_; }
  [[nodiscard]] ModelId id() const { return id_; }
  [[nodiscard]] const exec::WeightTable& weights() const { return weights_; }

 private:
  MappedModel(ModelId id, bool parked, std::vector<pal::Reservation> extents,
              exec::WeightTable weights)
      : id_(id), parked_(parked), extents_(std::move(extents)), weights_(std::move(weights)) {}

  ModelId id_;
  bool parked_;
  std::vector<pal::Reservation> extents_;
  exec::WeightTable weights_;
};

}  // namespace djinn::worker
