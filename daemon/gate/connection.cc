// SPDX-License-Identifier: Apache-2.0

#include "daemon/gate/connection.h"

#include "daemon/gate/gate.h"

namespace djinn::gate {

Connection::Connection(kj::AsyncIoContext& io, kj::Own<kj::AsyncIoStream> stream,
                       const SessionsOf& whose)
    : stream_(kj::mv(stream)),
      silence_(io.provider->getTimer(), rpc::kSilentForFar),
      messages_(*stream_, silence_),
      network_(messages_, capnp::rpc::twoparty::Side::SERVER),
      system_(capnp::makeRpcServer(
          network_, rpc::Gate::Client(kj::heap<GateServer>(io.unixEventPort, whose)))) {}

kj::Promise<void> Connection::ends() {
  return network_.onDisconnect().exclusiveJoin(silence_.lasts());
}

}  // namespace djinn::gate
