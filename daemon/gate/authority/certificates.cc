// SPDX-License-Identifier: Apache-2.0

#include "daemon/gate/authority/certificates.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <charconv>
#include <utility>

namespace djinn::authority {
namespace {

constexpr size_t kCommonNameBytesMax = 64;  // RFC 5280, appendix A: ub-common-name
constexpr int kRsaBitsMin = 2048;
constexpr long kVersion3 = 2;
constexpr long kListVersion2 = 1;

using Bio = std::unique_ptr<BIO, Freed<&BIO_free>>;
using Number = std::unique_ptr<ASN1_INTEGER, Freed<&ASN1_INTEGER_free>>;
using BigNumber = std::unique_ptr<BIGNUM, Freed<&BN_free>>;
using Time = std::unique_ptr<ASN1_TIME, Freed<&ASN1_TIME_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, Freed<&X509_EXTENSION_free>>;
using Names = std::unique_ptr<GENERAL_NAMES, Freed<&GENERAL_NAMES_free>>;
using Request = std::unique_ptr<X509_REQ, Freed<&X509_REQ_free>>;
using List = std::unique_ptr<X509_CRL, Freed<&X509_CRL_free>>;
using Entry = std::unique_ptr<X509_REVOKED, Freed<&X509_REVOKED_free>>;

// Makes an error of what libcrypto says was wrong first, and forgets the rest.
Error crypto_error(std::string_view what) {
  std::array<char, 256> why{"no reason given"};
  if (const unsigned long first = ERR_get_error(); first != 0) {
    ERR_error_string_n(first, why.data(), why.size());
  }
  ERR_clear_error();
  return {ErrorCode::kInternal,
          fmt::format("libcrypto could not {}: {}. Nothing was issued.", what, why.data())};
}

Error malformed(std::string message) {
  ERR_clear_error();
  return {ErrorCode::kMalformed, std::move(message)};
}

// PEM would ask for a password at the terminal, of which nobody knows here.
int no_password(char*, int, int, void*) {
  return -1;
}

template <typename Write>
Result<std::string> text_by(Write write) {
  const Bio bio(BIO_new(BIO_s_mem()));
  if (bio == nullptr || write(bio.get()) != 1) return crypto_error("write PEM");
  char* bytes = nullptr;
  const long length = BIO_get_mem_data(bio.get(), &bytes);
  return std::string(bytes, static_cast<size_t>(length));
}

Bio bio_of(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

Result<Number> number_of(const Serial& serial) {
  const BigNumber big(BN_bin2bn(serial.data(), static_cast<int>(serial.size()), nullptr));
  Number number(big == nullptr ? nullptr : BN_to_ASN1_INTEGER(big.get(), nullptr));
  if (number == nullptr) return crypto_error("write a serial number");
  return number;
}

Result<Time> time_of(int64_t seconds) {
  Time time(ASN1_TIME_set(nullptr, seconds));
  if (time == nullptr) return crypto_error("write a time");
  return time;
}

Result<int64_t> seconds_of(const ASN1_TIME* time) {
  int days = 0;
  int seconds = 0;
  DJINN_TRY(const Time epoch, time_of(0));
  if (time == nullptr || ASN1_TIME_diff(&days, &seconds, epoch.get(), time) != 1) {
    return crypto_error("read a time");
  }
  return days * kDaySeconds + seconds;
}

// --- extensions

Status add_name(GENERAL_NAMES& names, int type, const std::string& text) {
  GENERAL_NAME* const name = GENERAL_NAME_new();
  ASN1_IA5STRING* const value = ASN1_IA5STRING_new();
  if (name == nullptr || value == nullptr ||
      ASN1_STRING_set(value, text.data(), static_cast<int>(text.size())) != 1) {
    ASN1_IA5STRING_free(value);
    GENERAL_NAME_free(name);
    return crypto_error("write a name");
  }
  GENERAL_NAME_set0_value(name, type, value);
  if (sk_GENERAL_NAME_push(&names, name) > 0) return {};
  GENERAL_NAME_free(name);
  return crypto_error("write a name");
}

Status add_names(X509& certificate, const Order& order) {
  const Names names(GENERAL_NAMES_new());
  if (names == nullptr) return crypto_error("write names");
  DJINN_CHECK(add_name(*names, GEN_URI, order.principal));
  for (const std::string& name : order.dns_names) DJINN_CHECK(add_name(*names, GEN_DNS, name));
  constexpr int kNotCritical = 0;
  if (X509_add1_ext_i2d(&certificate, NID_subject_alt_name, names.get(), kNotCritical,
                        X509V3_ADD_DEFAULT) == 1) {
    return {};
  }
  return crypto_error("write names");
}

// value: in the words of x509v3_config(5); none of them comes from outside.
Status add_extension(X509& certificate, X509V3_CTX& context, int nid, const char* value) {
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value));
  if (extension != nullptr && X509_add_ext(&certificate, extension.get(), -1) == 1) return {};
  return crypto_error("write an extension");
}

Status add_extensions(X509& certificate, const Order& order, const X509& issuer) {
  X509V3_CTX context{};
  X509V3_set_ctx(&context, const_cast<X509*>(&issuer), &certificate, nullptr, nullptr, 0);
  const bool signs = order.kind == Kind::kAuthority;
  using Words = std::pair<int, const char*>;
  std::vector<Words> extensions{
      {NID_basic_constraints, signs ? "critical,CA:TRUE,pathlen:0" : "critical,CA:FALSE"},
      {NID_key_usage, signs ? "critical,keyCertSign,cRLSign" : "critical,digitalSignature"}};
  if (!signs) {
    extensions.push_back(
        {NID_ext_key_usage, order.kind == Kind::kGate ? "serverAuth" : "clientAuth"});
  }
  extensions.push_back({NID_subject_key_identifier, "hash"});
  extensions.push_back({NID_authority_key_identifier, "keyid:always"});
  for (const auto& [nid, value] : extensions) {
    DJINN_CHECK(add_extension(certificate, context, nid, value));
  }
  return signs ? Status() : add_names(certificate, order);
}

// --- certificates

Status set_subject(X509& certificate, const std::string& common_name) {
  const std::string name = common_name.substr(0, kCommonNameBytesMax);
  X509_NAME* const subject = X509_get_subject_name(&certificate);
  if (X509_NAME_add_entry_by_NID(subject, NID_commonName, MBSTRING_ASC,
                                 reinterpret_cast<const unsigned char*>(name.data()),
                                 static_cast<int>(name.size()), -1, 0) == 1) {
    return {};
  }
  return crypto_error("write a name");
}

Status set_times(X509& certificate, const Order& order) {
  DJINN_TRY(const Time since, time_of(order.since_s));
  DJINN_TRY(const Time until, time_of(order.until_s));
  if (X509_set1_notBefore(&certificate, since.get()) == 1 &&
      X509_set1_notAfter(&certificate, until.get()) == 1) {
    return {};
  }
  return crypto_error("write times");
}

// --- lists of what was revoked

Status add_revoked(X509_CRL& list, const Revoked& revoked) {
  DJINN_TRY(const Number serial, number_of(revoked.serial));
  DJINN_TRY(const Time when, time_of(revoked.when_s));
  Entry entry(X509_REVOKED_new());
  if (entry == nullptr || X509_REVOKED_set_serialNumber(entry.get(), serial.get()) != 1 ||
      X509_REVOKED_set_revocationDate(entry.get(), when.get()) != 1 ||
      X509_CRL_add0_revoked(&list, entry.get()) != 1) {
    return crypto_error("write a revoked certificate");
  }
  (void)entry.release();  // the list's
  return {};
}

Status add_list_extensions(X509_CRL& list, const ListOrder& order, const X509& issuer) {
  X509V3_CTX context{};
  X509V3_set_ctx(&context, const_cast<X509*>(&issuer), nullptr, nullptr, &list, 0);
  const Extension identifier(
      X509V3_EXT_conf_nid(nullptr, &context, NID_authority_key_identifier, "keyid:always"));
  const Number number(ASN1_INTEGER_new());
  constexpr int kNotCritical = 0;
  if (identifier != nullptr && number != nullptr &&
      X509_CRL_add_ext(&list, identifier.get(), -1) == 1 &&
      ASN1_INTEGER_set_uint64(number.get(), order.number) == 1 &&
      X509_CRL_add1_ext_i2d(&list, NID_crl_number, number.get(), kNotCritical,
                            X509V3_ADD_DEFAULT) == 1) {
    return {};
  }
  return crypto_error("write the list's extensions");
}

// RFC 8446, section 4.2.3: of elliptic curves TLS 1.3 has three for ECDSA.
bool is_good_for_tls(const EVP_PKEY& key) {
  if (EVP_PKEY_is_a(&key, "RSA") == 1) return EVP_PKEY_get_bits(&key) >= kRsaBitsMin;
  if (EVP_PKEY_is_a(&key, "EC") != 1) return EVP_PKEY_is_a(&key, "ED25519") == 1;
  std::array<char, 32> curve{};
  size_t length = 0;
  if (EVP_PKEY_get_group_name(&key, curve.data(), curve.size(), &length) != 1) return false;
  const std::string_view name(curve.data(), length);
  return name == SN_X9_62_prime256v1 || name == SN_secp384r1 || name == SN_secp521r1;
}

}  // namespace

