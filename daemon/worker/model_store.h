// MappedModel: a sealed model in this process: its extents mapped read-only, its tensors by name.
//
// invariant: every weight's bytes lie inside one mapping, and mappings live as long as the model.
#pragma once

#include <memory>
#include <vector>

#include "kernel/base/fd.h"
#include "kernel/base/ids.h"
#include "kernel/base/result.h"
#include "kernel/exec/executor.h"
#include "kernel/pal/device_pal.h"
#include "kernel/srg/load_plan.h"

namespace djinn::worker {

class MappedModel {
 public:
  // fds: the manifest, then one sealed memfd for each extent. Errors: kMalformed when the manifest
  // and the extents do not agree; what mapping gives.
  static Result<std::shared_ptr<const MappedModel>> map(ModelId id, std::vector<Fd> fds,
                                                        pal::DevicePal& pal);

  [[nodiscard]] ModelId id() const { return id_; }
  [[nodiscard]] const exec::WeightTable& weights() const { return weights_; }

 private:
  MappedModel(ModelId id, std::vector<pal::Reservation> extents, exec::WeightTable weights)
      : id_(id), extents_(std::move(extents)), weights_(std::move(weights)) {}

  ModelId id_;
  std::vector<pal::Reservation> extents_;
  exec::WeightTable weights_;
};

}  // namespace djinn::worker
