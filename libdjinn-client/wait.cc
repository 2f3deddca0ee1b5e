// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/wait.h"

#include <errno.h>

#include <algorithm>
#include <array>

namespace djinn::client {
namespace {

constexpr size_t kEntriesMax = 2;

int timeout_ms(const Interrupt* interrupt, const Deadline* deadline) {
  if (deadline != nullptr) return deadline->slice_ms();
  return interrupt != nullptr && interrupt->must_ask() ? static_cast<int>(kAskMs) : -1;
}

}  // namespace

Status wait_for(std::span<pollfd> entries, Interrupt* interrupt, const Deadline* deadline) {
  DJINN_ASSERT(entries.size() <= kEntriesMax);
  std::array<pollfd, kEntriesMax + 1> all;
  std::ranges::copy(entries, all.begin());
  pollfd& bell = all[entries.size()];
  bell = {interrupt != nullptr ? interrupt->fd() : -1, POLLIN, 0};
  for (;;) {
    if (interrupt != nullptr && interrupt->is_raised()) {
      return Error{ErrorCode::kCancelled, "The call was cancelled while it waited."};
    }
    const int ready = ::poll(all.data(), entries.size() + 1, timeout_ms(interrupt, deadline));
    if (ready < 0 && errno != EINTR) return system_error("wait for djinnd", errno);
    if (ready > 0 && bell.revents != 0) interrupt->take();
    if (ready > 0 && (bell.revents == 0 || ready > 1)) {
      for (size_t i = 0; i < entries.size(); ++i) entries[i].revents = all[i].revents;
      return {};
    }
    if (interrupt != nullptr) interrupt->ask();
    if (deadline != nullptr) DJINN_CHECK(deadline->check());
  }
}

}  // namespace djinn::client
