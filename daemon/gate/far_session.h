// SPDX-License-Identifier: Apache-2.0

// FarSession: djinnd's side of a remote session. To djinnd it is a client like any: it has a
// control socket, session memory and bells. What the near side sends it puts there, in the same
// places, and what the worker publishes it carries back (ipc/rpc/gate.capnp).
//
// invariant: completions keep their slots until the near side has them, so a client that does not
// take its completions holds up its own session alone, and nothing here grows meanwhile.
// All on the thread of one KJ loop. Throws kj::Exception; the session ends with it.
#pragma once

#include <kj/async-unix.h>

#include <map>
#include <span>
#include <string>
#include <vector>

#include "daemon/gate/far_memory.h"
#include "daemon/gate/payloads.h"
#include "ipc/messages.h"
#include "ipc/rpc/datagrams.h"
#include "ipc/rpc/gate.capnp.h"

namespace djinn::gate {

class FarSession final : public rpc::Session::Server {
 public:
  struct Opened {
    std::vector<std::byte> answer;
    kj::Maybe<kj::Own<FarSession>> session;  // if the answer is a Welcome
  };
  // socket: connected to djinnd. hello: an encoded ClientRequest. principal: whose the session is,
  // or empty; what Hello says of that is the near side's word, and refused.
  static kj::Promise<Opened> open(kj::UnixEventPort& port, Fd socket,
                                  std::span<const std::byte> hello, const std::string& principal,
                                  rpc::Near::Client near);

  FarSession(kj::UnixEventPort& port, kj::Own<rpc::Datagrams> control, rpc::Near::Client near);

 protected:
  kj::Promise<void> addPayload(AddPayloadContext context) override;
  kj::Promise<void> ask(AskContext context) override;
  kj::Promise<void> stage(StageContext context) override;
  kj::Promise<void> submit(SubmitContext context) override;
  kj::Promise<void> cancel(CancelContext context) override;
  kj::Promise<void> state(StateContext context) override;

 private:
  using Answer = std::vector<std::byte>;

  void attach(const ipc::Welcome& welcome, std::vector<Fd> fds);
  kj::Promise<void> read_answers();
  kj::Promise<void> take(Answer bytes);
  FarMemory& memory();
  void end(kj::Exception&& why);

  kj::UnixEventPort& port_;
  kj::Own<rpc::Datagrams> control_;
  rpc::Near::Client near_;
  Payloads payloads_;
  kj::Maybe<kj::Own<FarMemory>> memory_;
  std::map<uint32_t, kj::Own<kj::PromiseFulfiller<Answer>>> asked_;
  kj::Maybe<kj::Exception> ended_;
  kj::Promise<void> reads_ = nullptr;
};

}  // namespace djinn::gate
