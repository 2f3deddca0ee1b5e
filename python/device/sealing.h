// SPDX-License-Identifier: Apache-2.0

// Sealing: parameters that were moved to the device become weights of one model, which every
// process of the trust domain shares that moves the same: djinnd knows a sealed file by its bytes.
// Writing one forks it, as a ghost's (ARCHITECTURE section 4).
#pragma once

#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernel/base/fd.h"
#include "python/device/log.h"
#include "python/device/storage.h"

namespace djinn::device {

// A parameter of fewer bytes is a ref: there would be more models and weights than it is worth.
inline constexpr uint64_t kSealedBytesMin = 64 * 1024;

// Whether it is a torch.nn.Parameter large enough to be shared. Takes the GIL.
bool is_worth_sealing(const at::Tensor& source);

// Those of the storages that are still here on their way, and that no entry writes.
std::vector<StoragePtr> sealable(std::span<const std::weak_ptr<Storage>> uploads, const Log& log);

// A safetensors file that nobody can change: tensor number i is named "i" and has one dimension.
// Precondition: all are kHost.
Result<Fd> seal(std::span<const StoragePtr> parameters);

// The contents that are weights of this process now.
class SealedContents {
 public:
  // Parameters whose content is a weight become that weight. Gives those that are kHost still.
  std::vector<StoragePtr> match(std::span<const StoragePtr> parameters);
  // The first of those of equal content.
  static std::vector<StoragePtr> each_once(std::span<const StoragePtr> parameters);
  // The parameters, which seal() wrote, become the weights of its model.
  void become_weights(std::span<const StoragePtr> parameters,
                      const std::shared_ptr<const Lease>& lease);

 private:
  using Key = std::pair<uint64_t, uint64_t>;
  static Key key_of(const Storage& parameter);
  std::map<Key, std::weak_ptr<const NamedTensor>> weights_;
};

}  // namespace djinn::device
