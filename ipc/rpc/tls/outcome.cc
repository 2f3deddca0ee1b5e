// SPDX-License-Identifier: Apache-2.0

#include "ipc/rpc/tls/outcome.h"

#include <openssl/err.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>

#include <ctime>

namespace djinn::tls {
namespace {

// An alert that the other side sent is an error of its own in OpenSSL's queue.
constexpr int kAlertsFrom = SSL_AD_REASON_OFFSET;
constexpr int kAlertsTo = kAlertsFrom + 255;

Failure of_alert(int alert) {
  const char* why = "has refused this side, and does not say why.";
  switch (alert) {
    case SSL_AD_CERTIFICATE_REVOKED:
      why = "says that this side's certificate was revoked.";
      break;
    case SSL_AD_CERTIFICATE_EXPIRED:
      why =
          "says that this side's certificate has expired by its clock, or that its own list of "
          "revoked ones has.";
      break;
    case SSL_AD_UNKNOWN_CA:
      why = "knows no authority that has signed this side's certificate.";
      break;
    case SSL_AD_CERTIFICATE_REQUIRED:
      why = "has seen no certificate of this side.";
      break;
    case SSL_AD_BAD_CERTIFICATE:
      why =
          "does not take this side's certificate: its key is too weak, or it is not valid yet by "
          "that host's clock.";
      break;
    case SSL_AD_UNSUPPORTED_CERTIFICATE:
    case SSL_AD_CERTIFICATE_UNKNOWN:
    case SSL_AD_ACCESS_DENIED:
    case SSL_AD_HANDSHAKE_FAILURE:
      why = "does not take this side's certificate: its log says why.";
      break;
    case SSL_AD_PROTOCOL_VERSION:
    case SSL_AD_NO_APPLICATION_PROTOCOL:
      why = "speaks no version of TLS, or of this protocol, that this side speaks.";
      break;
    default:
      break;
  }
  return {Outcome::kRefused, why};
}

Outcome outcome_of_reason(int reason) {
  switch (reason) {
    case SSL_R_HTTP_REQUEST:
    case SSL_R_HTTPS_PROXY_REQUEST:
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_PACKET_LENGTH_TOO_LONG:
    case SSL_R_BAD_RECORD_TYPE:
      return Outcome::kNotTls;
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_VERSION_TOO_LOW:
    case SSL_R_UNKNOWN_PROTOCOL:
    case SSL_R_NO_PROTOCOLS_AVAILABLE:
    case SSL_R_WRONG_SSL_VERSION:
      return Outcome::kOldVersion;
    case SSL_R_NO_SHARED_CIPHER:
    case SSL_R_NO_SUITABLE_KEY_SHARE:
    case SSL_R_NO_SHARED_GROUPS:
    case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:
    case SSL_R_NO_SHARED_SIGNATURE_ALGORITHMS:
    case SSL_R_NO_APPLICATION_PROTOCOL:
      return Outcome::kNothingShared;
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
      return Outcome::kNoCertificate;
    case SSL_R_BAD_SIGNATURE:
      return Outcome::kBadSignature;
    case SSL_R_WRONG_SIGNATURE_TYPE:
    case SSL_R_WRONG_CURVE:
    case SSL_R_EE_KEY_TOO_SMALL:
    case SSL_R_CA_KEY_TOO_SMALL:
    case SSL_R_CA_MD_TOO_WEAK:
      return Outcome::kWeak;
    case SSL_R_EXCESSIVE_MESSAGE_SIZE:
    case SSL_R_DATA_LENGTH_TOO_LONG:
      return Outcome::kTooLong;
    case SSL_R_UNEXPECTED_EOF_WHILE_READING:
      return Outcome::kTruncated;
    default:
      return Outcome::kProtocol;
  }
}

const char* words_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::kNotTls:
      return "does not speak TLS.";
    case Outcome::kOldVersion:
      return "speaks no TLS 1.3.";
    case Outcome::kNothingShared:
      return "shares no cipher, curve, signature or protocol with this side.";
    case Outcome::kNoCertificate:
      return "has shown no certificate.";
    case Outcome::kBadSignature:
      return "does not hold the key of the certificate that it shows.";
    case Outcome::kWeak:
      return "has a key or a digest that is too weak.";
    case Outcome::kTooLong:
      return "has sent more than a handshake may have.";
    case Outcome::kTruncated:
      return "has closed the connection.";
    default:
      return "does not keep to TLS.";
  }
}

}  // namespace

std::string time_text(const ASN1_TIME* time) {
  std::tm fields{};
  if (ASN1_TIME_to_tm(time, &fields) != 1) return "an unknown time";
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &fields)};
}

Failure failure_of_verifying(int error, X509* certificate) {
  const auto time = [certificate](auto of) {
    return certificate != nullptr ? time_text(of(certificate)) : std::string("an unknown time");
  };
  switch (error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return {Outcome::kExpired,
              "shows a certificate that expired at " + time(&X509_get0_notAfter) + '.'};
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return {Outcome::kNotYetValid, "shows a certificate that is valid from " +
                                         time(&X509_get0_notBefore) +
                                         " on: compare the clocks of both hosts."};
    case X509_V_ERR_CERT_REVOKED:
      return {Outcome::kRevoked, "shows a certificate that was revoked."};
    case X509_V_ERR_UNABLE_TO_GET_CRL:
    case X509_V_ERR_UNABLE_TO_GET_CRL_ISSUER:
    case X509_V_ERR_CRL_HAS_EXPIRED:
    case X509_V_ERR_CRL_NOT_YET_VALID:
    case X509_V_ERR_CRL_SIGNATURE_FAILURE:
    case X509_V_ERR_CRL_PATH_VALIDATION_ERROR:
    case X509_V_ERR_DIFFERENT_CRL_SCOPE:
      return {Outcome::kRevocationUnknown,
              "shows a certificate of which nobody can tell whether it was revoked: the list has "
              "expired, or is another authority's."};
    case X509_V_ERR_EE_KEY_TOO_SMALL:
    case X509_V_ERR_CA_KEY_TOO_SMALL:
    case X509_V_ERR_CA_MD_TOO_WEAK:
      return {Outcome::kWeak, "shows a certificate whose key or digest is too weak."};
    case X509_V_ERR_INVALID_PURPOSE:
    case X509_V_ERR_INVALID_CA:
    case X509_V_ERR_PATH_LENGTH_EXCEEDED:
    case X509_V_ERR_KEYUSAGE_NO_CERTSIGN:
      return {Outcome::kBadUse, "shows a certificate that is for something else."};
    case X509_V_ERR_CERT_CHAIN_TOO_LONG:
      return {Outcome::kUntrusted, "shows a certificate that is too far from an authority."};
    default:
      return {Outcome::kUntrusted,
              std::string("shows a certificate that no authority of this side vouches for: ") +
                  X509_verify_cert_error_string(error) + '.'};
  }
}

Failure failure_of_connection(int ssl_error) {
  const unsigned long error = ERR_peek_error();
  ERR_clear_error();
  if (ssl_error == SSL_ERROR_SYSCALL && error == 0) {
    return {Outcome::kTruncated, words_of(Outcome::kTruncated)};
  }
  const int reason = ERR_GET_REASON(error);
  if (reason > kAlertsFrom && reason <= kAlertsTo) return of_alert(reason - kAlertsFrom);
  const Outcome outcome = outcome_of_reason(reason);
  return {outcome, words_of(outcome)};
}

}  // namespace djinn::tls
