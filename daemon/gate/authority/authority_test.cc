// SPDX-License-Identifier: Apache-2.0

// What an authority issues is judged by OpenSSL's own verifier, with all that it can be strict
// about, and by nothing of ours.

#include "daemon/gate/authority/authority.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "daemon/gate/authority/folder_for_tests.h"
#include "kernel/base/clock_for_tests.h"

namespace djinn::authority {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr uint64_t kNow = 1'800'000'000 * kNsPerSecond;
constexpr uint64_t kDayNs = kDaySeconds * kNsPerSecond;

using Bio = std::unique_ptr<BIO, decltype([](BIO* bio) { BIO_free(bio); })>;
using List = std::unique_ptr<X509_CRL, decltype([](X509_CRL* list) { X509_CRL_free(list); })>;
using Store = std::unique_ptr<X509_STORE, decltype([](X509_STORE* s) { X509_STORE_free(s); })>;
using Context =
    std::unique_ptr<X509_STORE_CTX, decltype([](X509_STORE_CTX* c) { X509_STORE_CTX_free(c); })>;
using Names = std::unique_ptr<GENERAL_NAMES,
                              decltype([](GENERAL_NAMES* names) { GENERAL_NAMES_free(names); })>;

Certificate certificate_in(const std::string& pem) {
  auto read = certificate_of(pem, "a test's file");
  EXPECT_TRUE(read.ok());
  return read ? *std::move(read) : Certificate();
}

// The certificates of a profile or a file, in their order.
std::vector<Certificate> certificates_in(const std::string& pem) {
  constexpr std::string_view kBegin = "-----BEGIN CERTIFICATE-----";
  std::vector<Certificate> all;
  for (size_t at = pem.find(kBegin); at != std::string::npos; at = pem.find(kBegin, at + 1)) {
    all.push_back(certificate_in(pem.substr(at)));
  }
  return all;
}

std::vector<std::string> names_in(const X509& certificate, int type) {
  const Names names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(&certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::vector<std::string> found;
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != type) continue;
    found.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(name->d.ia5)),
                       static_cast<size_t>(ASN1_STRING_length(name->d.ia5)));
  }
  return found;
}

List list_in(const std::string& pem) {
  const Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  return List(PEM_read_bio_X509_CRL(bio.get(), nullptr, nullptr, nullptr));
}

// A folder with an authority, at a time that stands still.
class Authorities : public testing::Test {
 protected:
  Authorities() { clock_.now_ns = kNow; }

  Founding founding() {
    return {.trust_domain = "example.org",
            .host = "box",
            .addresses = {*parse_address("gpu.example.org:443"), *parse_address("10.0.0.1"),
                          *parse_address("gpu.example.org")}};
  }
  void found() {
    const auto made = Authority::found(disk_, clock_, place(), founding());
    ASSERT_TRUE(made.ok()) << made.error().message;
  }
  Authority open() {
    auto opened = Authority::open(disk_, clock_, place());
    EXPECT_TRUE(opened.ok());
    return *std::move(opened);
  }
  Enrolled enrol(const std::string& name, uint32_t days = 30) {
    auto enrolled = open().enrol({.name = name, .days = days});
    EXPECT_TRUE(enrolled.ok());
    return enrolled ? *std::move(enrolled) : Enrolled();
  }
  std::string place() const { return folder_.path() + "/gate"; }
  std::string file(const std::string& name) const { return bytes_of(place() + '/' + name); }
  mode_t mode_of(const std::string& name) const {
    struct stat status {};
    EXPECT_EQ(::stat((place() + '/' + name).c_str(), &status), 0) << name;
    return status.st_mode & 07777;
  }

  // What OpenSSL says of a certificate at the clock's time, as gates and their clients ask it: of
  // authorities.pem, of the list, and for a purpose. X509_V_OK, or why not.
  int judged(X509& leaf, int purpose, unsigned long flags = X509_V_FLAG_CRL_CHECK) {
    const Store store(X509_STORE_new());
    for (const Certificate& one : certificates_in(file("authorities.pem"))) {
      EXPECT_EQ(X509_STORE_add_cert(store.get(), one.get()), 1);
    }
    const List list = list_in(file("revoked.pem"));
    EXPECT_EQ(X509_STORE_add_crl(store.get(), list.get()), 1);
    const Context context(X509_STORE_CTX_new());
    EXPECT_EQ(X509_STORE_CTX_init(context.get(), store.get(), &leaf, nullptr), 1);
    X509_STORE_CTX_set_flags(context.get(), X509_V_FLAG_X509_STRICT | flags);
    X509_STORE_CTX_set_time(context.get(), 0, static_cast<time_t>(clock_.now_ns / kNsPerSecond));
    EXPECT_EQ(X509_STORE_CTX_set_purpose(context.get(), purpose), 1);
    const int verified = X509_verify_cert(context.get());
    const int why = X509_STORE_CTX_get_error(context.get());
    EXPECT_EQ(verified == 1, why == X509_V_OK);
    return why;
  }
  int judged_as_client(const Enrolled& enrolled) {
    return judged(*certificate_in(enrolled.profile), X509_PURPOSE_SSL_CLIENT);
  }

