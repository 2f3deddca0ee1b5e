// SPDX-License-Identifier: Apache-2.0

// Turns: whose messages are heard next, so that nobody's flood keeps another user waiting.
//
//   turn      what is heard between two looks at descriptors
//   share     what one user may take of a turn: messages, bytes, time
//   speaker   a connection; it is heard for one message, and then stands behind its user's others
//
// invariant: in each turn every user who waits is heard, for at least one message and at most a
// share and the message that went over it. What is left waits, in its order, for the next.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>

#include "kernel/base/clock.h"

namespace djinn::daemon {

struct Share {
  uint32_t messages = 16;
  uint64_t bytes = uint64_t{256} << 10;
  uint64_t ns = 1'000'000;
};

class Turns {
 public:
  // Hears one message and gives its bytes; 0 if there is none.
  using Hear = std::function<size_t()>;
  struct Speaker {
    uid_t user;
    Hear hear;
    bool waits = false;
  };

  explicit Turns(const Clock& clock, Share share = {}) : clock_(clock), share_(share) {}

  // The speaker has something to say. It is forgotten when its owner lets go of it.
  void note(const std::shared_ptr<Speaker>& speaker);
  // One turn.
  void take();

 private:
  using Queue = std::deque<std::weak_ptr<Speaker>>;
  void hear(Queue& queue);

  const Clock& clock_;
  Share share_;
  std::map<uid_t, Queue> waiting_;
};

}  // namespace djinn::daemon
