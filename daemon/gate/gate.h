// SPDX-License-Identifier: Apache-2.0

// GateServer: what a far client asks first: sessions of a djinnd.
#pragma once

#include <kj/async-unix.h>

#include <utility>

#include "daemon/gate/sessions_of.h"
#include "ipc/rpc/gate.capnp.h"

namespace djinn::gate {

class GateServer final : public rpc::Gate::Server {
 public:
  GateServer(kj::UnixEventPort& port, SessionsOf whose) : port_(port), whose_(std::move(whose)) {}

 protected:
  kj::Promise<void> open(OpenContext context) override;
  kj::Promise<void> ping(PingContext) override { return kj::READY_NOW; }

 private:
  kj::UnixEventPort& port_;
  SessionsOf whose_;
};

}  // namespace djinn::gate
