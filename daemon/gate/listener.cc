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

constexpr kj::Duration kRoundEvery = 60 * kj::SECONDS;
constexpr kj::Duration kFarewell = 1 * kj::SECONDS;
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

Listener::Listener(kj::AsyncIoContext& io, Djinnd djinnd,
                   std::shared_ptr<const tls::Context> context, Log log, DoorLimits limits)
    : io_(io),
      djinnd_(std::move(djinnd)),
      context_(std::move(context)),
      log_(std::move(log)),
      limits_(limits),
      rounds_(look_round().eagerlyEvaluate([](kj::Exception&&) {})),
      guests_(*this) {}

kj::Promise<void> Listener::serve(kj::Own<kj::ConnectionReceiver> door) {
  auto serves = accept(*door);
  return serves.attach(kj::mv(door));
}

kj::Promise<void> Listener::accept(kj::ConnectionReceiver& door) {
  return kj::evalNow([&door] { return door.accept(); })
      .then(
          [this](kj::Own<kj::AsyncIoStream>&& stream) -> kj::Promise<void> {
            try {
              meet(kj::mv(stream));
            } catch (const kj::Exception&) {
              ++turned_away_;  // it is gone already
            }
            return kj::READY_NOW;
          },
          [this](kj::Exception&&) {
            ++turned_away_;  // there are no descriptors, until somebody goes
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
  // The context may be another one since the handshake began.
  if (const auto refusal = stream->refusal_by(*context_)) {
    refuse(*refusal, source);
    return see_off(kj::mv(stream));
  }
  ++outcomes_[static_cast<size_t>(tls::Outcome::kOk)];
  const std::string& principal = stream->peer().text();
  const auto of_principal = connections_.find(principal);
  if (of_principal != connections_.end() &&
      of_principal->second >= limits_.connections_of_principal) {
    ++turned_away_;
    log_(fmt::format("{} from {} has {} connections, and gets no more.", principal, source,
                     limits_.connections_of_principal));
    return see_off(kj::mv(stream));
  }
  return serve(kj::mv(stream), source);
}

kj::Promise<void> Listener::serve(kj::Own<tls::TlsStream> stream, const std::string& source) {
  const std::string principal = stream->peer().text();
  auto put_out = kj::newPromiseAndFulfiller<void>();
  const auto here = inside_.insert(inside_.end(), Inside{*stream, kj::mv(put_out.fulfiller)});
  ++connections_[principal];
  auto leaves = kj::defer([this, here, principal] {
    inside_.erase(here);
    if (--connections_[principal] == 0) connections_.erase(principal);
    log_(fmt::format("{} has gone.", principal));
  });
  log_(fmt::format("{} has come from {}.", principal, source));
  const SessionsOf whose{djinnd_.socket, djinnd_.names_principals ? principal : std::string()};
  auto connection = kj::heap<Connection>(io_, kj::mv(stream), whose);
  auto ends = connection->ends().catch_([](kj::Exception&&) {});
  return ends.exclusiveJoin(kj::mv(put_out.promise)).attach(kj::mv(connection), kj::mv(leaves));
}

// Says that this is all, so that the other side knows that nobody cut it.
kj::Promise<void> Listener::see_off(kj::Own<tls::TlsStream> stream) {
  auto closed = stream->close().catch_([](kj::Exception&&) {});
  auto late = io_.provider->getTimer().afterDelay(kFarewell);
  return closed.exclusiveJoin(kj::mv(late)).attach(kj::mv(stream));
}

void Listener::refuse(const tls::Failure& failure, const std::string& source) {
  ++outcomes_[static_cast<size_t>(failure.outcome)];
  ++refused_;
  last_ = fmt::format("{} {}", source, failure.message);
}

kj::Promise<void> Listener::look_round() {
  return io_.provider->getTimer().afterDelay(kRoundEvery).then([this] {
    put_out();
    const uint64_t all = refused_ + turned_away_;
    if (all != summarised_) {
      log_(
          fmt::format("{} connections came to nothing within a minute; of those, {} in all were "
                      "turned away unheard. The last one heard: {}",
                      all - summarised_, turned_away_, last_.empty() ? "none" : last_));
      summarised_ = all;
    }
    return look_round();
  });
}

void Listener::replace(std::shared_ptr<const tls::Context> context) {
  context_ = std::move(context);
  put_out();
}

void Listener::put_out() {
  for (Inside& one : inside_) {
    const auto refusal = one.stream.refusal_by(*context_);
    if (!refusal || !one.put_out->isWaiting()) continue;
    one.put_out->fulfill();
    log_(fmt::format("{} is put out: it {}", one.stream.peer().text(), refusal->message));
  }
}

}  // namespace djinn::gate
