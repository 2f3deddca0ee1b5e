// SPDX-License-Identifier: Apache-2.0

// Turns: whose messages are heard next, so that nobody's flood keeps another user waiting.
//
//   turn      what is heard between two looks at descriptors
//   share     what one user may take of a turn: messages, bytes, time
//   owed      work that messages left behind until something was there: an answer
//   speaker   a connection; it is heard for one message, and then stands behind its user's others
//   rest      of a user who has taken more of the loop's processor time than is theirs: until time
//             has made up for it. Their senders sleep meanwhile, and leave the processors to
//             others. While the loop sleeps for a message, as for pages that the kernel has swapped
//             out, nobody is charged: no message waits for what a client can hold up, and who has
//             the memory of the machine is not theirs to say.
//
// invariant: in each turn every user who waits and does not rest is heard, for at least one message
// and at most a share and the message that went over it. What is left waits, in its order, for the
// next. Who rests is not listened to, so the loop sleeps as well.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "kernel/base/assert.h"
#include "kernel/base/clock.h"
#include "kernel/base/owner.h"

namespace djinn::daemon {

struct Share {
  uint32_t messages = 16;
  uint64_t bytes = uint64_t{256} << 10;
  uint64_t ns = 1'000'000;
  // Over many turns: one part in so many of the time, after what is saved up while silent. Taken is
  // processor time: where others keep the processors busy, it is not the user's doing.
  uint32_t one_in = 4;
  uint64_t saved_ns = 10'000'000;
  uint64_t rest_ns = 1'000'000'000;  // the longest: some hypervisors count what they took as ours
};

class Turns {
 public:
  // Hears one message and gives its bytes; 0 if there is none.
  using Hear = std::function<size_t()>;
  struct Speaker {
    Owner user;
    Hear hear;
    // Called when `rests` has changed.
    std::function<void()> rest_changed;
    bool waits = false;
    bool rests = false;  // note() is not to be called when it has something to say
  };

  explicit Turns(const Clock& clock, Share share = {}) : clock_(clock), share_(share) {
    DJINN_ASSERT(share_.messages > 0 && share_.bytes > 0 && share_.ns > 0 && share_.one_in > 0);
  }

  // The speaker has something to say. It is forgotten when its owner lets go of it.
  void note(const std::shared_ptr<Speaker>& speaker);
  // What the user's messages waited for is there: the rest of the work is done in their turns,
  // before they are heard again. Many may have waited for one thing.
  void owe(Owner user, std::function<void()> work);
  // Called whenever something is owed: a turn is due, though no descriptor may become ready.
  void on_owed(std::function<void()> due) { due_ = std::move(due); }
  [[nodiscard]] size_t owed_to(Owner user) const;
  // What is done for a user outside of a turn is of their time, too: while this lives.
  class Bill {
   public:
    Bill(Turns& turns, Owner user);
    ~Bill();
    Bill(const Bill&) = delete;
    Bill& operator=(const Bill&) = delete;

   private:
    Turns& turns_;
    const Owner user_;
    const uint64_t cpu_began_ns_;
  };
  // One turn. Gives in how many ns another is due although nobody is noted; nothing if none is.
  std::optional<uint64_t> take();

 private:
  struct User {
    std::deque<std::function<void()>> owed;
    std::deque<std::weak_ptr<Speaker>> waiting;
    [[nodiscard]] bool waits() const { return !owed.empty() || !waiting.empty(); }
    uint64_t even_ns = 0;  // when time will have made up for what was taken
  };
  void serve(User& user);
  // Does what is owed first, or hears who waits first. Gives its bytes; 0 if there was nothing.
  static size_t serve_one(User& user);
  // Charges the user for the processor time that was taken since.
  void charge(User& user, uint64_t cpu_began_ns) const;
  [[nodiscard]] uint64_t rest_of(const User& user, uint64_t now_ns) const;  // ns

  const Clock& clock_;
  Share share_;
  std::function<void()> due_ = [] {};
  std::map<Owner, User> users_;
};

}  // namespace djinn::daemon
