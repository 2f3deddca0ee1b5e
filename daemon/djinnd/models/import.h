// SPDX-License-Identifier: Apache-2.0

// Import: a user's files on their way into the store of models. A loader reads them, one after the
// other, and knows of the store no more than the file that it fills; djinnd asks no file system of
// the user's.
//
//   checking -> waiting      the name is free
//   waiting -> identifying   a loader was taken; it has the files
//   identifying -> placing   it told how large they are; the store finds room for one
//   placing -> copying       the loader fills it, hashes it, and has it on the disk
//   copying -> adding        it told the hash; the store takes the file in under it
//   adding -> placing        on to the next file
//   adding -> publishing     that was the last one
//   publishing -> ended      the name stands for the files
//   any -> ended             failed, or aborted
//
// A loader is not trusted with more than the file that it fills: what it says is its hash is what
// the user's model consists of.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/djinnd/memory/quantity.h"
#include "daemon/djinnd/models/store_queue.h"
#include "daemon/djinnd/workers/child_process.h"
#include "daemon/djinnd/workers/spare_pool.h"
#include "daemon/store/record.h"
#include "daemon/store/store.h"
#include "ipc/messages.h"
#include "kernel/base/fd.h"
#include "kernel/base/owned_state.h"

namespace djinn::daemon {

enum class ImportPhase : uint8_t {
  kChecking,
  kWaiting,
  kIdentifying,
  kPlacing,
  kCopying,
  kAdding,
  kPublishing,
  kEnded
};
[[nodiscard]] bool may_follow(ImportPhase from, ImportPhase to);

// What is to be imported.
struct ImportFiles {
  store::Record record;  // without files
  std::vector<SharedFd> files;
  std::vector<std::string> names;  // of each
  // What it has to leave of the disk; nothing: it is an administrator's, who may fill it and have
  // any number of names.
  std::optional<Amount> keep_free;
};

class Import {
 public:
  // Of who is no administrator: a sixteenth of all that the store may have.
  static constexpr size_t kNamesPerUser = store::kNamesMax / 16;

  // What came of it, once, unless it was aborted before: the record that was published.
  using Done = std::function<void(Result<store::Record>)>;
  // The loader is gone, or there was none: the import can be destroyed, and is not used any more.
  // Outside of every other function.
  using Gone = std::function<void()>;

  Import(Loop& loop, SparePool& loaders, StoreQueue& store, ImportFiles what, Done done, Gone gone);

  void start();
  // Kills its loader, and says why.
  void fail(const Error& error);
  // Nobody waits any more.
  void abort();
  [[nodiscard]] ImportPhase phase() const { return phase_; }

 private:
  // What is called back does nothing once the import has ended.
  template <typename Given>
  std::function<void(Result<Given>)> unless_ended(void (Import::*next)(Given));
  void take_loader();
  void adopt(ReadyChild child);
  void send_files();
  void heard(const ipc::Datagram& message);
  void on_loader_event(const ipc::LoaderEvent& event);
  void identified(const ipc::Identified& told);
  void place_next();
  void placed(std::shared_ptr<Fd> room);
  void taken_in(const ipc::TakenIn& told);
  void added(store::Held held);
  void publish();
  void end();
  void exited();
  [[nodiscard]] const std::string& name_now() const { return what_.names[record_.files.size()]; }

  Loop& loop_;
  SparePool& loaders_;
  StoreQueue& store_;
  ImportFiles what_;
  Done done_;
  Gone gone_;
  OwnedState<ImportPhase, Import> phase_;
  store::Record record_;           // with the files that are in the store already
  std::vector<uint64_t> bytes_;    // of all files, as the loader told
  std::vector<store::Held> held_;  // those files, until the name needs them
  std::shared_ptr<Fd> room_;       // that is being filled
  std::unique_ptr<ChildProcess> process_;
  std::shared_ptr<bool> wanted_ = std::make_shared<bool>(true);  // by who calls back
};

}  // namespace djinn::daemon
