// SPDX-License-Identifier: Apache-2.0

// Certificates for tests, good ones and such as nobody should take.
#pragma once

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>
#include <vector>

#include "ipc/rpc/tls/context.h"

namespace djinn::tls {

using TestKey = std::shared_ptr<EVP_PKEY>;

inline TestKey ec_key(const char* curve = "P-256") {
  return {EVP_EC_gen(curve), &EVP_PKEY_free};
}
inline TestKey rsa_key(unsigned bits) {
  return {EVP_RSA_gen(bits), &EVP_PKEY_free};
}

// What a certificate says of itself.
struct Said {
  // Each of san is URI:... or DNS:..., a newline in it a zero byte; the others as OpenSSL's
  // configuration has them.
  std::vector<std::string> san{"URI:spiffe://lab/ann"};
  std::string extended_use = "clientAuth";
  std::string use = "digitalSignature";
  bool is_authority = false;
  long from_s = -60, until_s = 3600;  // from now
  TestKey key = ec_key();
  const EVP_MD* digest = EVP_sha256();
  std::string common_name;
};

struct Issued {
  std::shared_ptr<X509> certificate;
  TestKey key;

  [[nodiscard]] std::string certificate_pem() const {
    return pem([&](BIO* bio) { PEM_write_bio_X509(bio, certificate.get()); });
  }
  [[nodiscard]] std::string key_pem() const {
    return pem([&](BIO* bio) {
      PEM_write_bio_PKCS8PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    });
  }
  template <typename Write>
  static std::string pem(const Write& write) {
    BIO* const bio = BIO_new(BIO_s_mem());
    write(bio);
    char* data = nullptr;
    const long bytes = BIO_get_mem_data(bio, &data);
    std::string text(data, static_cast<size_t>(bytes));
    BIO_free(bio);
    return text;
  }
};

class TestAuthority {
 public:
  explicit TestAuthority(std::string name = "authority") : name_(std::move(name)) {
    Said said;
    said.san = {};
    said.extended_use = "";
    said.use = "keyCertSign,cRLSign";
    said.is_authority = true;
    said.common_name = name_;
    self_ = signed_by(nullptr, said);
  }

  // One that another one has signed for.
  TestAuthority(const TestAuthority& by, const Said& said)
      : name_(said.common_name), self_(by.issue(said)) {}
  static Issued of_itself(const Said& said) { return signed_by(nullptr, said); }

  [[nodiscard]] const Issued& self() const { return self_; }
  [[nodiscard]] Issued issue(const Said& said) const { return signed_by(&self_, said); }
  [[nodiscard]] std::string pem() const { return self_.certificate_pem(); }

  // A list of what was revoked, good until until_s from now.
  [[nodiscard]] std::string revoked(const std::vector<Issued>& issued, long until_s = 3600) const {
    const std::shared_ptr<X509_CRL> list(X509_CRL_new(), &X509_CRL_free);
    X509_CRL_set_version(list.get(), 1);
    X509_CRL_set_issuer_name(list.get(), X509_get_subject_name(self_.certificate.get()));
    ASN1_TIME* const time = X509_gmtime_adj(nullptr, -7200);
    X509_CRL_set1_lastUpdate(list.get(), time);
    X509_gmtime_adj(time, until_s);
    X509_CRL_set1_nextUpdate(list.get(), time);
    for (const Issued& one : issued) {
      X509_REVOKED* const entry = X509_REVOKED_new();
      X509_REVOKED_set_serialNumber(entry, X509_get_serialNumber(one.certificate.get()));
      X509_gmtime_adj(time, -60);
      X509_REVOKED_set_revocationDate(entry, time);
      X509_CRL_add0_revoked(list.get(), entry);
    }
    ASN1_TIME_free(time);
    X509V3_CTX context;
    X509V3_set_ctx(&context, self_.certificate.get(), nullptr, nullptr, list.get(), 0);
    X509_EXTENSION* const key =
        X509V3_EXT_conf_nid(nullptr, &context, NID_authority_key_identifier, "keyid:always");
    X509_CRL_add_ext(list.get(), key, -1);
    X509_EXTENSION_free(key);
    ASN1_INTEGER* const number = ASN1_INTEGER_new();
    ASN1_INTEGER_set(number, 1);
    X509_CRL_add1_ext_i2d(list.get(), NID_crl_number, number, 0, 0);
    ASN1_INTEGER_free(number);
    X509_CRL_sort(list.get());
    X509_CRL_sign(list.get(), self_.key.get(), EVP_sha256());
    return Issued::pem([&](BIO* bio) { PEM_write_bio_X509_CRL(bio, list.get()); });
  }

 private:
  static void add(X509* certificate, X509* issuer, int nid, const std::string& value) {
    X509V3_CTX context;
    X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
    X509_EXTENSION* const one = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
    if (one == nullptr) std::abort();
    X509_add_ext(certificate, one, -1);
    X509_EXTENSION_free(one);
  }

  static void add_names(X509* certificate, const std::vector<std::string>& san, bool critical) {
    GENERAL_NAMES* const names = GENERAL_NAMES_new();
    for (const std::string& one : san) {
      const size_t colon = one.find(':');
      std::string value = one.substr(colon + 1);
      for (char& c : value) c = c == '\n' ? '\0' : c;
      GENERAL_NAME* const name = GENERAL_NAME_new();
      ASN1_IA5STRING* const text = ASN1_IA5STRING_new();
      ASN1_STRING_set(text, value.data(), static_cast<int>(value.size()));
      GENERAL_NAME_set0_value(name, one.starts_with("URI") ? GEN_URI : GEN_DNS, text);
      sk_GENERAL_NAME_push(names, name);
    }
    X509_add1_ext_i2d(certificate, NID_subject_alt_name, names, critical ? 1 : 0, 0);
    GENERAL_NAMES_free(names);
  }

  // by: nobody: itself.
  static Issued signed_by(const Issued* by, const Said& said) {
    const Issued issued{{X509_new(), &X509_free}, said.key};
    X509* const one = issued.certificate.get();
    X509* const issuer = by != nullptr ? by->certificate.get() : one;
    static long serial = 1;
    X509_set_version(one, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(one), ++serial);
    X509_gmtime_adj(X509_getm_notBefore(one), said.from_s);
    X509_gmtime_adj(X509_getm_notAfter(one), said.until_s);
    X509_set_pubkey(one, said.key.get());
    if (!said.common_name.empty()) {
      X509_NAME_add_entry_by_txt(X509_get_subject_name(one), "CN", MBSTRING_ASC,
                                 reinterpret_cast<const unsigned char*>(said.common_name.c_str()),
                                 -1, -1, 0);
    }
    X509_set_issuer_name(one, X509_get_subject_name(issuer));
    add(one, issuer, NID_basic_constraints,
        said.is_authority ? "critical,CA:TRUE" : "critical,CA:FALSE");
    add(one, issuer, NID_subject_key_identifier, "hash");
    add(one, issuer, NID_authority_key_identifier, "keyid:always");
    if (!said.use.empty()) add(one, issuer, NID_key_usage, "critical," + said.use);
    if (!said.extended_use.empty()) add(one, issuer, NID_ext_key_usage, said.extended_use);
    if (!said.san.empty()) add_names(one, said.san, said.common_name.empty());
    EVP_PKEY* const key = by != nullptr ? by->key.get() : said.key.get();
    if (X509_sign(one, key, said.digest) == 0) std::abort();
    return issued;
  }

  std::string name_;
  Issued self_;
};

}  // namespace djinn::tls
