// SPDX-License-Identifier: Apache-2.0

#include "ipc/rpc/tls/context.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <utility>
#include <vector>

namespace djinn::tls {
namespace {

constexpr int kDepthMax = 3;  // certificates between a peer's and an authority's
constexpr long kCertificateBytesMax = 16 * 1024;
constexpr int kSecurityBits = 2;  // OpenSSL's level of 112 bits
constexpr unsigned char kProtocol[] = {7, 'd', 'j', 'i', 'n', 'n', '/', '1'};

using Bio = std::unique_ptr<BIO, Freed<&BIO_free_all>>;
using Key = std::unique_ptr<EVP_PKEY, Freed<&EVP_PKEY_free>>;
using Crl = std::unique_ptr<X509_CRL, Freed<&X509_CRL_free>>;
using SslContext = std::unique_ptr<SSL_CTX, Freed<&SSL_CTX_free>>;
using StoreContext = std::unique_ptr<X509_STORE_CTX, Freed<&X509_STORE_CTX_free>>;
using Names = std::unique_ptr<GENERAL_NAMES, Freed<&GENERAL_NAMES_free>>;

Bio reader(const std::string& pem) {
  return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

Error unusable(const char* what) {
  ERR_clear_error();
  return {ErrorCode::kInvalidArgument, what};
}

// What is not whole is no end of what there is.
Status expect_no_more(const char* what) {
  const bool is_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  return is_end ? Status() : unusable(what);
}

Result<std::vector<Certificate>> certificates_in(const std::string& pem) {
  std::vector<Certificate> found;
  const Bio bio = reader(pem);
  while (X509* const one = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    found.emplace_back(one);
  }
  DJINN_CHECK(expect_no_more("A certificate is damaged."));
  return found;
}

// Nobody is asked for a password: a key that is encrypted is no key here.
int no_password(char*, int, int, void*) {
  return -1;
}

Status take_identity(SSL_CTX* context, const std::vector<Certificate>& own,
                     const std::string& key_pem) {
  const Bio bio = reader(key_pem);
  const Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, &no_password, nullptr));
  if (!key) return unusable("There is no private key in PEM, or one that asks for a password.");
  if (SSL_CTX_use_certificate(context, own.front().get()) != 1) {
    return unusable("The certificate's key is too weak, or of a kind that TLS 1.3 has not.");
  }
  for (size_t i = 1; i < own.size(); ++i) {
    if (SSL_CTX_add1_chain_cert(context, own[i].get()) != 1) {
      return unusable("A certificate behind the first is none that leads to an authority.");
    }
  }
  if (SSL_CTX_use_PrivateKey(context, key.get()) != 1 || SSL_CTX_check_private_key(context) != 1) {
    return unusable("The private key is not that of the certificate.");
  }
  return {};
}

Status take_authorities(SSL_CTX* context, const Identity& identity) {
  X509_STORE* const store = SSL_CTX_get_cert_store(context);
  DJINN_TRY(const auto authorities, certificates_in(identity.authorities));
  if (authorities.empty()) return unusable("There is no certificate of an authority in PEM.");
  for (const Certificate& one : authorities) {
    if (X509_STORE_add_cert(store, one.get()) != 1) {
      return unusable("A certificate of an authority cannot be used.");
    }
  }
  unsigned long flags = X509_V_FLAG_X509_STRICT;
  if (identity.revoked) {
    const Bio bio = reader(*identity.revoked);
    size_t lists = 0;
    while (const Crl crl{PEM_read_bio_X509_CRL(bio.get(), nullptr, nullptr, nullptr)}) {
      if (X509_STORE_add_crl(store, crl.get()) != 1) {
        return unusable("A list of revoked certificates cannot be used.");
      }
      ++lists;
    }
    DJINN_CHECK(expect_no_more("A list of revoked certificates is damaged."));
    if (lists == 0) return unusable("There is no list of revoked certificates in PEM.");
    flags |= X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL;
  }
  X509_VERIFY_PARAM* const how = SSL_CTX_get0_param(context);
  X509_VERIFY_PARAM_set_flags(how, flags);
  X509_VERIFY_PARAM_set_depth(how, kDepthMax);
  X509_VERIFY_PARAM_set_auth_level(how, kSecurityBits);
  return {};
}

int select_protocol(SSL*, const unsigned char** out, unsigned char* out_bytes,
                    const unsigned char* in, unsigned int in_bytes, void*) {
  unsigned char* chosen = nullptr;
  if (SSL_select_next_proto(&chosen, out_bytes, kProtocol, sizeof kProtocol, in, in_bytes) !=
      OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

// Asked for each certificate of a chain, its own last.
int verify(int is_good, X509_STORE_CTX* store) {
  auto* const connection =
      static_cast<SSL*>(X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
  auto& check = *static_cast<Check*>(SSL_get_app_data(connection));
  X509* const certificate = X509_STORE_CTX_get_current_cert(store);
  if (is_good != 1) {
    check.refused = failure_of_verifying(X509_STORE_CTX_get_error(store), certificate);
  } else if (X509_STORE_CTX_get_error_depth(store) == 0) {
    check.refused = check.context.refusal_of_leaf(*certificate);
    if (check.refused) X509_STORE_CTX_set_error(store, X509_V_ERR_APPLICATION_VERIFICATION);
  }
  return check.refused ? 0 : 1;
}

bool agree(SSL_CTX* context, Side side) {
  SSL_CTX_set_security_level(context, kSecurityBits);
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_max_cert_list(context, kCertificateBytesMax);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, &verify);
  if (side == Side::kGate) SSL_CTX_set_alpn_select_cb(context, &select_protocol, nullptr);
  return SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
         SSL_CTX_set_num_tickets(context, 0) == 1 && SSL_CTX_set_max_early_data(context, 0) == 1 &&
         SSL_CTX_set_ciphersuites(context,
                                  "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:"
                                  "TLS_CHACHA20_POLY1305_SHA256") == 1 &&
         SSL_CTX_set1_groups_list(context, "X25519:P-256") == 1 &&
         SSL_CTX_set1_sigalgs_list(context,
                                   "ecdsa_secp256r1_sha256:ecdsa_secp384r1_sha384:ed25519:"
                                   "rsa_pss_rsae_sha256:rsa_pss_pss_sha256") == 1 &&
         // Of this one 0 is success.
         (side == Side::kGate ||
          SSL_CTX_set_alpn_protos(context, kProtocol, sizeof kProtocol) == 0);
}

// What a certificate is for says it itself: one that says nothing is for nothing here.
bool is_for(X509& certificate, uint32_t extended_use) {
  return (X509_get_extension_flags(&certificate) & EXFLAG_XKUSAGE) != 0 &&
         (X509_get_extended_key_usage(&certificate) & extended_use) != 0 &&
         (X509_get_extension_flags(&certificate) & EXFLAG_KUSAGE) != 0 &&
         (X509_get_key_usage(&certificate) & KU_DIGITAL_SIGNATURE) != 0 &&
         X509_check_ca(&certificate) == 0;
}

Status check_times(X509& certificate) {
  if (X509_cmp_current_time(X509_get0_notAfter(&certificate)) < 0) {
    return Error{ErrorCode::kTimeout,
                 "The certificate expired at " + time_text(X509_get0_notAfter(&certificate)) + '.'};
  }
  if (X509_cmp_current_time(X509_get0_notBefore(&certificate)) > 0) {
    return Error{ErrorCode::kTimeout, "The certificate is valid from " +
                                          time_text(X509_get0_notBefore(&certificate)) +
                                          " on: is this host's clock right?"};
  }
  return {};
}

}  // namespace

Result<ipc::Principal> principal_of(X509& certificate) {
  int critical = 0;
  const Names names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(&certificate, NID_subject_alt_name, &critical, nullptr)));
  const ASN1_IA5STRING* found = nullptr;
  for (int i = 0; names && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    if (found != nullptr) {
      return Error{ErrorCode::kInvalidArgument, "It has more than one name of a principal."};
    }
    found = name->d.uniformResourceIdentifier;
  }
  if (found == nullptr) {
    return Error{ErrorCode::kInvalidArgument, "It has no name of a principal (a spiffe:// URI)."};
  }
  return ipc::Principal::parse({reinterpret_cast<const char*>(ASN1_STRING_get0_data(found)),
                                static_cast<size_t>(ASN1_STRING_length(found))});
}

