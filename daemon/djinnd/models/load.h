// SPDX-License-Identifier: Apache-2.0

// Load: one loader process at work on the files of one model, from what they are to their hash.
//
//   waiting -> identifying    a loader was taken; it has the files
//   identifying -> deciding   it told what they are; the listener decides whether to read
//   deciding -> planning      it has the plan
//   deciding -> ended         the model is resident; the loader is a spare again
//   planning -> granting      it told how large the extents will be; the listener finds the memory
//   granting -> reading       it has the extents
//   granting -> comparing     it has those of a resident model; it may have seen another user's
//                             bytes then, and does nothing else after that
//   reading -> hashing        the bytes are there; it reads them once more, when nobody needs cores
//   hashing -> hashed         it told the hash, which it does once, and is about to exit
//   any -> ended              failed, aborted, or done: the process is gone
//
// A loader is not trusted: an event out of its turn is a failure.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "daemon/djinnd/workers/child_process.h"
#include "daemon/djinnd/workers/spare_pool.h"
#include "ipc/messages.h"
#include "kernel/base/fd.h"
#include "kernel/base/ids.h"
#include "kernel/base/owned_state.h"

namespace djinn::daemon {

enum class LoadPhase : uint8_t {
  kWaiting,
  kIdentifying,
  kDeciding,
  kPlanning,
  kGranting,
  kReading,
  kHashing,
  kHashed,
  kComparing,
  kEnded
};
[[nodiscard]] bool may_follow(LoadPhase from, LoadPhase to);

// What a load or an import ends with whose loader says what it may not.
[[nodiscard]] Error out_of_turn();

class Load;

// Whoever asked for a load: what becomes of it, in the order above.
class LoadListener {
 public:
  virtual ~LoadListener() = default;
  virtual void load_identified(Load& load, const ipc::Identified& files) = 0;
  virtual void load_planned(Load& load, const ipc::Planned& plan) = 0;
  virtual void load_progressed(Load& load, uint64_t bytes_read) = 0;
  // The manifest is the listener's to take.
  virtual void load_finished(Load& load, const ipc::Loaded& loaded, Fd& manifest) = 0;
  // Whether the files are those of the model that it was given, if it was given one.
  virtual void load_compared(Load&, bool /*same*/) {}
  virtual void load_hashed(Load& load, const ipc::Hashed& hashed) = 0;
  // Before the extents were finished. load_ended() follows.
  virtual void load_failed(Load& load, const Error& error) = 0;
  // A look at it (load_queue.h), before it has ended. on_files: it is for its files to go on.
  virtual void load_looked_at(Load& load, bool on_files) = 0;
  // The loader is gone, and with it all its mappings, or it never had one.
  virtual void load_ended(LoadId id) = 0;
};

class Load {
 public:
  class Holder {
   public:
    virtual ~Holder() = default;
    // Who tells the listener, and may destroy the load.
    virtual void load_ended(LoadId id) = 0;
  };

  Load(Loop& loop, SparePool& loaders, Holder& holder, LoadListener& listener, LoadId id,
       std::vector<SharedFd> files);

  // Takes a loader as soon as there is one.
  void start();
  // plan: sealed, or none.
  void plan(const SharedFd& plan_memfd);
  // hash_at_once: somebody waits for the hash.
  void read_into(const std::vector<Fd>& extents, bool hash_at_once);
  // The sealed manifest and extents of a resident model.
  void compare_with(const Fd& manifest, const std::vector<Fd>& extents);
  // Gives a loader that has told what the files are, and has read nothing, back to the pool; one
  // that might hang in closing them (deferred_close.h) is killed.
  // load_ended() follows, and no other event.
  void release();
  // Kills the loader. load_ended() follows, and no other event.
  void abort();
  // Kills it, and says why. load_failed() and load_ended() follow.
  void fail(const Error& error);
  // Has a loader go on that was stopped: for a moment, a client of whose file it takes a lease may
  // have the kernel signal it. Does nothing else.
  void go_on();

  // The files of the open request, which outlive the load if it becomes a model.
  std::vector<SharedFd> take_files() { return std::move(files_); }
  [[nodiscard]] LoadId id() const { return id_; }
  [[nodiscard]] LoadPhase phase() const { return phase_; }
  [[nodiscard]] LoadListener& listener() const { return listener_; }

 private:
  void adopt(ReadyChild child);
  void send(const ipc::LoaderCommand& command, std::vector<SharedFd> fds);
  void send_files();
  void heard(ipc::Datagram& message);
  void on_loader_event(const ipc::LoaderEvent& event, std::vector<Fd>& fds);
  void exited();
  // The extents are, and load_failed() is not to be called any more.
  [[nodiscard]] bool has_finished() const;

  Loop& loop_;
  SparePool& loaders_;
  Holder& holder_;
  LoadListener& listener_;
  LoadId id_;
  OwnedState<LoadPhase, Load> phase_;
  std::vector<SharedFd> files_;
  // A loader that is killed ends soon: it has no file, or it is known that their systems answer.
  bool ends_surely_ = false;
  std::unique_ptr<ChildProcess> process_;
  std::shared_ptr<bool> wanted_ = std::make_shared<bool>(true);  // for the pool's answer
};

}  // namespace djinn::daemon
