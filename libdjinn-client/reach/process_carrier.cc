// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/reach/process_carrier.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <vector>

#include "ipc/codec/control_codec.h"
#include "kernel/base/fd.h"
#include "libdjinn-client/spawn.h"

namespace djinn::reach {
namespace {

using client::Host;
using client::HostKind;

constexpr size_t kSaidBytes = 1024;
constexpr kj::Duration kSaidWithin = 1 * kj::SECONDS;
// A machine that does not answer is given up after ten seconds; one that falls silent after
// fifteen, which is soon enough for memory that is held there.
constexpr std::array kSshOptions{
    "-T", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"};

std::vector<std::string> command_of(const Host& host) {
  if (host.kind == HostKind::kExec) return {"sh", "-c", host.command};
  std::vector<std::string> words{"ssh"};
  words.insert(words.end(), kSshOptions.begin(), kSshOptions.end());
  if (host.port != 0) {
    words.emplace_back("-p");
    words.push_back(std::to_string(host.port));
  }
  for (const char* word : {"--", host.destination.c_str(), "djinn-gate", "--stdio"}) {
    words.emplace_back(word);
  }
  return words;
}

std::string last_line_of(std::string_view text) {
  while (text.ends_with('\n') || text.ends_with('\r')) text.remove_suffix(1);
  return std::string(text.substr(text.rfind('\n') + 1));
}

}  // namespace

Result<kj::Own<Carrier>> ProcessCarrier::start(kj::AsyncIoContext& io, const Host& host) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return system_error("make a socket", errno);
  }
  Fd ours(ends[0]);
  const Fd theirs(ends[1]);
  if (::pipe2(ends, O_CLOEXEC) != 0) return system_error("make a pipe", errno);
  Fd said(ends[0]);
  const Fd errors(ends[1]);
  // KJ has changed what this process does about these two.
  sigset_t of_kj;
  ::sigemptyset(&of_kj);
  ::sigaddset(&of_kj, SIGPIPE);
  ::sigaddset(&of_kj, SIGUSR1);
  const std::array<client::Inherited, 3> inherited{
      {{theirs.get(), STDIN_FILENO}, {theirs.get(), STDOUT_FILENO}, {errors.get(), STDERR_FILENO}}};
  const std::vector<std::string> command = command_of(host);
  const auto process = client::spawn(command, inherited, of_kj);
  if (!process && process.error().code == ErrorCode::kNotFound) {
    return Error{ErrorCode::kNotFound,
                 "There is no " + command[0] + " in $PATH, which other machines are reached by."};
  }
  if (!process) return process.error();
  kj::Own<Carrier> carrier =
      kj::heap<ProcessCarrier>(io, host, *process, std::move(ours), std::move(said));
  return carrier;
}

ProcessCarrier::ProcessCarrier(kj::AsyncIoContext& io, const Host& host, pid_t process, Fd stream,
                               Fd said)
    : host_(host.text()),
      timer_(io.provider->getTimer()),
      process_(process),
      stream_(io.lowLevelProvider->wrapSocketFd(stream.release(),
                                                kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP)),
      errors_(io.lowLevelProvider->wrapInputFd(said.release(),
                                               kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP)),
      buffer_(kj::heapArray<char>(kSaidBytes)),
      listens_(listen().catch_([](kj::Exception&&) {}).fork()) {}

// It may be asking for a password, and would go on.
ProcessCarrier::~ProcessCarrier() noexcept(false) {
  ::kill(process_, SIGTERM);
}

kj::Promise<void> ProcessCarrier::listen() {
  return errors_->tryRead(buffer_.begin(), 1, buffer_.size()).then([this](size_t bytes) {
    if (bytes == 0) return kj::Promise<void>(kj::READY_NOW);
    said_.append(buffer_.begin(), bytes);
    if (said_.size() > kSaidBytes) said_.erase(0, said_.size() - kSaidBytes);
    return listen();
  });
}

kj::Promise<Error> ProcessCarrier::explain(const Error& failed) {
  kj::Promise<void> heard = kj::READY_NOW;
  if (failed.code == ErrorCode::kDisconnected && !has_answered()) {
    heard = listens_.addBranch().exclusiveJoin(timer_.afterDelay(kSaidWithin));
  }
  return heard.then([this, failed] { return explanation_of(failed); });
}

Error ProcessCarrier::explanation_of(const Error& failed) const {
  const std::string host = ipc::showable_name(host_);
  if (failed.code != ErrorCode::kDisconnected) return no_gate(host, failed);
  if (has_answered()) return failed;
  const std::string said = ipc::showable_sentence(last_line_of(said_));
  return {ErrorCode::kNotFound,
          "No djinn-gate answers at " + host +
              (said.empty() ? ". Is the package djinn-gate installed there?" : ": " + said)};
}

}  // namespace djinn::reach
