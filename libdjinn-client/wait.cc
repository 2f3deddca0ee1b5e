// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/wait.h"

#include <errno.h>

#include <algorithm>
#include <array>

#include "ipc/limits.h"

namespace djinn::client {
namespace {

constexpr size_t kEntriesMax = 2 * limits::kRows;  // two of each session of a call for rows

bool must_ask(const WaitEnds& ends) {
  return (ends.interrupt != nullptr && ends.interrupt->must_ask()) ||
         (ends.given_up != nullptr && *ends.given_up);
}

bool is_ended(const WaitEnds& ends) {
  return (ends.interrupt != nullptr && ends.interrupt->is_raised()) ||
         (ends.given_up != nullptr && *ends.given_up && (*ends.given_up)());
}

int timeout_ms(const WaitEnds& ends, const Deadline* deadline) {
  if (deadline != nullptr) return deadline->slice_ms();
  return must_ask(ends) ? static_cast<int>(kAskMs) : -1;
}

}  // namespace

Status wait_for(std::span<pollfd> entries, const WaitEnds& ends, const Deadline* deadline) {
  Interrupt* const interrupt = ends.interrupt;
  DJINN_ASSERT(entries.size() <= kEntriesMax);
  std::array<pollfd, kEntriesMax + 1> all;
  std::ranges::copy(entries, all.begin());
  pollfd& bell = all[entries.size()];
  bell = {interrupt != nullptr ? interrupt->fd() : -1, POLLIN, 0};
  for (;;) {
    if (is_ended(ends)) {
      return Error{ErrorCode::kCancelled, "The call was cancelled while it waited."};
    }
    const int ready = ::poll(all.data(), entries.size() + 1, timeout_ms(ends, deadline));
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