Result<std::shared_ptr<const Context>> Context::make(Side side, const Identity& identity,
                                                     std::optional<ipc::Principal> peer) {
  ERR_clear_error();
  DJINN_TRY(const auto own, certificates_in(identity.certificates));
  if (own.empty()) return unusable("There is no certificate in PEM.");
  DJINN_CHECK(check_times(*own.front()));
  if (!is_for(*own.front(), side == Side::kGate ? XKU_SSL_SERVER : XKU_SSL_CLIENT)) {
    return unusable(side == Side::kGate ? "The certificate is not one for servers."
                                        : "The certificate is not one for clients.");
  }
  DJINN_TRY(ipc::Principal self, principal_of(*own.front()));
  SslContext context(SSL_CTX_new(side == Side::kGate ? TLS_server_method() : TLS_client_method()));
  if (!context || !agree(context.get(), side)) return unusable("OpenSSL has no TLS 1.3.");
  DJINN_CHECK(take_identity(context.get(), own, identity.key));
  DJINN_CHECK(take_authorities(context.get(), identity));
  return std::make_shared<const Context>(side, std::move(context), std::move(self),
                                         std::move(peer));
}

Context::Context(Side side, SslContext context, ipc::Principal self,
                 std::optional<ipc::Principal> peer)
    : side_(side), context_(std::move(context)), self_(std::move(self)), peer_(std::move(peer)) {}

