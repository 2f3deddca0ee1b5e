// SPDX-License-Identifier: Apache-2.0

// Certificates: keys, X.509 certificates and lists of revoked ones, by OpenSSL's libcrypto. What is
// signed passes X509_V_FLAG_X509_STRICT (RFC 5280), and is an X.509-SVID of SPIFFE's: one URI name,
// the principal, which alone counts; the common name is for people.
//
//   key        ECDSA on P-256
//   request    what a client signs who keeps their key (PKCS #10); only its key is taken
//   serial     128 random bits
#pragma once

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernel/base/freed.h"
#include "kernel/base/result.h"

namespace djinn::authority {

inline constexpr int64_t kDaySeconds = 86400;

using Key = std::unique_ptr<EVP_PKEY, Freed<&EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Freed<&X509_free>>;

using Serial = std::array<uint8_t, 16>;  // the first byte is the highest
Result<Serial> random_serial();
// 32 hex digits, lower-case.
[[nodiscard]] std::string text_of(const Serial& serial);
// Of such a text. Error: kInvalidArgument.
Result<Serial> serial_of(std::string_view text);

Result<Key> make_key();
Result<std::string> pem_of(const EVP_PKEY& key);  // PKCS #8
Result<std::string> pem_of(const X509& certificate);

// What stands first in such a file of text; `what` names it in errors: kMalformed.
Result<Key> key_of(const std::string& pem, const std::string& what);
Result<Certificate> certificate_of(const std::string& pem, const std::string& what);
// The public key of a request that its private key has signed. Errors: kMalformed, kUnsupported
// (RSA of less than 2,048 bits, or a kind or curve that TLS 1.3 has no use for).
Result<Key> key_of_request(const std::string& pem, const std::string& what);

enum class Kind : uint8_t { kAuthority, kGate, kClient };

struct Order {
  Kind kind = Kind::kClient;
  std::string common_name;  // its first 64 bytes are taken
  std::string principal;    // none of kAuthority
  std::vector<std::string> dns_names{};
  Serial serial{};
  int64_t since_s = 0;  // since the epoch
  int64_t until_s = 0;
};

struct Signer {
  const X509* certificate;  // null: the certificate signs itself
  EVP_PKEY* key;
};

// subject: the key that the certificate is about.
Result<Certificate> sign(const Order& order, EVP_PKEY& subject, const Signer& signer);

struct Revoked {
  Serial serial{};
  int64_t when_s = 0;
};

struct ListOrder {
  std::vector<Revoked> revoked{};
  uint64_t number = 0;  // greater than the one before
  int64_t since_s = 0;
  int64_t until_s = 0;  // when there must be another one
};

// As PEM.
Result<std::string> sign_list(const ListOrder& order, const Signer& signer);

// Whether the certificate is one that the signer has signed, whatever its times.
[[nodiscard]] bool is_signed_by(const X509& certificate, const Signer& signer);
[[nodiscard]] bool is_key_of(const EVP_PKEY& key, const X509& certificate);
// In seconds since the epoch.
Result<int64_t> end_of(const X509& certificate);
// When there must be another list. Error: kMalformed.
Result<int64_t> end_of_list(const std::string& pem, const std::string& what);

}  // namespace djinn::authority
