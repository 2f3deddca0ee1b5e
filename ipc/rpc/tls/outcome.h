// SPDX-License-Identifier: Apache-2.0

// Outcome: how a handshake ended: a closed list, for counters and audits, each with its own words.
#pragma once

#include <openssl/ssl.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernel/base/error.h"

namespace djinn::tls {

enum class Outcome : uint8_t {
  kOk,
  kNotTls,         // plain text, or noise
  kOldVersion,     // before TLS 1.3
  kNothingShared,  // no cipher, curve or protocol that both sides have
  kNoCertificate,
  kUntrusted,  // of another authority, or none
  kExpired,
  kNotYetValid,
  kRevoked,
  kRevocationUnknown,  // the list of revoked certificates has expired, or is another authority's
  kBadUse,             // a certificate that is for something else
  kBadName,            // no spiffe:// name, more than one, another domain's, or not the one meant
  kWeak,               // keys or digests that are too short
  kBadSignature,
  kRefused,    // by the other side, with an alert
  kTruncated,  // the connection ended within it
  kTooLong,    // more bytes than a handshake may have
  kTimeout,
  kProtocol,  // anything else
};
inline constexpr std::array<std::string_view, 19> kOutcomeNames{
    "ok",        "not-tls",  "old-version",   "nothing-shared", "no-certificate",
    "untrusted", "expired",  "not-yet-valid", "revoked",        "revocation-unknown",
    "bad-use",   "bad-name", "weak",          "bad-signature",  "refused",
    "truncated", "too-long", "timeout",       "protocol"};
static_assert(kOutcomeNames.size() == static_cast<size_t>(Outcome::kProtocol) + 1);

struct Failure {
  Outcome outcome;
  std::string message;  // a sentence about the other side
};

// X509_V_ERR_*, and the certificate that it is said of, if there is one.
Failure failure_of_verifying(int error, X509* certificate);
// What SSL_get_error() says, and OpenSSL's queue of errors, which is empty after.
Failure failure_of_connection(int ssl_error);

// As in 2026-11-30 08:00:00 UTC.
std::string time_text(const ASN1_TIME* time);

}  // namespace djinn::tls
