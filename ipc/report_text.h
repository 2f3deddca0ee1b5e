// SPDX-License-Identifier: Apache-2.0

// The words for what reports say: djinnctl, its JSON and D-Bus use the same. Closed lists.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ipc/messages.h"

namespace djinn::ipc {

[[nodiscard]] std::string_view state_text(ModelState state);
[[nodiscard]] std::string_view state_text(WorkerState state);
[[nodiscard]] std::string_view state_text(SessionState state);
[[nodiscard]] std::string_view state_text(ProgramState state);
[[nodiscard]] std::string_view state_text(DeviceState state);
// "other" for a graph that shows no sign of any.
[[nodiscard]] std::string_view workload_text(Workload workload);
// "-" for what waits for nothing.
[[nodiscard]] std::string_view wait_text(SessionWait wait);
// "0", "1", "2", or "-" where nothing was computed yet.
[[nodiscard]] std::string_view tier_text(RunTier tier);
[[nodiscard]] std::string_view pool_text(MemoryPool pool);

// The GPUs that have a copy of the model, like "cuda:0".
[[nodiscard]] std::vector<std::string> copies_of(const ModelReport& model);

// The numerics that were said of the model; empty where none were.
[[nodiscard]] std::string_view numerics_text(const ModelReport& model);

// What ends a model's stay: "unload" of a pinned one, "close" of the last session that holds it,
// "expiry" of its keep-alive time, or, of one that is kept for ever, "pressure" on memory.
// "leaving": its stay has ended.
[[nodiscard]] std::string_view until_text(const ModelReport& model);

}  // namespace djinn::ipc