  FolderForTests folder_;
  ClockByHand clock_;
  Disk disk_;
};

TEST_F(Authorities, the_gates_certificate_is_a_servers_and_no_clients) {
  found();
  const Certificate gate = certificate_in(file("certificate.pem"));
  EXPECT_EQ(judged(*gate, X509_PURPOSE_SSL_SERVER), X509_V_OK);
  EXPECT_EQ(judged(*gate, X509_PURPOSE_SSL_CLIENT), X509_V_ERR_INVALID_PURPOSE);
  EXPECT_THAT(names_in(*gate, GEN_URI), ElementsAre("spiffe://example.org/djinn-gate/box"));
  EXPECT_THAT(names_in(*gate, GEN_DNS), ElementsAre("gpu.example.org"));
  EXPECT_EQ(X509_get_key_usage(gate.get()), static_cast<uint32_t>(KU_DIGITAL_SIGNATURE));
  EXPECT_EQ(X509_check_ca(gate.get()), 0);
  const auto key = key_of(file("key.pem"), "key.pem");
  ASSERT_TRUE(key.ok());
  EXPECT_TRUE(is_key_of(**key, *gate));
  clock_.now_ns += kGateDays * kDayNs - kNsPerSecond;
  EXPECT_EQ(judged(*gate, X509_PURPOSE_SSL_SERVER, 0), X509_V_OK);
  clock_.now_ns += 2 * kNsPerSecond;
  EXPECT_EQ(judged(*gate, X509_PURPOSE_SSL_SERVER, 0), X509_V_ERR_CERT_HAS_EXPIRED);
}

TEST_F(Authorities, the_authority_signs_certificates_and_lists_and_no_other_authority) {
  found();
  const Certificate ca = certificate_in(file("ca/certificate.pem"));
  EXPECT_EQ(X509_check_ca(ca.get()), 1);
  EXPECT_EQ(X509_get_pathlen(ca.get()), 0);
  EXPECT_EQ(X509_get_key_usage(ca.get()), static_cast<uint32_t>(KU_KEY_CERT_SIGN | KU_CRL_SIGN));
  EXPECT_EQ(file("authorities.pem"), file("ca/certificate.pem"));
  const auto end = end_of(*ca);
  ASSERT_TRUE(end.ok());
  EXPECT_EQ(*end, static_cast<int64_t>(kNow / kNsPerSecond) + kAuthorityDays * kDaySeconds);
}

TEST_F(Authorities, secrets_are_their_owners_alone) {
  found();
  enrol("alice");
  EXPECT_EQ(mode_of("ca"), 0700U);
  EXPECT_EQ(mode_of("ca/key.pem"), 0600U);
  EXPECT_EQ(mode_of("ca/issued"), 0600U);
  EXPECT_EQ(mode_of("key.pem"), 0600U);
  for (const char* name : {"certificate.pem", "authorities.pem", "revoked.pem"}) {
    EXPECT_EQ(mode_of(name), 0644U) << name;
  }
}

TEST_F(Authorities, a_key_that_others_may_read_is_not_used) {
  found();
  ASSERT_EQ(::chmod((place() + "/ca/key.pem").c_str(), 0640), 0);
  const auto opened = Authority::open(disk_, clock_, place());
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, ErrorCode::kPermissionDenied);
}

