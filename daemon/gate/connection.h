// SPDX-License-Identifier: Apache-2.0

// Connection: one far client's, on a stream that is as trusted as it will be: calls of gate.capnp,
// with sessions of a djinnd.
#pragma once

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>

#include "daemon/gate/sessions_of.h"
#include "ipc/rpc/framed_stream.h"
#include "ipc/rpc/gate.capnp.h"

namespace djinn::gate {

class Connection {
 public:
  Connection(kj::AsyncIoContext& io, kj::Own<kj::AsyncIoStream> stream, const SessionsOf& whose);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Until the client ends it, or falls silent. Throws what the stream throws.
  kj::Promise<void> ends();

 private:
  kj::Own<kj::AsyncIoStream> stream_;
  rpc::Silence silence_;
  rpc::FramedStream messages_;
  capnp::TwoPartyVatNetwork network_;
  capnp::RpcSystem<capnp::rpc::twoparty::VatId> system_;
};

}  // namespace djinn::gate
