// SPDX-License-Identifier: Apache-2.0

// Silence: how either side of a connection finds out that the other one is gone, where nothing
// closes: a machine without power, a network that drops what is sent.
#pragma once

#include <kj/async.h>
#include <kj/timer.h>

namespace djinn::rpc {

// The near side asks so often whether somebody is there.
inline constexpr kj::Duration kPingEvery = 5 * kj::SECONDS;
// For the near side: three of them were lost. A program waits no longer for what will not come.
inline constexpr kj::Duration kSilentForNear = 15 * kj::SECONDS;
// For the far side, where nobody waits: memory is held for no longer.
inline constexpr kj::Duration kSilentForFar = 60 * kj::SECONDS;

class Silence {
 public:
  Silence(kj::Timer& timer, kj::Duration most) : timer_(timer), most_(most), heard_(timer.now()) {}

  void heard() { heard_ = timer_.now(); }
  // Ends when nothing was heard for as long as is allowed.
  kj::Promise<void> lasts();

 private:
  kj::Timer& timer_;
  kj::Duration most_;
  kj::TimePoint heard_;
};

}  // namespace djinn::rpc
