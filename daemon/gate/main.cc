// SPDX-License-Identifier: Apache-2.0

// djinn-gate: the far side of remote sessions.
//
//   djinn-gate --stdio [--host unix:PATH]
//       serves whoever started it, through its standard input and output, until that ends or falls
//       silent: over ssh, djinn-reach starts it. To djinnd its sessions are its own user's
//   djinn-gate --listen ADDRESS --credentials DIR [--host unix:PATH] [--as-user]
//       serves, over TLS, whom the certificates in DIR vouch for; reads them anew at SIGHUP. To
//       djinnd its sessions are theirs whom it names, on gate.sock beside PATH; with --as-user they
//       are its own user's

#include <fmt/format.h>
#include <kj/async-io.h>
#include <kj/async-unix.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "daemon/gate/connection.h"
#include "daemon/gate/credentials.h"
#include "daemon/gate/listener.h"
#include "ipc/gate_port.h"
#include "ipc/rpc/duplex.h"
#include "ipc/rpc/fault.h"
#include "ipc/socket.h"
#include "libdjinn-client/host.h"

namespace djinn::gate {
namespace {

struct Options {
  bool stdio = false;
  bool as_user = false;
  std::string address, credentials, host;
};

// Whether somebody reads it decides nothing.
void log(const std::string& line) {
  const std::string text = "djinn-gate: " + line + '\n';
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

// Each session has descriptors of its own, and each file that a program opens.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  [[maybe_unused]] const int refused = ::setrlimit(RLIMIT_NOFILE, &limit);
}

void serve_starter(const std::string& djinnd) {
  ::signal(SIGHUP, SIG_IGN);  // its stream's end is its end
  auto io = kj::setupAsyncIo();
  auto stream = kj::heap<rpc::Duplex>(io.lowLevelProvider->wrapInputFd(STDIN_FILENO),
                                      io.lowLevelProvider->wrapOutputFd(STDOUT_FILENO));
  Connection(io, kj::mv(stream), {djinnd}).ends().wait(io.waitScope);
}

// A certificate that cannot be used now keeps the former one in place.
kj::Promise<void> reload(kj::UnixEventPort& port, Listener& listener,
                         const std::string& directory) {
  return port.onSignal(SIGHUP).then([&port, &listener, &directory](siginfo_t) {
    auto context = read_credentials(directory);
    if (!context) {
      log("keeps its former certificates: " + context.error().message);
    } else if (listener.context().has_list() && !(*context)->has_list()) {
      log("keeps its former certificates: " + directory +
          "/revoked.pem is gone, and with it who was revoked. Put it back, or start the gate "
          "anew.");
    } else {
      listener.replace(*std::move(context));
      log("has read its certificates anew.");
    }
    return reload(port, listener, directory);
  });
}

// Beside the socket for clients.
std::string socket_for_gates(const std::string& for_clients) {
  return for_clients.substr(0, for_clients.rfind('/') + 1) + "gate.sock";
}

// djinnd may come later; who comes before hears that it is not there.
void tell_if_unreachable(const std::string& socket) {
  const auto tried = ipc::connect_unix(socket);
  if (tried) return;
  log(
      fmt::format("reaches no djinnd at {} yet: {} A djinnd makes that socket with --gate-socket, "
                  "and its owner may connect.",
                  socket, tried.error().message));
}

Status listen(const Options& options, const std::string& for_clients) {
  kj::UnixEventPort::captureSignal(SIGHUP);
  DJINN_TRY(auto context, read_credentials(options.credentials));
  auto io = kj::setupAsyncIo();
  const std::string self = context->self().text();
  if (!context->has_list()) log("obeys no list of revoked certificates: there is no revoked.pem.");
  const Djinnd djinnd{options.as_user ? for_clients : socket_for_gates(for_clients),
                      !options.as_user};
  if (djinnd.names_principals) tell_if_unreachable(djinnd.socket);
  Listener listener(io, djinnd, std::move(context), &log);
  auto door = io.provider->getNetwork()
                  .parseAddress(options.address, ipc::kGatePort)
                  .wait(io.waitScope)
                  ->listen();
  log(fmt::format("{} listens at port {}.", self, door->getPort()));
  auto reloads = reload(io.unixEventPort, listener, options.credentials).eagerlyEvaluate(nullptr);
  listener.serve(kj::mv(door)).wait(io.waitScope);
  return {};
}

Status serve(const Options& options) {
  DJINN_TRY(const client::Host resolved, client::resolve_host(options.host));
  if (resolved.kind != client::HostKind::kUnix) {
    return Error{ErrorCode::kInvalidArgument,
                 "djinn-gate serves a djinnd of its own host: give --host unix:PATH."};
  }
  raise_descriptor_limit();
  try {
    if (!options.stdio) return listen(options, resolved.path);
    serve_starter(resolved.path);
    return {};
  } catch (const kj::Exception& exception) {
    return rpc::to_error(exception);
  }
}

}  // namespace
}  // namespace djinn::gate

int main(int argc, char** argv) {
  djinn::gate::Options options;
  CLI::App app("djinn-gate: remote sessions of a djinnd");
  app.set_version_flag("--version", DJINN_VERSION);
  auto* const ways = app.add_option_group("how it is reached");
  ways->add_flag("--stdio", options.stdio, "serve who started it, by standard input and output");
  auto* const address = ways->add_option("--listen", options.address,
                                         "serve who comes to ADDRESS[:PORT] with a certificate");
  ways->require_option(1);
  auto* const directory = app.add_option("--credentials", options.credentials,
                                         "directory of certificates ('djinnctl gate init')");
  address->needs(directory);
  directory->needs(address);
  app.add_flag("--as-user", options.as_user,
               "who comes acts as the user who runs this, and not under a name of their own")
      ->needs(address);
  app.add_option("--host", options.host, "where djinnd listens, as unix:PATH");
  CLI11_PARSE(app, argc, argv);
  const djinn::Status served = djinn::gate::serve(options);
  if (served) return 0;
  djinn::gate::log(served.error().message);
  return 1;
}
