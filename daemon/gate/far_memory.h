// SPDX-License-Identifier: Apache-2.0

// FarMemory: the far session memory of a remote session, and the client's ends of its rings.
//
// invariant: completions keep their slots until the near side has them, so a client that does not
// take its completions holds up its own session alone, and nothing here grows meanwhile.
#pragma once

#include <kj/async-unix.h>
#include <kj/async.h>
#include <kj/function.h>

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "ipc/ring.h"
#include "ipc/rpc/gate.capnp.h"
#include "ipc/rpc/mirrored_memory.h"
#include "ipc/rpc/pieces.h"
#include "kernel/base/clock.h"

namespace djinn::gate {

class FarMemory : private kj::TaskSet::ErrorHandler {
 public:
  // bell, listener: the client's ends, as Welcome has them. on_end: hears what ended it, and
  // perhaps what came of that.
  FarMemory(kj::UnixEventPort& port, rpc::MirroredMemory memory, Fd bell, Fd listener,
            rpc::Near::Client near, kj::Function<void(kj::Exception&&)> on_end);

  // The calls of rpc::Session of these names. They throw kj::Exception.
  void stage(rpc::Piece::Reader piece) { rpc::put(memory_, piece); }
  void submit(rpc::Session::SubmitParams::Reader params);
  void cancel_through(uint64_t run);
  void state(capnp::List<uint64_t>::Reader words);

 private:
  struct Open {
    uint64_t index = 0;
    uint64_t run = 0;
    std::vector<ipc::StagingRange> written;
  };
  // Completions that travel together, with what their runs have written.
  struct Batch {
    uint64_t first = 0;
    std::vector<ipc::Completion> completions;
    std::vector<ipc::StagingRange> written;
    std::vector<std::pair<uint64_t, std::string>> texts;
  };

  kj::Promise<void> listen();
  // Carries over what is published, and ends when there is nothing more and the worker will ring.
  kj::Promise<void> drain();
  Batch collect();
  void note_done(Batch& batch, const ipc::Completion& completion);
  void send(const Batch& batch);
  void consume_through(uint64_t index);
  void taskFailed(kj::Exception&& exception) override { on_end_(kj::mv(exception)); }

  rpc::MirroredMemory memory_;
  ipc::ClientRing ring_;
  Fd bell_;
  Fd listener_;
  kj::UnixEventPort::FdObserver listens_;
  rpc::Near::Client near_;
  kj::Function<void(kj::Exception&&)> on_end_;
  SystemClock clock_;
  uint64_t submitted_ = 0;
  uint64_t seen_ = 0;     // completions before this were sent
  size_t in_flight_ = 0;  // messages with completions that were not answered
  uint64_t in_flight_bytes_ = 0;
  kj::Maybe<kj::Own<kj::PromiseFulfiller<void>>> waits_for_room_;
  std::deque<Open> open_;
  kj::TaskSet tasks_;
};

}  // namespace djinn::gate
