// SPDX-License-Identifier: Apache-2.0

// NearSession: a program's side of a remote session. To the program it is djinnd: it has the other
// end of its control socket, and makes its session memory and bells (near_memory.h). What djinnd
// would get descriptors of it reads, and sends.
//
// All on the thread of one KJ loop.
#pragma once

#include <kj/async-unix.h>
#include <kj/async.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ipc/messages.h"
#include "ipc/rpc/datagrams.h"
#include "ipc/rpc/gate.capnp.h"
#include "libdjinn-client/reach/near_memory.h"

namespace djinn::reach {

class NearSession : private kj::TaskSet::ErrorHandler {
 public:
  // socket: the program's. gate: where the session is to be. explain: what the program is told
  // where the session could not begin.
  NearSession(kj::UnixEventPort& port, Fd socket, rpc::Gate::Client gate,
              kj::Function<kj::Promise<Error>(const Error&)> explain);
  ~NearSession();

  // Serves the program until it closes the socket, the far side ends the session, or lost fails,
  // which is told if the program reads. Never throws.
  kj::Promise<void> run(kj::Promise<void> lost);

 private:
  class Callbacks;
  // A request on its way.
  struct Forwarded {
    ipc::Datagram datagram;
    Status read;  // of its files
  };

  kj::Promise<void> begin(ipc::Datagram&& hello);
  // The answer to the Hello, or a notice behind that. A Hello that is on its way is waited for: who
  // finds the socket closed asks no more why.
  kj::Promise<void> tell_last(const Error& why);
  kj::Promise<void> welcome(const ipc::Welcome& welcome, uint32_t number);
  kj::Promise<void> serve();
  // Ends when the request is on its way.
  kj::Promise<void> forward(ipc::Datagram&& datagram);
  kj::Promise<void> send_payloads(Forwarded& one, size_t next, uint64_t offset);
  kj::Promise<void> ask(const std::vector<std::byte>& request, uint32_t number, size_t payloads);
  kj::Promise<void> answer(uint32_t number, decltype(ipc::DaemonReply::body) body,
                           std::vector<Fd> fds = {});
  rpc::Session::Client& far();
  void taskFailed(kj::Exception&& why) override;

  kj::UnixEventPort& port_;
  rpc::Datagrams program_;
  rpc::Gate::Client gate_;
  kj::Function<kj::Promise<Error>(const Error&)> explain_;
  Callbacks* callbacks_ = nullptr;  // lives as long as the far side has it
  kj::Maybe<rpc::Session::Client> far_;
  kj::Maybe<kj::Own<NearMemory>> memory_;
  bool is_greeted_ = false;
  uint64_t payloads_ = 0;  // that were named so far
  kj::Own<kj::PromiseFulfiller<void>> ended_;
  kj::Promise<void> end_ = nullptr;
  kj::TaskSet asked_;
  kj::Canceler called_;  // what the far side has called and is not done with; goes first
};

}  // namespace djinn::reach