Result<Serial> random_serial() {
  Serial serial{};
  if (RAND_bytes(serial.data(), static_cast<int>(serial.size())) != 1) {
    return crypto_error("draw a serial number");
  }
  return serial;
}

std::string text_of(const Serial& serial) {
  return fmt::format("{:02x}", fmt::join(serial, ""));
}

Result<Serial> serial_of(std::string_view text) {
  Serial serial{};
  bool is_one = text.size() == 2 * serial.size();
  for (size_t i = 0; is_one && i < serial.size(); ++i) {
    const char* const digits = text.data() + 2 * i;
    const auto [rest, error] = std::from_chars(digits, digits + 2, serial[i], 16);
    is_one = error == std::errc() && rest == digits + 2;
  }
  if (is_one && text_of(serial) == text) return serial;
  return Error{ErrorCode::kInvalidArgument, "A serial number has 32 lower-case hex digits."};
}

Result<Key> make_key() {
  Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) return crypto_error("make a key");
  return key;
}

Result<std::string> pem_of(const EVP_PKEY& key) {
  return text_by([&](BIO* bio) {
    return PEM_write_bio_PKCS8PrivateKey(bio, &key, nullptr, nullptr, 0, nullptr, nullptr);
  });
}

Result<std::string> pem_of(const X509& certificate) {
  return text_by([&](BIO* bio) { return PEM_write_bio_X509(bio, &certificate); });
}

