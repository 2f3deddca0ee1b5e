// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/reach/carrier.h"

#include <utility>

#include "ipc/codec/control_codec.h"
#include "ipc/rpc/fault.h"
#include "libdjinn-client/reach/process_carrier.h"
#include "libdjinn-client/reach/tls_carrier.h"

namespace djinn::reach {
namespace {

// One that carries nothing.
class NoCarrier final : public Carrier {
 public:
  explicit NoCarrier(Error why)
      : why_(std::move(why)),
        stream_(kj::newPromisedStream(kj::Promise<kj::Own<kj::AsyncIoStream>>(
            rpc::to_exception({ErrorCode::kDisconnected, why_.message})))) {}

  [[nodiscard]] kj::AsyncIoStream& stream() override { return *stream_; }
  kj::Promise<Error> explain(const Error&) override {
    kj::Promise<void> known = kj::READY_NOW;
    return known.then([this] { return why_; });
  }

 private:
  Error why_;
  kj::Own<kj::AsyncIoStream> stream_;
};

}  // namespace

kj::Own<Carrier> Carrier::start(kj::AsyncIoContext& io, const client::Host& host) {
  auto carrier = host.kind == client::HostKind::kTls ? TlsCarrier::start(io, host)
                                                     : ProcessCarrier::start(io, host);
  if (carrier) return *std::move(carrier);
  return kj::heap<NoCarrier>(carrier.error());
}

Error Carrier::no_gate(const std::string& host, const Error& failed) {
  return {ErrorCode::kProtocolViolation,
          "What answers at " + host +
              " is no djinn-gate of this version: " + ipc::showable_sentence(failed.message) +
              " Compare 'djinn-reach --version' here and 'djinn-gate --version' there."};
}

}  // namespace djinn::reach
