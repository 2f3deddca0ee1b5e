// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/models/store_queue.h"

#include <filesystem>
#include <system_error>

#include "daemon/djinnd/loop/log.h"
#include "kernel/base/size_text.h"

namespace djinn::daemon {

Status StoreQueue::State::open() {
  if (store) return {};
  if (place.empty()) {
    return Error{ErrorCode::kUnsupported,
                 "djinnd has no state directory, and so no store of models. Its service has one by "
                 "StateDirectory=; with --user, set HOME or XDG_STATE_HOME."};
  }
  // The store makes its own folder; who is asked for a user's may have none of those above it.
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(place).parent_path(), error);
  if (error) return system_error("make the folder of the store of models", error.value());
  DJINN_TRY(store::Store opened, store::Store::open(disk, clock, place));
  store.emplace(std::move(opened));
  collect(*store);  // who had it before may have died in the middle of an import
  return {};
}

// While a record is damaged nothing is removed, and everything else goes on.
void StoreQueue::collect(store::Store& store) {
  const auto collected = store.collect(0);
  if (!collected) return log("the store of models: {}", collected.error().message);
  if (collected->blobs == 0) return;
  log("the store of models: {} that no name needs, {}, removed",
      count_text(collected->blobs, "file"), size_text(collected->bytes));
}

// Work that is done already may hold something until the loop has heard of it.
void StoreQueue::collect() {
  const auto nothing = [](bool /*done*/) {};
  const auto work = [state = state_] {
    if (state->store) collect(*state->store);
    return true;
  };
  queue().run([] { return true; },
              [this, work, nothing](bool /*done*/) { queue().run(work, nothing); });
}

WorkQueue& StoreQueue::queue() {
  if (queue_ == nullptr) queue_ = std::make_unique<WorkQueue>(loop_, "store");
  return *queue_;
}

}  // namespace djinn::daemon