Result<Key> key_of(const std::string& pem, const std::string& what) {
  Key key(PEM_read_bio_PrivateKey(bio_of(pem).get(), nullptr, no_password, nullptr));
  if (key != nullptr) return key;
  return malformed(what +
                   " has no private key that can be read without a password. Put back the "
                   "file that was there, from a copy.");
}

Result<Certificate> certificate_of(const std::string& pem, const std::string& what) {
  Certificate certificate(PEM_read_bio_X509(bio_of(pem).get(), nullptr, no_password, nullptr));
  if (certificate != nullptr) return certificate;
  return malformed(what +
                   " has no certificate that can be read. Put back the file that was there, "
                   "from a copy.");
}

Result<Key> key_of_request(const std::string& pem, const std::string& what) {
  const Request request(PEM_read_bio_X509_REQ(bio_of(pem).get(), nullptr, no_password, nullptr));
  if (request == nullptr) {
    return malformed(what +
                     " is no certificate request (PKCS #10, PEM). 'openssl req -new' makes "
                     "one of a key.");
  }
  Key key(X509_REQ_get_pubkey(request.get()));
  if (key == nullptr || X509_REQ_verify(request.get(), key.get()) != 1) {
    return malformed(what + " is not signed by the key that it names. Make the request anew.");
  }
  if (is_good_for_tls(*key)) return key;
  return Error{ErrorCode::kUnsupported,
               what +
                   " names a key that is too short, or of a kind that TLS 1.3 has no use for. "
                   "Take ECDSA on P-256, or Ed25519, or RSA of 3072 bits."};
}

