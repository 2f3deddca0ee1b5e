// SPDX-License-Identifier: Apache-2.0

// A gate's door against clients of every kind, and a client against gates: each case with the
// outcome that is counted, and the alert that the other side gets.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <kj/vector.h>
#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/param_build.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <thread>

#include "ipc/rpc/tls/certificates_for_tests.h"
#include "ipc/rpc/tls/tls_stream.h"
#include "kernel/base/fd.h"

namespace djinn::tls {
namespace {

constexpr int kNoAlert = -1;

struct Lab {
  TestAuthority authority;
  Issued gate = authority.issue(gate_said());

  static Said gate_said() {
    Said said;
    said.san = {"URI:spiffe://lab/djinn-gate/box", "DNS:box"};
    said.extended_use = "serverAuth";
    return said;
  }
  [[nodiscard]] Identity identity_of(const Issued& one) const {
    return {one.certificate_pem(), one.key_pem(), authority.pem(), {}};
  }
  [[nodiscard]] std::shared_ptr<const Context> of_gate(
      const std::optional<std::string>& revoked = {}) const {
    Identity identity = identity_of(gate);
    identity.revoked = revoked;
    return Context::make(Side::kGate, identity).value();
  }
  [[nodiscard]] std::shared_ptr<const Context> of_client(const Said& said = {}) const {
    return Context::make(Side::kClient, identity_of(authority.issue(said)),
                         ipc::Principal::parse("spiffe://lab/djinn-gate/box").value())
        .value();
  }
};

const Lab& lab() {
  static const Lab one;
  return one;
}

// A client of OpenSSL's own, which does as it is told, in a thread with a blocking socket.
class RawClient {
 public:
  using Set = std::function<void(SSL_CTX*)>;
  using Do = std::function<void(SSL*)>;

  // Behind its handshake it does what it is told, and waits for the other side's end.
  RawClient(int fd, const Set& set, Do then = {}) {
    context_.reset(SSL_CTX_new(TLS_client_method()));
    SSL_CTX_set_security_level(context_.get(), 0);
    const unsigned char protocol[] = {7, 'd', 'j', 'i', 'n', 'n', '/', '1'};
    SSL_CTX_set_alpn_protos(context_.get(), protocol, sizeof protocol);
    set(context_.get());
    thread_ = std::thread([this, fd, then = std::move(then)] {
      const Fd socket(fd);
      const std::unique_ptr<SSL, Freed<&SSL_free>> ssl(SSL_new(context_.get()));
      SSL_set_fd(ssl.get(), fd);
      char byte = 0;
      if (SSL_connect(ssl.get()) == 1) {
        if (then) then(ssl.get());
        while (SSL_read(ssl.get(), &byte, 1) > 0) {
        }
        resumable_ = SSL_SESSION_is_resumable(SSL_get0_session(ssl.get())) != 0;
      }
      const int reason = ERR_GET_REASON(ERR_peek_error());
      if (reason > SSL_AD_REASON_OFFSET) alert_ = reason - SSL_AD_REASON_OFFSET;
      ERR_clear_error();
    });
  }
  ~RawClient() { join(); }
  void join() {
    if (thread_.joinable()) thread_.join();
  }
  // Behind join().
  [[nodiscard]] int alert() const { return alert_; }
  [[nodiscard]] bool could_resume() const { return resumable_; }

