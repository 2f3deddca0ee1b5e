// SPDX-License-Identifier: Apache-2.0

// Listener: the door on the network. Whoever comes shows a certificate first, and is let in if an
// authority of this gate vouches for it; until then it costs a bounded handshake, no call is read,
// and the log gets no line, but a summary.
#pragma once

#include <kj/async-io.h>

#include <array>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>

#include "daemon/gate/connection.h"
#include "ipc/rpc/tls/tls_stream.h"

namespace djinn::gate {

// Where a gate connects for whom it lets in.
struct Djinnd {
  std::string socket;
  bool names_principals = true;  // to the socket for gates; else all who come are the gate's user
};

struct DoorLimits {
  size_t handshakes = 64;  // at once; more are turned away unread
  size_t handshakes_of_source = 8;
  kj::Duration handshake = 5 * kj::SECONDS;
  size_t connections_of_principal = 8;
};

class Listener final : private kj::TaskSet::ErrorHandler {
 public:
  using Log = std::function<void(const std::string&)>;  // throws nothing

  // io: outlives this.
  Listener(kj::AsyncIoContext& io, Djinnd djinnd, std::shared_ptr<const tls::Context> context,
           Log log, DoorLimits limits = {});

  // Never ends.
  kj::Promise<void> serve(kj::Own<kj::ConnectionReceiver> door);
  // From now on this is what clients are held to; those inside whom it would refuse are put out, as
  // are those who would be refused later, within a minute.
  void replace(std::shared_ptr<const tls::Context> context);
  [[nodiscard]] const tls::Context& context() const { return *context_; }

  // How many handshakes ended so.
  [[nodiscard]] uint64_t outcomes(tls::Outcome outcome) const {
    return outcomes_[static_cast<size_t>(outcome)];
  }
  [[nodiscard]] uint64_t turned_away() const { return turned_away_; }
  [[nodiscard]] size_t connections() const { return inside_.size(); }

 private:
  struct Inside {
    tls::TlsStream& stream;
    kj::Own<kj::PromiseFulfiller<void>> put_out;
  };
  class Knock;

  kj::Promise<void> accept(kj::ConnectionReceiver& door);
  void meet(kj::Own<kj::AsyncIoStream> stream);
  kj::Promise<void> let_in(tls::TlsStream::Shaken&& shaken, const std::string& source);
  kj::Promise<void> serve(kj::Own<tls::TlsStream> stream, const std::string& source);
  kj::Promise<void> see_off(kj::Own<tls::TlsStream> stream);
  void refuse(const tls::Failure& failure, const std::string& source);
  void put_out();
  // Each minute: what was refused, and who may stay no longer.
  kj::Promise<void> look_round();
  void taskFailed(kj::Exception&&) override {}  // a connection that failed has ended

  kj::AsyncIoContext& io_;
  Djinnd djinnd_;
  std::shared_ptr<const tls::Context> context_;
  Log log_;
  DoorLimits limits_;
  std::map<std::string, size_t> knocking_;  // handshakes, by source
  size_t handshakes_ = 0;
  std::map<std::string, size_t> connections_;  // by principal
  std::list<Inside> inside_;
  std::array<uint64_t, tls::kOutcomeNames.size()> outcomes_{};
  uint64_t turned_away_ = 0;
  uint64_t refused_ = 0;     // all that were ever, but those that were turned away
  uint64_t summarised_ = 0;  // of both
  std::string last_;         // of those that were refused
  kj::Promise<void> rounds_ = nullptr;
  kj::TaskSet guests_;  // goes first
};

}  // namespace djinn::gate