Result<Certificate> sign(const Order& order, EVP_PKEY& subject, const Signer& signer) {
  Certificate certificate(X509_new());
  if (certificate == nullptr) return crypto_error("make a certificate");
  X509& made = *certificate;
  const X509& issuer = signer.certificate == nullptr ? std::as_const(made) : *signer.certificate;
  DJINN_TRY(const Number serial, number_of(order.serial));
  DJINN_CHECK(set_subject(made, order.common_name));
  DJINN_CHECK(set_times(made, order));
  if (X509_set_version(&made, kVersion3) != 1 || X509_set_serialNumber(&made, serial.get()) != 1 ||
      X509_set_issuer_name(&made, X509_get_subject_name(&issuer)) != 1 ||
      X509_set_pubkey(&made, &subject) != 1) {
    return crypto_error("make a certificate");
  }
  DJINN_CHECK(add_extensions(made, order, issuer));
  if (X509_sign(&made, signer.key, EVP_sha256()) <= 0) return crypto_error("sign a certificate");
  return certificate;
}

Result<std::string> sign_list(const ListOrder& order, const Signer& signer) {
  const List list(X509_CRL_new());
  if (list == nullptr) return crypto_error("make a list");
  DJINN_TRY(const Time since, time_of(order.since_s));
  DJINN_TRY(const Time until, time_of(order.until_s));
  if (X509_CRL_set_version(list.get(), kListVersion2) != 1 ||
      X509_CRL_set_issuer_name(list.get(), X509_get_subject_name(signer.certificate)) != 1 ||
      X509_CRL_set1_lastUpdate(list.get(), since.get()) != 1 ||
      X509_CRL_set1_nextUpdate(list.get(), until.get()) != 1) {
    return crypto_error("make a list");
  }
  for (const Revoked& revoked : order.revoked) DJINN_CHECK(add_revoked(*list, revoked));
  DJINN_CHECK(add_list_extensions(*list, order, *signer.certificate));
  if (X509_CRL_sort(list.get()) != 1 || X509_CRL_sign(list.get(), signer.key, EVP_sha256()) <= 0) {
    return crypto_error("sign a list");
  }
  return text_by([&](BIO* bio) { return PEM_write_bio_X509_CRL(bio, list.get()); });
}

bool is_signed_by(const X509& certificate, const Signer& signer) {
  const bool is = X509_verify(const_cast<X509*>(&certificate), signer.key) == 1;
  ERR_clear_error();
  return is;
}

bool is_key_of(const EVP_PKEY& key, const X509& certificate) {
  const bool is = X509_check_private_key(&certificate, &key) == 1;
  ERR_clear_error();
  return is;
}

Result<int64_t> end_of(const X509& certificate) {
  return seconds_of(X509_get0_notAfter(&certificate));
}

Result<int64_t> end_of_list(const std::string& pem, const std::string& what) {
  const List list(PEM_read_bio_X509_CRL(bio_of(pem).get(), nullptr, no_password, nullptr));
  if (list == nullptr) {
    return malformed(what +
                     " is no list of revoked certificates. 'djinnctl gate renew' makes it "
                     "anew.");
  }
  return seconds_of(X509_CRL_get0_nextUpdate(list.get()));
}

}  // namespace djinn::authority