TEST_F(Authorities, who_is_enrolled_may_come_in_as_a_client_for_so_many_days) {
  found();
  const Enrolled alice = enrol("team/alice", 2);
  const Certificate leaf = certificate_in(alice.profile);
  EXPECT_EQ(judged(*leaf, X509_PURPOSE_SSL_CLIENT), X509_V_OK);
  EXPECT_EQ(judged(*leaf, X509_PURPOSE_SSL_SERVER), X509_V_ERR_INVALID_PURPOSE);
  EXPECT_THAT(names_in(*leaf, GEN_URI), ElementsAre("spiffe://example.org/team/alice"));
  EXPECT_THAT(names_in(*leaf, GEN_DNS), IsEmpty());
  EXPECT_EQ(X509_get_key_usage(leaf.get()), static_cast<uint32_t>(KU_DIGITAL_SIGNATURE));
  EXPECT_EQ(X509_check_ca(leaf.get()), 0);
  clock_.now_ns = kNow - (kEarlySeconds + 1) * kNsPerSecond;
  EXPECT_EQ(judged(*leaf, X509_PURPOSE_SSL_CLIENT, 0), X509_V_ERR_CERT_NOT_YET_VALID);
  clock_.now_ns = kNow - kEarlySeconds * kNsPerSecond;
  EXPECT_EQ(judged(*leaf, X509_PURPOSE_SSL_CLIENT), X509_V_OK);
  clock_.now_ns = kNow + 2 * kDayNs + kNsPerSecond;
  EXPECT_EQ(judged(*leaf, X509_PURPOSE_SSL_CLIENT), X509_V_ERR_CERT_HAS_EXPIRED);
}

TEST_F(Authorities, a_profile_says_where_the_gate_is_and_has_what_a_client_needs) {
  found();
  const Enrolled alice = enrol("alice");
  EXPECT_TRUE(alice.profile.starts_with(
      "address: gpu.example.org:443\ngate: spiffe://example.org/djinn-gate/box\n\n"
      "-----BEGIN CERTIFICATE-----\n"));
  const auto certificates = certificates_in(alice.profile);
  ASSERT_THAT(certificates, SizeIs(2));
  const auto key = key_of(alice.profile, "the profile");
  ASSERT_TRUE(key.ok());
  EXPECT_TRUE(is_key_of(**key, *certificates[0]));
  EXPECT_THAT(alice.profile, HasSubstr("-----BEGIN PRIVATE KEY-----\n"));
  EXPECT_TRUE(alice.profile.ends_with(file("ca/certificate.pem")));
  const auto elsewhere = open().enrol({.name = "bob", .address = *parse_address("[::1]:5")});
  ASSERT_TRUE(elsewhere.ok());
  EXPECT_TRUE(elsewhere->profile.starts_with("address: [::1]:5\n"));
}

TEST_F(Authorities, who_has_a_key_is_enrolled_without_showing_it) {
  found();
  const RequestForTests request;
  const auto enrolled = open().enrol({.name = "alice", .request = request.pem()});
  ASSERT_TRUE(enrolled.ok());
  const Certificate leaf = certificate_in(enrolled->profile);
  EXPECT_TRUE(is_key_of(request.key(), *leaf));
  EXPECT_EQ(judged(*leaf, X509_PURPOSE_SSL_CLIENT), X509_V_OK);
  EXPECT_THAT(enrolled->profile, testing::Not(HasSubstr("PRIVATE KEY")));
  // The names and uses that a request asks for are not its to have.
  EXPECT_THAT(names_in(*leaf, GEN_URI), ElementsAre("spiffe://example.org/alice"));
}

TEST_F(Authorities, a_request_of_another_key_or_none_is_refused) {
  found();
  const RequestForTests request;
  std::string changed = request.pem();
  char& letter = changed[changed.size() / 2];
  letter = letter == 'A' ? 'B' : 'A';
  for (const std::string& pem : {changed, std::string("no request"), std::string()}) {
    const auto enrolled = open().enrol({.name = "alice", .request = pem, .request_file = "a.csr"});
    ASSERT_FALSE(enrolled.ok());
    EXPECT_EQ(enrolled.error().code, ErrorCode::kMalformed);
    EXPECT_THAT(enrolled.error().message, HasSubstr("a.csr"));
  }
  EXPECT_THAT(open().record().issued, SizeIs(1));  // the gate's
}

