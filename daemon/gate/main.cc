// SPDX-License-Identifier: Apache-2.0

// djinn-gate: the far side of remote sessions.
//
//   djinn-gate --stdio [--host unix:PATH]
//
// It serves whoever started it, through its standard input and output, until that ends or falls
// silent: its sessions are this user's. Over ssh, djinn-reach starts it.

#include <capnp/rpc-twoparty.h>
#include <fmt/format.h>
#include <kj/async-io.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "daemon/gate/gate.h"
#include "ipc/rpc/duplex.h"
#include "ipc/rpc/fault.h"
#include "ipc/rpc/framed_stream.h"
#include "libdjinn-client/host.h"

namespace djinn::gate {
namespace {

Status serve(const std::string& host) {
  DJINN_TRY(const client::Host resolved, client::resolve_host(host));
  if (resolved.kind != client::HostKind::kUnix) {
    return Error{ErrorCode::kInvalidArgument,
                 "djinn-gate serves a djinnd of its own host: give --host unix:PATH."};
  }
  try {
    auto io = kj::setupAsyncIo();
    rpc::Duplex stream(io.lowLevelProvider->wrapInputFd(STDIN_FILENO),
                       io.lowLevelProvider->wrapOutputFd(STDOUT_FILENO));
    rpc::Silence silence(io.provider->getTimer(), rpc::kSilentForFar);
    rpc::FramedStream messages(stream, silence);
    capnp::TwoPartyVatNetwork network(messages, capnp::rpc::twoparty::Side::SERVER);
    rpc::Gate::Client gate = kj::heap<GateServer>(io.unixEventPort, resolved.path);
    auto system = capnp::makeRpcServer(network, kj::mv(gate));
    network.onDisconnect().exclusiveJoin(silence.lasts()).wait(io.waitScope);
    return {};
  } catch (const kj::Exception& exception) {
    return rpc::to_error(exception);
  }
}

}  // namespace
}  // namespace djinn::gate

int main(int argc, char** argv) {
  bool stdio = false;
  std::string host;
  CLI::App app("djinn-gate: remote sessions of a djinnd");
  app.set_version_flag("--version", DJINN_VERSION);
  app.add_flag("--stdio", stdio, "serve who started it, by standard input and output")->required();
  app.add_option("--host", host, "where djinnd listens, as unix:PATH");
  CLI11_PARSE(app, argc, argv);
  const djinn::Status served = djinn::gate::serve(host);
  if (served) return 0;
  fmt::print(stderr, "djinn-gate: {}\n", served.error().message);
  return 1;
}