std::unique_ptr<SSL, Freed<&SSL_free>> Context::connection(Check& check) const {
  std::unique_ptr<SSL, Freed<&SSL_free>> connection(SSL_new(context_.get()));
  if (!connection) return nullptr;
  SSL_set_app_data(connection.get(), &check);
  side_ == Side::kGate ? SSL_set_accept_state(connection.get())
                       : SSL_set_connect_state(connection.get());
  return connection;
}

bool Context::has_list() const {
  X509_VERIFY_PARAM* const how = SSL_CTX_get0_param(context_.get());
  return (X509_VERIFY_PARAM_get_flags(how) & X509_V_FLAG_CRL_CHECK) != 0;
}

std::optional<Failure> Context::refusal_of_leaf(X509& leaf) const {
  if (!is_for(leaf, side_ == Side::kGate ? XKU_SSL_CLIENT : XKU_SSL_SERVER)) {
    return Failure{Outcome::kBadUse, "shows a certificate that is for something else."};
  }
  const auto principal = principal_of(leaf);
  if (!principal) {
    return Failure{Outcome::kBadName,
                   "shows a certificate whose name is none: " + principal.error().message};
  }
  const bool is_meant =
      peer_ ? *principal == *peer_ : principal->domain() == self_.domain() && !principal->is_gate();
  if (is_meant) return std::nullopt;
  return Failure{Outcome::kBadName,
                 "shows the certificate of somebody else: of " + principal->text() + '.'};
}

std::optional<Failure> Context::refusal_of(X509& leaf, STACK_OF(X509) * sent) const {
  const StoreContext store(X509_STORE_CTX_new());
  if (!store ||
      X509_STORE_CTX_init(store.get(), SSL_CTX_get_cert_store(context_.get()), &leaf, sent) != 1) {
    return failure_of_connection(SSL_ERROR_SSL);
  }
  X509_STORE_CTX_set_default(store.get(), side_ == Side::kGate ? "ssl_client" : "ssl_server");
  X509_VERIFY_PARAM_set1(X509_STORE_CTX_get0_param(store.get()),
                         SSL_CTX_get0_param(context_.get()));
  const bool is_good = X509_verify_cert(store.get()) == 1;
  ERR_clear_error();
  if (is_good) return refusal_of_leaf(leaf);
  return failure_of_verifying(X509_STORE_CTX_get_error(store.get()),
                              X509_STORE_CTX_get_current_cert(store.get()));
}

}  // namespace djinn::tls