TEST_F(Authorities, a_key_that_no_handshake_would_take_is_not_signed) {
  found();
  for (EVP_PKEY* const key :
       {EVP_RSA_gen(1024), EVP_EC_gen("P-192"), EVP_EC_gen("P-224"), EVP_EC_gen("secp256k1"),
        EVP_PKEY_Q_keygen(nullptr, nullptr, "ED448")}) {
    const RequestForTests request(key);
    const auto enrolled = open().enrol({.name = "alice", .request = request.pem()});
    ASSERT_FALSE(enrolled.ok());
    EXPECT_EQ(enrolled.error().code, ErrorCode::kUnsupported);
  }
  EXPECT_THAT(open().record().issued, SizeIs(1));  // the gate's
  for (EVP_PKEY* const key : {EVP_RSA_gen(2048), EVP_EC_gen("P-384"), EVP_EC_gen("P-521"),
                              EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519")}) {
    const RequestForTests request(key);
    EXPECT_TRUE(open().enrol({.name = "alice", .request = request.pem()}));
  }
}

TEST_F(Authorities, nothing_is_issued_to_a_name_that_lies_nor_for_days_that_are_none) {
  found();
  for (const char* name : {"", "..", "djinn-gate/box", "spiffe://example.org/a", "a b"}) {
    EXPECT_FALSE(open().enrol({.name = name}).ok()) << name;
  }
  EXPECT_FALSE(open().enrol({.name = "alice", .days = 0}).ok());
  EXPECT_FALSE(open().enrol({.name = "alice", .days = kClientDaysMax + 1}).ok());
  clock_.now_ns += (kAuthorityDays - 10) * kDayNs;
  EXPECT_FALSE(open().enrol({.name = "alice", .days = 11}).ok());
  EXPECT_TRUE(open().enrol({.name = "alice", .days = 10}).ok());
  EXPECT_THAT(open().record().issued, SizeIs(1));  // the gate's own has been forgotten
}

TEST_F(Authorities, serial_numbers_differ_and_are_in_the_certificates) {
  found();
  const Enrolled alice = enrol("alice");
  const Enrolled bob = enrol("bob");
  EXPECT_NE(alice.issued.serial, bob.issued.serial);
  const Certificate leaf = certificate_in(alice.profile);
  const ASN1_INTEGER* const number = X509_get0_serialNumber(leaf.get());
  BIGNUM* const big = ASN1_INTEGER_to_BN(number, nullptr);
  Serial serial{};
  EXPECT_EQ(BN_bn2binpad(big, serial.data(), static_cast<int>(serial.size())), 16);
  BN_free(big);
  EXPECT_EQ(serial, alice.issued.serial);
}

TEST_F(Authorities, all_unexpired_certificates_of_a_name_are_revoked_and_nobody_elses) {
  found();
  const Enrolled first = enrol("alice", 1);
  const Enrolled second = enrol("alice", 5);
  const Enrolled third = enrol("alice", 5);
  const Enrolled other = enrol("alice/laptop", 5);
  clock_.now_ns += 2 * kDayNs;
  const auto revoked = open().revoke("alice");
  ASSERT_TRUE(revoked.ok());
  EXPECT_THAT(*revoked, SizeIs(2));
  EXPECT_EQ(judged_as_client(second), X509_V_ERR_CERT_REVOKED);
  EXPECT_EQ(judged_as_client(third), X509_V_ERR_CERT_REVOKED);
  EXPECT_EQ(judged_as_client(other), X509_V_OK);
  EXPECT_EQ(judged_as_client(first), X509_V_ERR_CERT_HAS_EXPIRED);
  // It is revoked once, and stays so; asking again makes the list anew.
  const std::string list = file("revoked.pem");
  clock_.now_ns += kDayNs;
  const auto again = open().revoke("spiffe://example.org/alice");
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->front().revoked_s, revoked->front().revoked_s);
  EXPECT_NE(file("revoked.pem"), list);
  EXPECT_EQ(judged_as_client(second), X509_V_ERR_CERT_REVOKED);
}

TEST_F(Authorities, one_certificate_is_revoked_by_its_serial_number) {
  found();
  const Enrolled first = enrol("alice");
  const Enrolled second = enrol("alice");
  ASSERT_TRUE(open().revoke(text_of(first.issued.serial)).ok());
  EXPECT_EQ(judged_as_client(first), X509_V_ERR_CERT_REVOKED);
  EXPECT_EQ(judged_as_client(second), X509_V_OK);
}

TEST_F(Authorities, who_has_no_certificate_cannot_lose_it_and_the_gate_keeps_its_own) {
  found();
  const auto nobody = open().revoke("bob");
  ASSERT_FALSE(nobody.ok());
  EXPECT_EQ(nobody.error().code, ErrorCode::kNotFound);
  const std::string gate = text_of(open().record().issued.front().serial);
  const auto own = open().revoke(gate);
  ASSERT_FALSE(own.ok());
  EXPECT_EQ(own.error().code, ErrorCode::kInvalidArgument);
}

TEST_F(Authorities, the_list_is_there_from_the_start_and_each_that_is_signed_has_a_higher_number) {
  found();
  const auto number = [&] {
    const List list = list_in(file("revoked.pem"));
    const std::unique_ptr<ASN1_INTEGER, decltype([](ASN1_INTEGER* n) { ASN1_INTEGER_free(n); })>
        found_number(static_cast<ASN1_INTEGER*>(
            X509_CRL_get_ext_d2i(list.get(), NID_crl_number, nullptr, nullptr)));
    return ASN1_INTEGER_get(found_number.get());
  };
  const long first = number();
  const Enrolled alice = enrol("alice");
  EXPECT_GT(number(), first);
  clock_.now_ns += 29 * kDayNs;
  EXPECT_EQ(judged_as_client(alice), X509_V_OK);
  const Enrolled bob = enrol("bob");
  clock_.now_ns += kListDays * kDayNs + kNsPerSecond;
  const Certificate gate = certificate_in(file("certificate.pem"));
  EXPECT_EQ(judged(*gate, X509_PURPOSE_SSL_SERVER), X509_V_ERR_CRL_HAS_EXPIRED);
  ASSERT_TRUE(open().renew().ok());
  EXPECT_EQ(judged(*gate, X509_PURPOSE_SSL_SERVER), X509_V_OK);
}

