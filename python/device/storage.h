// SPDX-License-Identifier: Apache-2.0

// Storage: what this process knows of a run of bytes that lives in djinnd. A tensor of the device
// points to one through its DataPtr, whose address is unique, mapped to nothing, and so faults on
// any use.
//
//   Location      where the bytes are; a flush moves kHost, kZero and kLogged storages to kRef
//   Session   with djinnd, numbered from 1 in this process: when it ends, what it held is kLost
//   Shadow    a copy of the bytes in this process, for small integers whose values are known
//             without asking the device
//   Storages  hands out addresses, finds a storage by its address, collects what died
//
// invariant: all fields but those marked are guarded by the device's lock (device.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernel/base/ids.h"
#include "kernel/base/result.h"
#include "python/device/torch_headers.h"

namespace djinn::device {

enum class Location : uint8_t {
  kZero,      // nowhere: every byte is zero
  kHost,      // here, on its way: an upload that no run has needed yet
  kWeight,    // a sealed tensor of a model
  kSource,    // a tensor of a file, to become part of a model (loading.h)
  kRef,       // a ref of the session
  kLogged,    // made by an operator of the log
  kInput,     // of a capture (capture.h): bound at each run by its role
  kSequence,  // of a capture: keys or values of a sequence group
  kLost,      // nowhere: the session that held it has ended, or what was to make it failed
};

// Bytes that are this process's in djinnd, from when they are there until they are let go of.
class Held {
 public:
  Held() = default;
  ~Held() { become(0); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  // Holds so many bytes in place of what it held.
  void become(uint64_t bytes);
  // The bytes of all, with those that a run is still to make.
  static uint64_t now();
  // The most that there were at once since reset_most(): what a run makes, when it has made it.
  static uint64_t most();
  static void note(uint64_t bytes);
  static void reset_most(uint64_t bytes);

 private:
  uint64_t bytes_ = 0;
};

// A model that this process opened. When the last storage that is a weight of it has died, it is
// closed with the next that is handed over, if its session lives.
class Lease {
 public:
  Lease(uint64_t model, uint64_t bytes);
  ~Lease();
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  [[nodiscard]] uint64_t model() const { return model_; }

 private:
  uint64_t model_;
  uint64_t session_;
  Held held_;
};

// A tensor of a model, of a file before the model is opened, or an input of a capture.
struct NamedTensor {
  uint64_t owner = 0;  // ModelId; number of the file; role; layer * 2 + part
  std::string name;
  std::vector<int64_t> sizes = {};          // of an input of a capture
  std::shared_ptr<const Lease> lease = {};  // of a model
};

// Bytes of this process that a storage holds while they are on their way.
using HostBytes = std::shared_ptr<const std::vector<std::byte>>;

struct Storage : std::enable_shared_from_this<Storage> {
  uintptr_t address = 0;  // constant
  uint64_t born = 0;      // constant: how many entries had been recorded
  uint64_t bytes = 0;
  Location location = Location::kZero;
  at::ScalarType type = at::kByte;  // kZero, kHost, kLogged: of the value that covers all bytes
  HostBytes host;                   // kHost
  bool is_parameter = false;        // kHost: to be shared (sealing.h)
  std::shared_ptr<const NamedTensor> named;  // kWeight, kSource, kInput, kSequence
  RefHandle ref;                             // kRef
  Held held_bytes;                           // kRef
  std::shared_ptr<const Error> failure;      // kLost: of what was to make it, or none
  bool is_bound = false;                     // kRef: a template may name it
  uint32_t log_uses = 0;                     // entries of the log that name it
  c10::Storage shadow;                       // on the CPU; null: unknown
  uint64_t taint = 0;             // the inputs of a capture that the shadow depends on, a bit each
  std::atomic<bool> held = true;  // by a tensor; false: only by the log

  ~Storage();
};

using StoragePtr = std::shared_ptr<Storage>;

class Storages {
 public:
  // A new storage, zero. nbytes 0 has an address too.
  StoragePtr make(uint64_t nbytes, at::ScalarType type = at::kByte);
  // The DataPtr that holds a storage for tensors.
  at::DataPtr data_ptr(const StoragePtr& storage);
  // Finds a storage by its address: a DataPtr may have been made from the bare pointer. Null: there
  // is none.
  StoragePtr find(const void* address);
  // A ref that no storage is at any more.
  void discard(RefHandle ref);
  // Refs whose storages died, and those that were discarded, since the last call.
  std::vector<RefHandle> take_garbage();
  // Models whose leases died since the last call.
  std::vector<uint64_t> take_unused_models();
  // Leases that live, of this session.
  size_t leases();
  // The session's number.
  [[nodiscard]] uint64_t session() const { return session_; }
  // The session has ended: what it held is kLost, and the next one's number is the next.
  void end_session();
  // What djinnd holds is not what the shadows say: they are forgotten, but those of bytes that are
  // here.
  void forget_shadows();
  // Grows whenever a tensor leaves where a template may have it bound: a weight that is written, a
  // ref that is replaced, all with a session that ends. What was captured before may read what is
  // no longer current.
  [[nodiscard]] uint64_t moves() const { return moves_; }
  void note_move() { ++moves_; }
  // The number of an entry that is recorded now, from 0.
  uint64_t number_entry() { return entries_++; }
  // Around a fork: nobody is inside of the other functions meanwhile.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  friend struct Storage;
  friend class Lease;
  uintptr_t place(uint64_t nbytes, std::vector<StoragePtr>& met);
  // Those that live. They may die in the caller's hands, which the lock is not for.
  std::vector<StoragePtr> alive();

  std::mutex mutex_;
  std::map<uintptr_t, std::weak_ptr<Storage>> by_address_;
  std::vector<RefHandle> garbage_;
  std::vector<uint64_t> unused_models_;
  size_t leases_ = 0;
  std::atomic<uint64_t> session_ = 1;
  std::atomic<uint64_t> moves_ = 0;
  std::atomic<uint64_t> entries_ = 0;
  uintptr_t next_ = 0;
};

// The process's; never destroyed, because tensors may die after everything else.
Storages& storages();

// Its bytes are a ref's from now on.
void become_ref(Storage& storage, RefHandle ref);
// Its bytes are gone. failure: of what was to make them, or none.
void lose(Storage& storage, std::shared_ptr<const Error> failure = {});

// A c10 storage on the device over it.
c10::Storage as_torch(const StoragePtr& storage);
// A tensor over a storage, of the back end `key`. Nothing is checked.
at::Tensor strided_tensor(c10::DispatchKey key, const c10::Storage& storage, at::ScalarType type,
                          at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset);
// A tensor of the device, contiguous from the storage's start.
at::Tensor dense_tensor(const StoragePtr& storage, at::ScalarType type, at::IntArrayRef sizes);
// Bytes of so many elements.
uint64_t dense_bytes(at::IntArrayRef sizes, at::ScalarType type);
// Precondition: tensor is of the device.
StoragePtr storage_of(const at::Tensor& tensor);
StoragePtr storage_of(const c10::Storage& storage);

// There is one device, number 0. Throws a ValueError for another's number; -1: the current one.
void check_index(c10::DeviceIndex index);

inline constexpr c10::DeviceType kDeviceType = c10::DeviceType::PrivateUse1;
[[nodiscard]] inline bool is_ours(const at::Tensor& tensor) {
  return tensor.device().type() == kDeviceType;
}

}  // namespace djinn::device
