// SPDX-License-Identifier: Apache-2.0

// NearMemory: the near session memory of a remote session, and the worker's ends of its rings. What
// the program publishes goes to the far side, and what comes from there the program finds here.
//
// invariant: a submission's slot and staging stay the far worker's until its completion is here, as
// a worker's would.
// All on the thread of one KJ loop.
#pragma once

#include <kj/async-unix.h>
#include <kj/async.h>
#include <kj/function.h>

#include <deque>
#include <span>
#include <vector>

#include "ipc/bell.h"
#include "ipc/ring.h"
#include "ipc/rpc/gate.capnp.h"
#include "ipc/rpc/mirrored_memory.h"
#include "ipc/rpc/pieces.h"
#include "kernel/base/clock.h"

namespace djinn::reach {

// A call of Near.complete.
using Completing = capnp::CallContext<rpc::Near::CompleteParams, rpc::Near::CompleteResults>;

class NearMemory : private kj::TaskSet::ErrorHandler {
 public:
  // bell: the submission bell. listener's other end, completions, is rung here.
  // on_end: hears what ended it, and perhaps what came of
  // that.
  NearMemory(kj::UnixEventPort& port, rpc::MirroredMemory memory, Fd bell, Fd completions,
             rpc::Session::Client far, kj::Function<void(kj::Exception&&)> on_end);

  // The calls of rpc::Near of these names. They throw kj::Exception.
  void stage(rpc::Piece::Reader piece) { rpc::put(memory_, piece); }
  // Ends when all of them are in the program's ring.
  kj::Promise<void> complete(Completing context);

 private:
  kj::Promise<void> listen();
  // Carries over what is published, and ends when there is nothing more and the program will ring.
  kj::Promise<void> pump();
  kj::Promise<void> submit(uint64_t index);
  kj::Promise<void> submit_with(uint64_t index, const ipc::Submission& submission,
                                std::span<const ipc::StagingRange> pieces);
  kj::Promise<void> tell_changes();
  kj::Promise<void> put(rpc::Near::CompleteParams::Reader params, size_t from);
  void taskFailed(kj::Exception&& exception) override { on_end_(kj::mv(exception)); }

  rpc::MirroredMemory memory_;
  ipc::WorkerRing ring_;
  Fd bell_;
  Fd completions_;
  kj::UnixEventPort::FdObserver rings_;
  rpc::Session::Client far_;
  kj::Function<void(kj::Exception&&)> on_end_;
  SystemClock clock_;
  uint64_t carried_ = 0;  // submissions before this are on their way
  uint64_t cancelled_ = 0;
  ipc::ClientStatement stated_;
  std::deque<uint64_t> open_;  // the runs of submissions that are not complete
  kj::Maybe<kj::Own<kj::PromiseFulfiller<void>>> waits_for_room_;
  kj::Promise<void> last_put_ = kj::READY_NOW;
  bool pumps_ = false;
  kj::TaskSet tasks_;
};

}  // namespace djinn::reach