TEST_F(Authorities, a_renewed_gate_keeps_its_key_and_name) {
  found();
  const std::string key = file("key.pem");
  const std::string before = file("certificate.pem");
  clock_.now_ns += 300 * kDayNs;
  ASSERT_TRUE(open().renew().ok());
  EXPECT_EQ(file("key.pem"), key);
  EXPECT_NE(file("certificate.pem"), before);
  clock_.now_ns += 300 * kDayNs;
  const Certificate gate = certificate_in(file("certificate.pem"));
  EXPECT_EQ(judged(*gate, X509_PURPOSE_SSL_SERVER, 0), X509_V_OK);
  EXPECT_THAT(names_in(*gate, GEN_URI), ElementsAre("spiffe://example.org/djinn-gate/box"));
  EXPECT_THAT(names_in(*gate, GEN_DNS), ElementsAre("gpu.example.org"));
}

TEST_F(Authorities, what_is_missing_beside_an_authority_is_made_anew) {
  found();
  for (const char* name : {"certificate.pem", "key.pem", "authorities.pem", "revoked.pem"}) {
    std::filesystem::remove(place() + '/' + name);
  }
  ASSERT_TRUE(open().renew().ok());
  const Certificate gate = certificate_in(file("certificate.pem"));
  EXPECT_EQ(judged(*gate, X509_PURPOSE_SSL_SERVER), X509_V_OK);
  EXPECT_TRUE(is_key_of(**key_of(file("key.pem"), "key.pem"), *gate));
}

TEST_F(Authorities, a_gates_certificate_of_another_authority_stays) {
  found();
  const FolderForTests elsewhere;
  ASSERT_TRUE(Authority::found(disk_, clock_, elsewhere.path() + "/gate", founding()).ok());
  const std::string foreign = bytes_of(elsewhere.path() + "/gate/certificate.pem");
  std::filesystem::copy_file(elsewhere.path() + "/gate/certificate.pem",
                             place() + "/certificate.pem",
                             std::filesystem::copy_options::overwrite_existing);
  const std::string list = file("revoked.pem");
  const auto renewed = open().renew();
  ASSERT_TRUE(renewed.ok());
  EXPECT_EQ(*renewed, GateCertificate::kOfAnother);
  EXPECT_EQ(file("certificate.pem"), foreign);
  EXPECT_NE(file("revoked.pem"), list);
}

TEST_F(Authorities, nothing_that_is_there_is_overwritten) {
  found();
  const auto again = Authority::found(disk_, clock_, place(), founding());
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().code, ErrorCode::kAlreadyExists);
  for (const char* name : {"certificate.pem", "key.pem", "authorities.pem", "revoked.pem"}) {
    const FolderForTests other;
    ASSERT_TRUE(put(disk_, other.path() + '/' + name, "mine", 0600).ok());
    EXPECT_FALSE(Authority::found(disk_, clock_, other.path(), founding()).ok()) << name;
    EXPECT_EQ(bytes_of(other.path() + '/' + name), "mine");
    EXPECT_FALSE(is_there(other.path() + "/ca"));
  }
}

TEST_F(Authorities, of_those_who_are_enrolled_at_once_none_is_forgotten) {
  found();
  constexpr int kThreads = 4;
  constexpr int kEach = 8;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < kEach; ++i) {
        auto authority = Authority::open(disk_, clock_, place());
        ASSERT_TRUE(authority.ok());
        const std::string name = "t" + std::to_string(thread) + "/" + std::to_string(i);
        ASSERT_TRUE(authority->enrol({.name = name}).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(open().record().issued, SizeIs(kThreads * kEach + 1));
  EXPECT_EQ(open().record().list_number, uint64_t{kThreads * kEach + 1});
}

TEST_F(Authorities, a_folder_without_an_authority_says_how_to_make_one) {
  const auto opened = Authority::open(disk_, clock_, place());
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(opened.error().message, HasSubstr("djinnctl gate init"));
}

}  // namespace
}  // namespace djinn::authority
