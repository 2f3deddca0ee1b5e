// SPDX-License-Identifier: Apache-2.0

// LoadQueue: all loads, from the turn of their user to the last byte that they hold.
//
//   turn       whose files a load reads, and for what; loads of one turn wait for one another
//   queued     not begun, since enough of its turn run
//   running    begun, and its loader is not gone
//   look       one a second, at each load: what djinnd itself sleeps through counts as one
//   abandoned  what a load that failed was to fill, until its loader has it no more
//   left       what a model held that is gone, for killed loaders that still map it
//
// invariant: of each turn at most kLoadsPerUser run.
// invariant: a queued load is begun when one of its turn is gone.
// invariant: what a load holds counts as its own until its loader is gone, or was killed and has
// had the pages taken back.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "daemon/djinnd/loop/id_source.h"
#include "daemon/djinnd/memory/devices.h"
#include "daemon/djinnd/models/load.h"
#include "daemon/djinnd/models/model.h"
#include "kernel/base/owner.h"

namespace djinn::daemon {

class LoadQueue final : private Load::Holder {
 public:
  // Loads of one user's files at a time, and as many returns, so that files that never answer cost
  // others no process.
  static constexpr size_t kLoadsPerUser = 4;

  struct Turn {
    Owner user;
    bool returns = false;
    friend bool operator==(const Turn&, const Turn&) = default;
  };

  LoadQueue(Loop& loop, IdSource& ids, SparePool& loaders, const Devices& devices);

  // A load of these files to the device, which begins at its turn; where loaders fail already it
  // fails soon. The listener is not called from within.
  LoadId add(std::vector<SharedFd> files, DeviceId device, Turn turn, LoadListener& listener);
  // Null once its loader is gone.
  [[nodiscard]] Load* find(LoadId id);
  // Nothing where it is gone.
  void abort(LoadId id);
  // Whether loaders start. Errors: why not.
  [[nodiscard]] Status check_loaders() const;
  // None can be started: nobody is kept waiting for one.
  void refuse_waiting();

  // --- memory
  // For what the load has planned. Calls back at once or later, and not if the load has ended
  // meanwhile. Errors: those of Memory::request.
  void request_memory(const Load& load, uint64_t bytes, Memory::Granted granted);
  // Whether what the model is loaded with does.
  [[nodiscard]] bool waits_for_memory(const Model& model) const;
  // What the load was granted is the model's from now on.
  void hand_over(const Load& load, ModelId model);
  // For what the load was granted. made: called at once or later, and not if the load has ended
  // meanwhile. Errors: those of ExtentSource::create, kLimitExceeded where few descriptors are
  // left.
  using Made = std::function<void(Result<std::vector<Fd>>)>;
  void make_extents(const Load& load, const std::vector<uint64_t>& sizes, Made made);
  // Nobody writes the model's extents from now on. Errors: those of ExtentSource::seal.
  Status seal(const Model& model);
  // The model's load has failed: the loader may still map the extents.
  void abandon(Model& model);
  // Killed loaders that are not gone keep what the model held: the first, then the next. Not none.
  void leave_to(std::set<LoadId> loads, const Model& model);
  // Of the device that comes free by itself.
  [[nodiscard]] uint64_t leaving_bytes(DeviceId device) const;

  // --- what loaders have read, in all
  void count(const ipc::Loaded& loaded);
  [[nodiscard]] uint64_t bytes_read() const { return bytes_read_; }
  [[nodiscard]] uint64_t buffered_reads() const { return buffered_reads_; }

 private:
  friend struct DaemonForTests;

  struct Entry {
    std::unique_ptr<Load> load;
    DeviceId device;  // that it loads to
    Turn turn;
    bool running = false;
  };
  struct Abandoned {
    DeviceId device;
    std::vector<Fd> extents;
    uint32_t looks = 0;
    bool freeing = false;
  };
  // Memory of a model that left.
  struct Left {
    DeviceId device;
    std::set<LoadId> others;  // that map it, beside the one that holds it
  };

  void load_ended(LoadId id) override;
  void start_loads();
  [[nodiscard]] size_t running_of(const Turn& turn) const;
  void look();
  void look_again_soon();
  // Whether it is for its files to go on.
  [[nodiscard]] static bool is_on_files(const Entry& entry);
  // The load is gone; of what it held others may be left.
  void pass_on(LoadId id);
  // Likewise; nobody maps what it abandoned.
  void free_abandoned(LoadId id, DeviceId device);
  void release(LoadId id, DeviceId device);
  // From a loader that was killed and does not end, since its files say nothing: the kernel lets
  // it run no more, so nobody misses the pages.
  void take_memory_back(LoadId id, Abandoned& abandoned);

  Loop& loop_;
  IdSource& ids_;
  SparePool& loaders_;
  const Devices& devices_;
  std::map<LoadId, Entry> loads_;
  std::vector<LoadId> queued_;  // in the order in which they came
  std::map<LoadId, Abandoned> abandoned_;
  std::map<LoadId, Left> left_to_;  // by the loader that holds it
  Timer looks_;
  uint64_t bytes_read_ = 0;
  uint64_t buffered_reads_ = 0;
};

}  // namespace djinn::daemon
