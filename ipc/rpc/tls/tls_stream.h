// SPDX-License-Identifier: Apache-2.0

// TlsStream: bytes over TLS on a stream of KJ's, once both sides have shown who they are.
//
// invariant: nothing that the other side sends is handed on before its certificate was taken.
// On the thread of one KJ loop. Throws kj::Exception (DISCONNECTED) once the connection has failed.
#pragma once

#include <kj/async-io.h>

#include <memory>
#include <optional>
#include <variant>

#include "ipc/rpc/tls/context.h"

namespace djinn::tls {

class TlsStream final : public kj::AsyncIoStream {
 public:
  using Shaken = std::variant<kj::Own<TlsStream>, Failure>;
  // Both ends' handshake. Whoever waits sets an end to it: a peer may be silent for ever. Throws
  // what the stream below throws.
  static kj::Promise<Shaken> shake_hands(kj::Own<kj::AsyncIoStream> below,
                                         std::shared_ptr<const Context> context);

  [[nodiscard]] const ipc::Principal& peer() const { return *peer_; }
  // Whether its peer would be taken by another context.
  [[nodiscard]] std::optional<Failure> refusal_by(const Context& context) const;
  // Why it has failed since, for instance because the other side has refused this one: a client
  // hears that behind its own handshake.
  [[nodiscard]] const std::optional<Failure>& failure() const { return failure_; }

  kj::Promise<size_t> tryRead(void* buffer, size_t min_bytes, size_t max_bytes) override;
  kj::Promise<void> write(const void* buffer, size_t bytes) override;
  kj::Promise<void> write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces) override;
  kj::Promise<void> whenWriteDisconnected() override { return below_->whenWriteDisconnected(); }
  void shutdownWrite() override;
  // Tells the other side that nothing follows; ends when that is on its way.
  kj::Promise<void> close();

  TlsStream(kj::Own<kj::AsyncIoStream> below, std::shared_ptr<const Context> context);

 private:
  kj::Promise<std::optional<Failure>> shake();
  std::optional<Failure> take_peer();
  kj::Promise<size_t> read_on(kj::byte* buffer, size_t got, size_t min_bytes, size_t max_bytes);
  // Ciphertext that has come; false at its end.
  kj::Promise<bool> fetch();
  // Hands on the ciphertext that there is to send; behind what is on its way.
  kj::Promise<void> flush();
  [[noreturn]] void fail(int ssl_error);
  void raise_if_failed() const;

  kj::Own<kj::AsyncIoStream> below_;
  std::shared_ptr<const Context> context_;
  Check check_;
  std::unique_ptr<SSL, Freed<&SSL_free>> connection_;
  BIO* in_;   // connection_'s
  BIO* out_;  // connection_'s
  std::optional<ipc::Principal> peer_;
  std::optional<Failure> failure_;
  size_t handshake_bytes_ = 0;
  kj::Array<kj::byte> buffer_;
  kj::Promise<void> sent_ = kj::READY_NOW;
};

}  // namespace djinn::tls
