// SPDX-License-Identifier: Apache-2.0

// FolderForTests: a folder of a test's own, removed with it. RequestForTests: a certificate request
// that asks for more than it gets.
#pragma once

#include <gtest/gtest.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

#include "daemon/gate/authority/certificates.h"
#include "kernel/base/disk.h"
#include "kernel/base/file.h"

namespace djinn::authority {

class FolderForTests {
 public:
  FolderForTests() {
    path_ = testing::TempDir() + "djinn-authority.XXXXXX";
    EXPECT_NE(::mkdtemp(path_.data()), nullptr);
  }
  ~FolderForTests() { std::filesystem::remove_all(path_); }
  FolderForTests(const FolderForTests&) = delete;
  FolderForTests& operator=(const FolderForTests&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::string bytes_of(const std::string& path) {
  constexpr uint64_t kBytesMax = 1 << 20;
  auto bytes = read_regular_file(path, kBytesMax);
  EXPECT_TRUE(bytes.ok()) << path;
  return bytes ? *std::move(bytes) : "";
}

class RequestForTests {
 public:
  RequestForTests() : RequestForTests(EVP_EC_gen("P-256")) {}
  // key: taken over.
  explicit RequestForTests(EVP_PKEY* key) : key_(key) { sign(key); }

  [[nodiscard]] const std::string& pem() const { return pem_; }
  [[nodiscard]] const EVP_PKEY& key() const { return *key_; }

 private:
  void sign(EVP_PKEY* key) {
    X509_REQ* const request = X509_REQ_new();
    X509_REQ_set_version(request, 0);
    X509_REQ_set_pubkey(request, key);
    STACK_OF(X509_EXTENSION)* extensions = sk_X509_EXTENSION_new_null();
    const std::pair<int, const char*> wanted[] = {
        {NID_subject_alt_name, "URI:spiffe://example.org/root"},
        {NID_basic_constraints, "critical,CA:TRUE"},
        {NID_ext_key_usage, "serverAuth"}};
    for (const auto& [nid, value] : wanted) {
      sk_X509_EXTENSION_push(extensions, X509V3_EXT_conf_nid(nullptr, nullptr, nid, value));
    }
    X509_REQ_add_extensions(request, extensions);
    sk_X509_EXTENSION_pop_free(extensions, X509_EXTENSION_free);
    const bool hashes_itself =
        EVP_PKEY_is_a(key, "ED25519") == 1 || EVP_PKEY_is_a(key, "ED448") == 1;
    EXPECT_GT(X509_REQ_sign(request, key, hashes_itself ? nullptr : EVP_sha256()), 0);
    BIO* const bio = BIO_new(BIO_s_mem());
    EXPECT_EQ(PEM_write_bio_X509_REQ(bio, request), 1);
    char* bytes = nullptr;
    const long length = BIO_get_mem_data(bio, &bytes);
    pem_.assign(bytes, static_cast<size_t>(length));
    BIO_free(bio);
    X509_REQ_free(request);
  }

  Key key_;
  std::string pem_;
};

}  // namespace djinn::authority
