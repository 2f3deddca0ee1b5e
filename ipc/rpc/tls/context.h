// SPDX-License-Identifier: Apache-2.0

// Context: what one side of a TLS connection is, whom it trusts, and what it agrees to: TLS 1.3
// alone, certificates on both sides, no sessions that are resumed, no early data.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <optional>
#include <string>

#include "ipc/principal.h"
#include "ipc/rpc/tls/outcome.h"
#include "kernel/base/freed.h"
#include "kernel/base/result.h"

namespace djinn::tls {

using Certificate = std::unique_ptr<X509, Freed<&X509_free>>;

enum class Side : uint8_t { kGate, kClient };

class Context;

// What a connection's certificates are asked about, and what came of it.
struct Check {
  const Context& context;
  std::optional<Failure> refused;
};

// PEM blocks.
struct Identity {
  std::string certificates;  // its own, then those between it and an authority
  std::string key;
  std::string authorities;
  std::optional<std::string> revoked;  // a CRL of each authority; nothing: nobody asks
};

class Context {
 public:
  // peer: whom a client is to meet; nothing for a gate, which meets any principal of its domain.
  // Errors: kInvalidArgument (no PEM, a key of another certificate, a certificate that could not
  // be used so), kTimeout (it has expired, or is not valid yet; with the date).
  static Result<std::shared_ptr<const Context>> make(Side side, const Identity& identity,
                                                     std::optional<ipc::Principal> peer = {});
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  [[nodiscard]] Side side() const { return side_; }
  [[nodiscard]] const ipc::Principal& self() const { return self_; }
  // Whether a peer is looked up in a list of what was revoked.
  [[nodiscard]] bool has_list() const;
  // A connection of this context, without its ends. check: of this context; outlives it.
  [[nodiscard]] std::unique_ptr<SSL, Freed<&SSL_free>> connection(Check& check) const;

  // Whether a peer's certificate would be taken now, with those that it sent beside: another
  // context may have heard that it was revoked.
  [[nodiscard]] std::optional<Failure> refusal_of(X509& leaf, STACK_OF(X509) * sent) const;
  // Why a peer may not have a certificate that is good by itself.
  [[nodiscard]] std::optional<Failure> refusal_of_leaf(X509& leaf) const;

  Context(Side side, std::unique_ptr<SSL_CTX, Freed<&SSL_CTX_free>> context, ipc::Principal self,
          std::optional<ipc::Principal> peer);

 private:
  Side side_;
  std::unique_ptr<SSL_CTX, Freed<&SSL_CTX_free>> context_;
  ipc::Principal self_;
  std::optional<ipc::Principal> peer_;
};

// The one spiffe:// name of a certificate. Errors: kInvalidArgument.
Result<ipc::Principal> principal_of(X509& certificate);

}  // namespace djinn::tls