 private:
  std::unique_ptr<SSL_CTX, Freed<&SSL_CTX_free>> context_;
  std::thread thread_;
  int alert_ = kNoAlert;
  bool resumable_ = false;
};

struct Wire {
  Wire() {
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
    // KJ's end does not block; OpenSSL's does.
    ours = io.lowLevelProvider->wrapSocketFd(ends[0], kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP);
  }
  TlsStream::Shaken shake(const std::shared_ptr<const Context>& context) {
    return TlsStream::shake_hands(kj::mv(ours), context).wait(io.waitScope);
  }
  kj::AsyncIoContext io = kj::setupAsyncIo();
  int ends[2] = {};
  kj::Own<kj::AsyncIoStream> ours;
};

Outcome outcome_of(const TlsStream::Shaken& shaken) {
  const auto* const failure = std::get_if<Failure>(&shaken);
  return failure != nullptr ? failure->outcome : Outcome::kOk;
}

RawClient::Set showing(const Issued& issued, const std::vector<Issued>& between = {}) {
  return [=](SSL_CTX* context) {
    ASSERT_EQ(SSL_CTX_use_certificate(context, issued.certificate.get()), 1);
    ASSERT_EQ(SSL_CTX_use_PrivateKey(context, issued.key.get()), 1);
    for (const Issued& one : between) SSL_CTX_add1_chain_cert(context, one.certificate.get());
  };
}

RawClient::Set showing(const std::function<void(Said&)>& change) {
  Said said;
  change(said);
  return showing(lab().authority.issue(said));
}

// A key pair whose public half is that of another one, as in a certificate that was copied.
Issued stolen() {
  Issued issued = lab().authority.issue({});
  const TestKey other = ec_key();
  BIGNUM* secret = nullptr;
  EVP_PKEY_get_bn_param(other.get(), OSSL_PKEY_PARAM_PRIV_KEY, &secret);
  unsigned char point[65];
  size_t bytes = 0;
  EVP_PKEY_get_octet_string_param(issued.key.get(), OSSL_PKEY_PARAM_PUB_KEY, point, sizeof point,
                                  &bytes);
  OSSL_PARAM_BLD* const build = OSSL_PARAM_BLD_new();
  OSSL_PARAM_BLD_push_utf8_string(build, OSSL_PKEY_PARAM_GROUP_NAME, "prime256v1", 0);
  OSSL_PARAM_BLD_push_octet_string(build, OSSL_PKEY_PARAM_PUB_KEY, point, bytes);
  OSSL_PARAM_BLD_push_BN(build, OSSL_PKEY_PARAM_PRIV_KEY, secret);
  OSSL_PARAM* const params = OSSL_PARAM_BLD_to_param(build);
  EVP_PKEY_CTX* const context = EVP_PKEY_CTX_new_from_name(nullptr, "EC", nullptr);
  EVP_PKEY* key = nullptr;
  EVP_PKEY_fromdata_init(context);
  EVP_PKEY_fromdata(context, &key, EVP_PKEY_KEYPAIR, params);
  EVP_PKEY_CTX_free(context);
  OSSL_PARAM_free(params);
  OSSL_PARAM_BLD_free(build);
  BN_free(secret);
  issued.key = TestKey(key, &EVP_PKEY_free);
  return issued;
}

// That many authorities in a row behind the trusted one.
RawClient::Set chain_of(size_t length) {
  Said between;
  between.san = {};
  between.extended_use = "";
  between.use = "keyCertSign,cRLSign";
  between.is_authority = true;
  TestAuthority last = lab().authority;
  std::vector<Issued> chain;
  for (size_t i = 0; i < length; ++i) {
    between.common_name = "between " + std::to_string(i);
    between.key = ec_key();
    last = TestAuthority(last, between);
    chain.insert(chain.begin(), last.self());
  }
  return showing(last.issue({}), chain);
}

struct Case {
  const char* name;
  RawClient::Set client;
  Outcome outcome;
  int alert;
};

std::vector<Case> cases() {
  const auto good = showing(lab().authority.issue({}));
  const auto with = [good](auto set) {
    return [good, set](SSL_CTX* context) {
      good(context);
      set(context);
    };
  };
  const auto at_most = [with](int version) {
    return with([version](SSL_CTX* context) {
      SSL_CTX_set_min_proto_version(context, 0);
      SSL_CTX_set_max_proto_version(context, version);
    });
  };
  const auto protocols = [with](std::string names) {
    return with([names](SSL_CTX* context) {
      SSL_CTX_set_alpn_protos(context, reinterpret_cast<const unsigned char*>(names.data()),
                              static_cast<unsigned>(names.size()));
    });
  };
  Said self;
  self.san = {"URI:spiffe://lab/ann"};
  return {
      {"good", good, Outcome::kOk, kNoAlert},
      {"rsa_2048", showing([](Said& said) { said.key = rsa_key(2048); }), Outcome::kOk, kNoAlert},
      // The list is the authority's, not that of the one between.
      {"chain_without_a_list", chain_of(1), Outcome::kRevocationUnknown, SSL_AD_UNKNOWN_CA},
      {"tls_1_0", at_most(TLS1_VERSION), Outcome::kOldVersion, SSL_AD_PROTOCOL_VERSION},
      {"tls_1_1", at_most(TLS1_1_VERSION), Outcome::kOldVersion, SSL_AD_PROTOCOL_VERSION},
      {"tls_1_2", at_most(TLS1_2_VERSION), Outcome::kOldVersion, SSL_AD_PROTOCOL_VERSION},
      {"no_certificate", [](SSL_CTX*) {}, Outcome::kNoCertificate, SSL_AD_CERTIFICATE_REQUIRED},
      {"self_signed", showing(TestAuthority::of_itself(self)), Outcome::kUntrusted,
       SSL_AD_UNKNOWN_CA},
      {"other_authority", showing(TestAuthority("other").issue({})), Outcome::kUntrusted,
       SSL_AD_UNKNOWN_CA},
      {"other_authority_of_the_same_name", showing(TestAuthority().issue({})), Outcome::kUntrusted,
       SSL_AD_UNKNOWN_CA},
      {"expired", showing([](Said& said) { said.from_s = -7200, said.until_s = -1; }),
       Outcome::kExpired, SSL_AD_CERTIFICATE_EXPIRED},
      {"not_yet_valid", showing([](Said& said) { said.from_s = 600; }), Outcome::kNotYetValid,
       SSL_AD_BAD_CERTIFICATE},
      {"for_servers", showing([](Said& said) { said.extended_use = "serverAuth"; }),
       Outcome::kBadUse, SSL_AD_UNSUPPORTED_CERTIFICATE},
      {"for_nothing", showing([](Said& said) { said.extended_use = ""; }), Outcome::kBadUse,
       SSL_AD_HANDSHAKE_FAILURE},
      {"for_encryption", showing([](Said& said) { said.use = "keyEncipherment"; }),
       Outcome::kBadUse, SSL_AD_UNSUPPORTED_CERTIFICATE},
      {"authority_as_leaf", showing([](Said& said) {
         said.common_name = "ann";
         said.is_authority = true;
         said.use = "digitalSignature,keyCertSign";
       }),
       Outcome::kBadUse, SSL_AD_HANDSHAKE_FAILURE},
      {"two_names", showing([](Said& said) { said.san.emplace_back("URI:spiffe://lab/ben"); }),
       Outcome::kBadName, SSL_AD_HANDSHAKE_FAILURE},
      {"no_name", showing([](Said& said) { said.san = {"DNS:ann"}; }), Outcome::kBadName,
       SSL_AD_HANDSHAKE_FAILURE},
      {"common_name_only", showing([](Said& said) {
         said.san = {};
         said.common_name = "spiffe://lab/ann";
       }),
       Outcome::kBadName, SSL_AD_HANDSHAKE_FAILURE},
      {"foreign_domain", showing([](Said& said) { said.san = {"URI:spiffe://other/ann"}; }),
       Outcome::kBadName, SSL_AD_HANDSHAKE_FAILURE},
      {"a_gates_name", showing([](Said& said) { said.san = {"URI:spiffe://lab/djinn-gate/box"}; }),
       Outcome::kBadName, SSL_AD_HANDSHAKE_FAILURE},
      {"300_bytes",
       showing([](Said& said) { said.san = {"URI:spiffe://lab/" + std::string(287, 'a')}; }),
       Outcome::kBadName, SSL_AD_HANDSHAKE_FAILURE},
      {"a_zero_in_it", showing([](Said& said) { said.san = {"URI:spiffe://lab/ann\n.evil"}; }),
       Outcome::kBadName, SSL_AD_HANDSHAKE_FAILURE},
      {"chain_of_four", chain_of(4), Outcome::kUntrusted, SSL_AD_UNKNOWN_CA},
      {"rsa_1024", showing([](Said& said) { said.key = rsa_key(1024); }), Outcome::kWeak,
       SSL_AD_BAD_CERTIFICATE},
      {"sha_1", showing([](Said& said) { said.digest = EVP_sha1(); }), Outcome::kWeak,
       SSL_AD_BAD_CERTIFICATE},
      {"p_224", showing([](Said& said) { said.key = ec_key("P-224"); }), Outcome::kNoCertificate,
       SSL_AD_CERTIFICATE_REQUIRED},
      {"stolen_certificate", showing(stolen()), Outcome::kBadSignature, SSL_AD_DECRYPT_ERROR},
      {"other_protocol", protocols("\x02h2"), Outcome::kNothingShared,
       SSL_AD_NO_APPLICATION_PROTOCOL},
      {"no_protocol", with([](SSL_CTX* context) { SSL_CTX_set_alpn_protos(context, nullptr, 0); }),
       Outcome::kNothingShared, kNoAlert},
      {"p_521_alone", with([](SSL_CTX* context) { SSL_CTX_set1_groups_list(context, "P-521"); }),
       Outcome::kNothingShared, SSL_AD_HANDSHAKE_FAILURE},
      {"ccm_alone",
       with([](SSL_CTX* context) { SSL_CTX_set_ciphersuites(context, "TLS_AES_128_CCM_SHA256"); }),
       Outcome::kNothingShared, SSL_AD_HANDSHAKE_FAILURE},
  };
}

class Door : public testing::TestWithParam<Case> {};

TEST_P(Door, tells_its_outcome_and_the_alert) {
  const Case& one = GetParam();
  Wire wire;
  RawClient client(wire.ends[1], one.client);
  {
    const auto shaken = wire.shake(lab().of_gate(lab().authority.revoked({})));
    EXPECT_EQ(kOutcomeNames[static_cast<size_t>(outcome_of(shaken))],
              kOutcomeNames[static_cast<size_t>(one.outcome)]);
    if (const auto* const failure = std::get_if<Failure>(&shaken)) {
      EXPECT_FALSE(failure->message.empty());
    } else {
      EXPECT_EQ(std::get<kj::Own<TlsStream>>(shaken)->peer().text(), "spiffe://lab/ann");
    }
  }
  client.join();
  EXPECT_EQ(client.alert(), one.alert);
  EXPECT_FALSE(client.could_resume());
}

INSTANTIATE_TEST_SUITE_P(Table, Door, testing::ValuesIn(cases()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Door, takes_a_chain_of_two) {
  Wire wire;
  RawClient client(wire.ends[1], chain_of(2));
  EXPECT_EQ(outcome_of(wire.shake(lab().of_gate())), Outcome::kOk);
}

TEST(Door, asks_a_list_of_what_was_revoked) {
  const Issued ann = lab().authority.issue({});
  const Issued ben = lab().authority.issue({});
  const auto outcome = [&](const std::string& revoked) {
    Wire wire;
    RawClient client(wire.ends[1], showing(ann));
    return outcome_of(wire.shake(lab().of_gate(revoked)));
  };
  EXPECT_EQ(outcome(lab().authority.revoked({ben})), Outcome::kOk);
  EXPECT_EQ(outcome(lab().authority.revoked({ben, ann})), Outcome::kRevoked);
  EXPECT_EQ(outcome(lab().authority.revoked({ben}, -60)), Outcome::kRevocationUnknown);
  EXPECT_EQ(outcome(TestAuthority("other").revoked({ben})), Outcome::kRevocationUnknown);
}

TEST(Door, knows_of_an_open_connection_that_it_was_revoked) {
  const Issued ann = lab().authority.issue({});
  Wire wire;
  RawClient client(wire.ends[1], showing(ann));
  const auto shaken = wire.shake(lab().of_gate(lab().authority.revoked({})));
  const TlsStream& stream = *std::get<kj::Own<TlsStream>>(shaken);
  EXPECT_FALSE(stream.refusal_by(*lab().of_gate(lab().authority.revoked({}))));
  const auto refusal = stream.refusal_by(*lab().of_gate(lab().authority.revoked({ann})));
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->outcome, Outcome::kRevoked);
}

TEST(Door, takes_no_plain_text_and_no_half_of_a_handshake) {
  const auto outcome = [](const std::string& bytes) {
    Wire wire;
    EXPECT_EQ(::write(wire.ends[1], bytes.data(), bytes.size()),
              static_cast<ssize_t>(bytes.size()));
    ::shutdown(wire.ends[1], SHUT_WR);
    const auto shaken = wire.shake(lab().of_gate());
    ::close(wire.ends[1]);
    return outcome_of(shaken);
  };
  EXPECT_EQ(outcome("GET / HTTP/1.1\r\nHost: box\r\n\r\n"), Outcome::kNotTls);
  EXPECT_EQ(outcome("SSH-2.0-OpenSSH_9.2\r\n"), Outcome::kNotTls);
  EXPECT_EQ(outcome(std::string(64, '\0')), Outcome::kNotTls);
  EXPECT_EQ(outcome(""), Outcome::kTruncated);
  using std::string_literals::operator""s;
  EXPECT_EQ(outcome("\x16\x03\x01\x02\x00\x01\x00\x01\xfc"s), Outcome::kTruncated);
}

// A greeting that says it has 16 MiB.
TEST(Door, gives_up_a_handshake_that_is_too_long) {
  Wire wire;
  std::thread sender([fd = wire.ends[1]] {
    std::string record("\x16\x03\x01\x40\x04\x01\x01\xff\xf0", 9);
    record += std::string(0x4000, 'x');
    for (int i = 0; i < 100; ++i) {
      if (::send(fd, record.data(), record.size(), MSG_NOSIGNAL) < 0) break;
    }
    ::close(fd);
  });
  EXPECT_EQ(outcome_of(wire.shake(lab().of_gate())), Outcome::kTooLong);
  sender.join();
}

TEST(Client, takes_the_gate_that_it_was_told_alone) {
  const auto outcome = [](const std::function<void(Said&)>& change, const TestAuthority& signer) {
    Said said = Lab::gate_said();
    change(said);
    const Issued gate = signer.issue(said);
    Identity identity{gate.certificate_pem(), gate.key_pem(), lab().authority.pem(), {}};
    auto io = kj::setupAsyncIo();
    auto pipe = io.provider->newTwoWayPipe();
    auto there =
        TlsStream::shake_hands(kj::mv(pipe.ends[0]), Context::make(Side::kGate, identity).value());
    auto here = TlsStream::shake_hands(kj::mv(pipe.ends[1]), lab().of_client());
    auto both = there.ignoreResult().catch_([](kj::Exception&&) {}).eagerlyEvaluate(nullptr);
    return outcome_of(here.wait(io.waitScope));
  };
  const auto& authority = lab().authority;
  EXPECT_EQ(outcome([](Said&) {}, authority), Outcome::kOk);
  EXPECT_EQ(
      outcome([](Said& said) { said.san = {"URI:spiffe://lab/djinn-gate/other"}; }, authority),
      Outcome::kBadName);
  EXPECT_EQ(outcome([](Said&) {}, TestAuthority("other")), Outcome::kUntrusted);
}

// What it hears behind its own handshake, for in TLS 1.3 that ends first.
TEST(Client, hears_why_it_was_refused) {
  const Issued ann = lab().authority.issue({});
  auto io = kj::setupAsyncIo();
  auto pipe = io.provider->newTwoWayPipe();
  auto there =
      TlsStream::shake_hands(kj::mv(pipe.ends[0]), lab().of_gate(lab().authority.revoked({ann})))
          .eagerlyEvaluate(nullptr);
  const auto context = Context::make(Side::kClient, lab().identity_of(ann),
                                     ipc::Principal::parse("spiffe://lab/djinn-gate/box").value())
                           .value();
  auto here = TlsStream::shake_hands(kj::mv(pipe.ends[1]), context).wait(io.waitScope);
  TlsStream& stream = *std::get<kj::Own<TlsStream>>(here);
  char byte = 0;
  EXPECT_THROW(stream.tryRead(&byte, 1, 1).wait(io.waitScope), kj::Exception);
  ASSERT_TRUE(stream.failure());
  EXPECT_EQ(stream.failure()->outcome, Outcome::kRefused);
  EXPECT_THAT(stream.failure()->message, testing::HasSubstr("revoked"));
}

struct Pair {
  Pair() {
    auto there = TlsStream::shake_hands(kj::mv(pipe.ends[0]), lab().of_gate());
    auto here = TlsStream::shake_hands(kj::mv(pipe.ends[1]), lab().of_client());
    auto both = there
                    .then([&](TlsStream::Shaken&& shaken) {
                      gate = kj::mv(std::get<kj::Own<TlsStream>>(shaken));
                    })
                    .eagerlyEvaluate(nullptr);
    auto shaken = here.wait(io.waitScope);
    client = kj::mv(std::get<kj::Own<TlsStream>>(shaken));
    both.wait(io.waitScope);
  }
  kj::AsyncIoContext io = kj::setupAsyncIo();
  kj::TwoWayPipe pipe = io.provider->newTwoWayPipe();
  kj::Own<TlsStream> gate, client;
};

TEST(TlsStream, carries_bytes_both_ways_at_once) {
  Pair pair;
  for (const size_t bytes : {1, 100, 16 * 1024, 64 * 1024 + 1, 1 << 20}) {
    kj::Array<kj::byte> sent = kj::heapArray<kj::byte>(bytes),
                        here = kj::heapArray<kj::byte>(bytes),
                        there = kj::heapArray<kj::byte>(bytes);
    for (size_t i = 0; i < bytes; ++i) sent[i] = static_cast<kj::byte>(i * 7 + i / 251);
    const kj::ArrayPtr<const kj::byte> halves[] = {sent.slice(0, bytes / 2),
                                                   sent.slice(bytes / 2, bytes)};
    auto up = pair.client->write(halves).eagerlyEvaluate(nullptr);
    auto down = pair.gate->write(sent.begin(), bytes).eagerlyEvaluate(nullptr);
    auto read = pair.gate->tryRead(there.begin(), bytes, bytes).eagerlyEvaluate(nullptr);
    EXPECT_EQ(pair.client->tryRead(here.begin(), bytes, bytes).wait(pair.io.waitScope), bytes);
    EXPECT_EQ(read.wait(pair.io.waitScope), bytes);
    up.wait(pair.io.waitScope);
    down.wait(pair.io.waitScope);
    EXPECT_TRUE(here == sent && there == sent) << bytes;
  }
}

// Each side writes before it reads, over a wire that holds next to nothing.
TEST(TlsStream, two_sides_that_write_much_do_not_wait_for_each_other) {
  constexpr size_t kBytes = 8 << 20;
  constexpr int kSmall = 4096;
  auto io = kj::setupAsyncIo();
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  kj::Own<kj::AsyncIoStream> wire[2];
  for (int i = 0; i < 2; ++i) {
    ::setsockopt(ends[i], SOL_SOCKET, SO_SNDBUF, &kSmall, sizeof kSmall);
    wire[i] =
        io.lowLevelProvider->wrapSocketFd(ends[i], kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP);
  }
  auto there = TlsStream::shake_hands(kj::mv(wire[0]), lab().of_gate());
  auto here = TlsStream::shake_hands(kj::mv(wire[1]), lab().of_client());
  kj::Own<TlsStream> sides[2];
  auto both = there
                  .then([&](TlsStream::Shaken&& shaken) {
                    sides[0] = kj::mv(std::get<kj::Own<TlsStream>>(shaken));
                  })
                  .eagerlyEvaluate(nullptr);
  auto shaken = here.wait(io.waitScope);
  sides[1] = kj::mv(std::get<kj::Own<TlsStream>>(shaken));
  both.wait(io.waitScope);
  const auto sent = kj::heapArray<kj::byte>(kBytes);
  kj::Array<kj::byte> got[2] = {kj::heapArray<kj::byte>(kBytes), kj::heapArray<kj::byte>(kBytes)};
  kj::Vector<kj::Promise<void>> writes;
  kj::Vector<kj::Promise<size_t>> reads;
  for (auto& side : sides) writes.add(side->write(sent.begin(), kBytes).eagerlyEvaluate(nullptr));
  for (int i = 0; i < 2; ++i) {
    reads.add(sides[i]->tryRead(got[i].begin(), kBytes, kBytes).eagerlyEvaluate(nullptr));
  }
  for (auto& read : reads) EXPECT_EQ(read.wait(io.waitScope), kBytes);
  for (auto& write : writes) write.wait(io.waitScope);
  EXPECT_TRUE(got[0] == sent && got[1] == sent);
}

TEST(TlsStream, ends_where_the_other_side_says_so_and_fails_where_it_does_not) {
  char bytes[8] = {};
  {
    Pair pair;
    pair.client->write("abc", 3).wait(pair.io.waitScope);
    pair.client->shutdownWrite();
    EXPECT_EQ(pair.gate->tryRead(bytes, 8, 8).wait(pair.io.waitScope), 3u);
  }
  Pair pair;
  pair.client->write("abc", 3).wait(pair.io.waitScope);
  pair.client = nullptr;
  EXPECT_THROW(pair.gate->tryRead(bytes, 8, 8).wait(pair.io.waitScope), kj::Exception);
  EXPECT_EQ(pair.gate->failure()->outcome, Outcome::kTruncated);
  EXPECT_THROW((void)pair.gate->tryRead(bytes, 8, 8), kj::Exception);
}

// Each of them may be answered by a change of keys of this side's; none is kept.
TEST(TlsStream, a_flood_of_new_keys_costs_no_memory) {
  Wire wire;
  constexpr int kTimes = 5000;
  RawClient client(wire.ends[1], showing(lab().authority.issue({})), [](SSL* ssl) {
    for (int i = 0; i < kTimes; ++i) {
      ASSERT_EQ(SSL_key_update(ssl, SSL_KEY_UPDATE_REQUESTED), 1);
      ASSERT_EQ(SSL_do_handshake(ssl), 1);
    }
    ASSERT_EQ(SSL_write(ssl, "x", 1), 1);
  });
  auto shaken = wire.shake(lab().of_gate());
  TlsStream& stream = *std::get<kj::Own<TlsStream>>(shaken);
  char byte = 0;
  EXPECT_EQ(stream.tryRead(&byte, 1, 1).wait(wire.io.waitScope), 1u);
  stream.write("y", 1).wait(wire.io.waitScope);
  std::get<kj::Own<TlsStream>>(shaken) = nullptr;
}

TEST(Context, says_what_is_wrong_with_an_identity) {
  const auto refusal = [](Side side, const Identity& identity) {
    const auto made = Context::make(side, identity);
    return made ? std::string("none") : made.error().message;
  };
  const Issued ann = lab().authority.issue({}), ben = lab().authority.issue({});
  Said late;
  late.from_s = -7200;
  late.until_s = -3600;
  const Identity good = lab().identity_of(ann);
  EXPECT_EQ(refusal(Side::kClient, good), "none");
  Identity one = good;
  one.certificates = "";
  EXPECT_THAT(refusal(Side::kClient, one), testing::HasSubstr("no certificate"));
  one = good, one.key = ben.key_pem();
  EXPECT_THAT(refusal(Side::kClient, one), testing::HasSubstr("not that of the certificate"));
  one = good, one.key = "x";
  EXPECT_THAT(refusal(Side::kClient, one), testing::HasSubstr("no private key"));
  one = good, one.authorities = "x";
  EXPECT_THAT(refusal(Side::kClient, one), testing::HasSubstr("of an authority"));
  for (const char* no_list : {"", "x"}) {
    one = good, one.revoked = no_list;
    EXPECT_THAT(refusal(Side::kClient, one), testing::HasSubstr("list of revoked"));
  }
  EXPECT_THAT(refusal(Side::kGate, good), testing::HasSubstr("not one for servers"));
  EXPECT_THAT(refusal(Side::kClient, lab().identity_of(lab().authority.issue(late))),
              testing::HasSubstr("expired at 20"));
}

}  // namespace
}  // namespace djinn::tls
