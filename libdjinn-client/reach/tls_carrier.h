// SPDX-License-Identifier: Apache-2.0

// TlsCarrier: a connection to a djinn-gate's door on the network, both sides of which have shown
// certificates.
#pragma once

#include <optional>
#include <string>

#include "ipc/rpc/tls/tls_stream.h"
#include "libdjinn-client/reach/carrier.h"
#include "libdjinn-client/reach/profile.h"

namespace djinn::reach {

class TlsCarrier final : public Carrier {
 public:
  // Errors: those of read_profile().
  static Result<kj::Own<Carrier>> start(kj::AsyncIoContext& io, const client::Host& host);

  [[nodiscard]] kj::AsyncIoStream& stream() override { return *stream_; }
  kj::Promise<Error> explain(const Error& failed) override;

  TlsCarrier(kj::AsyncIoContext& io, const client::Host& host, Profile profile);

 private:
  using Connected = kj::Own<kj::AsyncIoStream>;

  kj::Promise<Connected> connect(kj::AsyncIoContext& io);
  [[nodiscard]] Error explanation_of(const Error& failed) const;
  // Notes why, and throws it.
  [[noreturn]] void fail(const Error& why);

  std::string host_;
  Profile profile_;
  std::optional<Error> failure_;         // there is no connection
  tls::TlsStream* connected_ = nullptr;  // stream_'s
  Connected stream_;
};

}  // namespace djinn::reach
