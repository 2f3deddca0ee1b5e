// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/reach/tls_carrier.h"

#include <utility>
#include <variant>

#include "ipc/codec/control_codec.h"
#include "ipc/rpc/fault.h"
#include "ipc/rpc/tcp.h"

namespace djinn::reach {
namespace {

// A machine that does not answer is given up then.
constexpr kj::Duration kConnectWithin = 10 * kj::SECONDS;

// What a handshake came to, for a program.
Error error_of(const std::string& host, const tls::Failure& failure) {
  using tls::Outcome;
  const std::string said = host + ' ' + failure.message;
  switch (failure.outcome) {
    case Outcome::kTruncated:
    case Outcome::kTimeout:
      return {ErrorCode::kNotFound, said +
                                        " It may have all the connections that it takes: try "
                                        "again later, or look into its log."};
    case Outcome::kNotTls:
    case Outcome::kOldVersion:
    case Outcome::kNothingShared:
    case Outcome::kTooLong:
    case Outcome::kProtocol:
      return {ErrorCode::kProtocolViolation,
              said + " Does a djinn-gate of this version listen there?"};
    default:
      return {ErrorCode::kPermissionDenied, said};
  }
}

// KJ says which call failed, in front, and what it was given, behind.
std::string reason_of(const kj::Exception& exception) {
  std::string text = rpc::to_error(exception).message;
  text = text.substr(0, text.find(';'));
  const size_t colon = text.rfind(": ");
  return colon == std::string::npos ? text : text.substr(colon + 2);
}

}  // namespace

Result<kj::Own<Carrier>> TlsCarrier::start(kj::AsyncIoContext& io, const client::Host& host) {
  DJINN_TRY(Profile profile, read_profile(host));
  kj::Own<Carrier> carrier = kj::heap<TlsCarrier>(io, host, std::move(profile));
  return carrier;
}

TlsCarrier::TlsCarrier(kj::AsyncIoContext& io, const client::Host& host, Profile profile)
    : host_(host.text()),
      profile_(std::move(profile)),
      stream_(kj::newPromisedStream(connect(io))) {}

kj::Promise<TlsCarrier::Connected> TlsCarrier::connect(kj::AsyncIoContext& io) {
  auto& network = io.provider->getNetwork();
  auto late = io.provider->getTimer().afterDelay(kConnectWithin).then([this]() -> Connected {
    fail({ErrorCode::kTimeout,
          "No djinn-gate answers at " + host_ + " (" + profile_.address + ") within ten seconds."});
  });
  return network.parseAddress(profile_.address)
      .then([](kj::Own<kj::NetworkAddress>&& address) {
        auto connected = address->connect();
        return connected.attach(kj::mv(address));
      })
      .catch_([this](kj::Exception&& why) -> kj::Promise<Connected> {
        fail({ErrorCode::kNotFound, "No djinn-gate answers at " + host_ + " (" + profile_.address +
                                        "): " + reason_of(why) + '.'});
      })
      .then([this](Connected&& plain) {
        rpc::set_tcp_options(*plain);
        return tls::TlsStream::shake_hands(kj::mv(plain), profile_.context)
            .catch_([](kj::Exception&&) {
              return tls::TlsStream::Shaken(
                  tls::Failure{tls::Outcome::kTruncated, "has closed the connection."});
            });
      })
      .then([this](tls::TlsStream::Shaken&& shaken) -> Connected {
        if (const auto* const failure = std::get_if<tls::Failure>(&shaken)) {
          fail(error_of(host_, *failure));
        }
        auto& stream = std::get<kj::Own<tls::TlsStream>>(shaken);
        connected_ = stream.get();
        return kj::mv(stream);
      })
      .exclusiveJoin(kj::mv(late));
}

void TlsCarrier::fail(const Error& why) {
  failure_ = {why.code, ipc::showable_sentence(why.message)};
  rpc::raise({ErrorCode::kDisconnected, failure_->message});
}

kj::Promise<Error> TlsCarrier::explain(const Error& failed) {
  kj::Promise<void> known = kj::READY_NOW;
  return known.then([this, failed] { return explanation_of(failed); });
}

// A client's handshake ends before the gate has looked at its certificate: what the gate says of
// that comes behind.
Error TlsCarrier::explanation_of(const Error& failed) const {
  if (failure_) return *failure_;
  if (failed.code != ErrorCode::kDisconnected) return no_gate(host_, failed);
  if (connected_ == nullptr || !connected_->failure() || has_answered()) return failed;
  const Error error = error_of(host_, *connected_->failure());
  return {error.code, ipc::showable_sentence(error.message)};
}

}  // namespace djinn::reach
