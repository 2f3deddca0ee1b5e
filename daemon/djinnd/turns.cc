// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/turns.h"

namespace djinn::daemon {

void Turns::note(const std::shared_ptr<Speaker>& speaker) {
  if (speaker->waits) return;
  speaker->waits = true;
  waiting_[speaker->user].push_back(speaker);
}

void Turns::take() {
  if (waiting_.empty()) return;
  for (auto& [user, queue] : waiting_) hear(queue);
  std::erase_if(waiting_, [](const auto& entry) { return entry.second.empty(); });
}

void Turns::hear(Queue& queue) {
  const uint64_t until_ns = clock_.monotonic_ns() + share_.ns;
  uint32_t messages = 0;
  uint64_t bytes = 0;
  while (!queue.empty()) {
    const auto speaker = queue.front().lock();
    queue.pop_front();
    const size_t heard = speaker ? speaker->hear() : 0;
    if (speaker) speaker->waits = heard > 0;
    if (heard == 0) continue;
    queue.push_back(speaker);  // it may have more
    ++messages;
    bytes += heard;
    const bool over = messages >= share_.messages || bytes >= share_.bytes;
    if (over || clock_.monotonic_ns() >= until_ns) return;
  }
}

}  // namespace djinn::daemon
