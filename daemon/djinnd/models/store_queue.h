// SPDX-License-Identifier: Apache-2.0

// StoreQueue: the store of models (daemon/store), whose calls wait for the disk, on a thread of its
// own. It is opened when it is first needed: of two djinnds with one state directory the second has
// none, and says so to who needs it.
//
//   work    done on the thread with the store, which it may have to itself
//   then    called on the loop with what the work gave, or with why there is no store
//
// invariant: as WorkQueue's.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "daemon/djinnd/loop/loop.h"
#include "daemon/djinnd/loop/work_queue.h"
#include "daemon/store/store.h"
#include "kernel/base/clock.h"
#include "kernel/base/result.h"

namespace djinn::daemon {

class StoreQueue {
 public:
  // place: the store's folder; empty: there is no state directory for it.
  StoreQueue(Loop& loop, std::string place)
      : loop_(loop), state_(std::make_shared<State>(std::move(place))) {}

  // work: Result<T>(store::Store&) or Status(store::Store&); then: void with the same.
  template <typename Work, typename Then>
  void run(Work work, Then then) {
    using Given = decltype(work(std::declval<store::Store&>()));
    queue().run(
        [state = state_, work = std::move(work)]() mutable -> Given {
          const Status opened = state->open();
          if (!opened) return opened.error();
          return work(*state->store);
        },
        std::move(then));
  }

  // What no name needs, and nobody holds once what was called back is done, is removed, if a store
  // is open.
  void collect();
  // A file that may have no name: its blocks are freed then.
  void close(Fd file) { queue().close(std::move(file)); }

 private:
  // Of the thread alone, which may be left behind.
  struct State {
    explicit State(std::string where) : place(std::move(where)) {}
    // Errors: those of Store::open(), kUnsupported where there is no place.
    Status open();

    std::string place;
    store::BlobDisk disk;
    SystemClock clock;
    std::optional<store::Store> store;
  };
  static void collect(store::Store& store);
  WorkQueue& queue();

  Loop& loop_;
  std::shared_ptr<State> state_;
  std::unique_ptr<WorkQueue> queue_;  // from the first call on
};

}  // namespace djinn::daemon
