// SPDX-License-Identifier: Apache-2.0

// GateServer: what a far client asks first: sessions of the djinnd that listens at a path.
#pragma once

#include <kj/async-unix.h>

#include <string>

#include "ipc/rpc/gate.capnp.h"

namespace djinn::gate {

class GateServer final : public rpc::Gate::Server {
 public:
  GateServer(kj::UnixEventPort& port, std::string path) : port_(port), path_(std::move(path)) {}

 protected:
  kj::Promise<void> open(OpenContext context) override;
  kj::Promise<void> ping(PingContext) override { return kj::READY_NOW; }

 private:
  kj::UnixEventPort& port_;
  std::string path_;
};

}  // namespace djinn::gate
