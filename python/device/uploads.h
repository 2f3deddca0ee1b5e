// SPDX-License-Identifier: Apache-2.0

// Uploads: bytes of this process on their way to djinnd.
//
//   kHost       where they are first: here, until a run needs them
//   put         they become a ref of the session
//   bound       small ones cross with each run that needs them, and stay here
//   sealed      a parameter's become a weight of a model that all processes share (sealing.h)
//
// All is called under the device's lock, but what says otherwise.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "python/device/log.h"
#include "python/device/sealing.h"
#include "python/device/session_life.h"
#include "python/device/storage.h"

namespace djinn::device {

// A storage that holds a copy of bytes. Needs no lock.
StoragePtr upload(std::span<const std::byte> bytes, at::ScalarType type);
HostBytes copy_of(std::span<const std::byte> bytes);
uint64_t bytes_of(std::span<const StoragePtr> uploads);

class Uploads {
 public:
  struct Stats {
    uint64_t sealed = 0;  // parameters that became weights
    uint64_t shared = 0;  // of those, that djinnd had already
  };

  // Both outlive this. debug_level: Device::set_debug_level() says which there are.
  Uploads(SessionLife& session, const std::atomic<int>& debug_level)
      : session_(session), debug_level_(debug_level) {}

  // The storage, of these bytes and this type from now on, goes up when a run needs it.
  // is_parameter: it is to be shared. False: an entry of the log names the storage, which stays as
  // it is. Precondition: as many bytes as the storage has.
  bool replace(const StoragePtr& storage, at::ScalarType type, HostBytes bytes, bool is_parameter);
  // A storage at kHost becomes a ref.
  void put(Storage& storage) { put(storage, storage.host); }
  // The uploads that these entries need become refs.
  void put_all(const Log& log, std::span<const size_t> needed);
  // Binds a storage as input `number` of a run; what crosses with the run is added to staged.
  ipc::InputBinding bind(uint32_t number, const StoragePtr& storage,
                         std::vector<client::StagingLease>& staged);
  // The parameters that came since the last call become weights, where djinnd takes them.
  void seal_parameters(const Log& log);
  // The session has ended: no content is a weight any more.
  void forget_weights() { sealed_ = {}; }
  [[nodiscard]] const Stats& stats() const { return stats_; }

 private:
  void put(Storage& storage, HostBytes bytes);
  // Errors: kCancelled.
  Result<size_t> open_sealed(const std::vector<StoragePtr>& parameters);

  SessionLife& session_;
  const std::atomic<int>& debug_level_;
  std::vector<std::weak_ptr<Storage>> parameters_;  // that came since the log was handed over
  SealedContents sealed_;
  Stats stats_;
};

}  // namespace djinn::device
