// SPDX-License-Identifier: Apache-2.0

#include "daemon/gate/listener.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "ipc/rpc/tcp.h"

namespace djinn::gate {
namespace {

constexpr kj::Duration kSummaryEvery = 60 * kj::SECONDS;
constexpr kj::Duration kBreath = 10 * kj::MILLISECONDS;

// An address, of which one with colons stands for its network: whoever has one has 2^64.
std::string source_of(kj::AsyncIoStream& stream) {
  sockaddr_storage address{};
  kj::uint bytes = sizeof address;
  stream.getpeername(reinterpret_cast<sockaddr*>(&address), &bytes);
  char text[INET6_ADDRSTRLEN] = "?";
  if (address.ss_family == AF_INET) {
    ::inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in*>(&address)->sin_addr, text, sizeof text);
  } else if (address.ss_family == AF_INET6) {
    auto& whole = reinterpret_cast<sockaddr_in6*>(&address)->sin6_addr;
    if (!IN6_IS_ADDR_V4MAPPED(&whole)) std::fill(whole.s6_addr + 8, whole.s6_addr + 16, 0);
    ::inet_ntop(AF_INET6, &whole, text, sizeof text);
  }
  return text;
}

}  // namespace

// One that stands at the door, as long as this lives.
class Listener::Knock {
 public:
  Knock(Listener& listener, std::string source) : listener_(listener), source_(std::move(source)) {
    ++listener_.handshakes_;
    ++listener_.knocking_[source_];
  }
  ~Knock() {
    --listener_.handshakes_;
    const auto of_source = listener_.knocking_.find(source_);
    if (--of_source->second == 0) listener_.knocking_.erase(of_source);
  }
  Knock(const Knock&) = delete;
  Knock& operator=(const Knock&) = delete;

 private:
  Listener& listener_;
  std::string source_;
};

Listener::Listener(kj::AsyncIoContext& io, std::string djinnd,
                   std::shared_ptr<const tls::Context> context, Log log, DoorLimits limits)
    : io_(io),
      djinnd_(std::move(djinnd)),
      context_(std::move(context)),
      log_(std::move(log)),
      limits_(limits),
      summaries_(summarise().eagerlyEvaluate([](kj::Exception&&) {})),
      guests_(*this) {}

kj::Promise<void> Listener::serve(kj::Own<kj::ConnectionReceiver> door) {
  auto serves = accept(*door);
  return serves.attach(kj::mv(door));
}

kj::Promise<void> Listener::accept(kj::ConnectionReceiver& door) {
  return door.accept()
      .then([this](kj::Own<kj::AsyncIoStream>&& stream) { meet(kj::mv(stream)); })
      .catch_([this](kj::Exception&&) {
        // It is gone already, or there are no descriptors, until somebody goes.
        ++turned_away_;
        return io_.provider->getTimer().afterDelay(kBreath);
      })
      .then([this, &door] { return accept(door); });
}

void Listener::meet(kj::Own<kj::AsyncIoStream> stream) {
  std::string source = source_of(*stream);
  const auto of_source = knocking_.find(source);
  if (handshakes_ >= limits_.handshakes ||
      (of_source != knocking_.end() && of_source->second >= limits_.handshakes_of_source)) {
    ++turned_away_;
    return;
  }
  rpc::set_tcp_options(*stream);
  auto knock = kj::heap<Knock>(*this, source);
  auto late = io_.provider->getTimer().afterDelay(limits_.handshake).then([] {
    return tls::TlsStream::Shaken(tls::Failure{tls::Outcome::kTimeout, "took too long."});
  });
  auto shaken = tls::TlsStream::shake_hands(kj::mv(stream), context_)
                    .catch_([](kj::Exception&&) {
                      return tls::TlsStream::Shaken(
                          tls::Failure{tls::Outcome::kTruncated, "has closed the connection."});
                    })
                    .exclusiveJoin(kj::mv(late))
                    .attach(kj::mv(knock));
  guests_.add(shaken.then([this, source = std::move(source)](tls::TlsStream::Shaken&& result) {
    return let_in(kj::mv(result), source);
  }));
}

kj::Promise<void> Listener::let_in(tls::TlsStream::Shaken&& shaken, const std::string& source) {
  if (const auto* const failure = std::get_if<tls::Failure>(&shaken)) {
    refuse(*failure, source);
    return kj::READY_NOW;
  }
  auto stream = kj::mv(std::get<kj::Own<tls::TlsStream>>(shaken));
  ++outcomes_[static_cast<size_t>(tls::Outcome::kOk)];
  const std::string principal = stream->peer().text();
  // The context may be another one since the handshake began.
  if (const auto refusal = stream->refusal_by(*context_)) {
    refuse(*refusal, source);
    return kj::READY_NOW;
  }
  if (connections_[principal] >= limits_.connections_of_principal) {
    ++turned_away_;
    log_(fmt::format("{} from {} has {} connections, and gets no more.", principal, source,
                     limits_.connections_of_principal));
    return kj::READY_NOW;
  }
  ++connections_[principal];
  log_(fmt::format("{} has come from {}.", principal, source));
  auto put_out = kj::newPromiseAndFulfiller<void>();
  const auto here = inside_.insert(inside_.end(), Inside{*stream, kj::mv(put_out.fulfiller)});
  auto connection = kj::heap<Connection>(io_, kj::mv(stream), djinnd_);
  auto ends = connection->ends().catch_([](kj::Exception&&) {});
  return ends.exclusiveJoin(kj::mv(put_out.promise))
      .attach(kj::mv(connection), kj::defer([this, here, principal] {
                inside_.erase(here);
                if (--connections_[principal] == 0) connections_.erase(principal);
                log_(fmt::format("{} has gone.", principal));
              }));
}

void Listener::refuse(const tls::Failure& failure, const std::string& source) {
  ++outcomes_[static_cast<size_t>(failure.outcome)];
  ++refused_;
  last_ = fmt::format("{} {}", source, failure.message);
}

kj::Promise<void> Listener::summarise() {
  return io_.provider->getTimer().afterDelay(kSummaryEvery).then([this] {
    if (refused_ != summarised_) {
      log_(fmt::format("{} handshakes failed within a minute; of the last one {}",
                       refused_ - summarised_, last_));
      summarised_ = refused_;
    }
    return summarise();
  });
}

void Listener::replace(std::shared_ptr<const tls::Context> context) {
  context_ = std::move(context);
  for (Inside& one : inside_) {
    const auto refusal = one.stream.refusal_by(*context_);
    if (!refusal) continue;
    log_(fmt::format("{} is put out: it {}", one.stream.peer().text(), refusal->message));
    one.put_out->fulfill();
  }
}

}  // namespace djinn::gate
