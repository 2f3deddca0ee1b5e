// SPDX-License-Identifier: Apache-2.0

#include "daemon/gate/listener.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "ipc/rpc/tls/certificates_for_tests.h"

namespace djinn::gate {
namespace {

using tls::Context;
using tls::Issued;
using tls::Outcome;
using tls::Said;
using tls::Side;
using tls::TlsStream;

// A gate at a port of this host, whom nobody's djinnd stands behind.
struct House {
  explicit House(DoorLimits limits = {})
      : listener(io, {"/nonexistent"}, of_gate(), log(), limits) {
    auto door = io.provider->getNetwork().parseAddress("127.0.0.1", 0).wait(io.waitScope)->listen();
    port = door->getPort();
    serves = listener.serve(kj::mv(door)).eagerlyEvaluate(nullptr);
  }

  std::shared_ptr<const Context> of_gate(const std::vector<Issued>& revoked = {}) {
    const tls::Identity identity{gate.certificate_pem(), gate.key_pem(), authority.pem(),
                                 authority.revoked(revoked)};
    return Context::make(Side::kGate, identity).value();
  }
  Listener::Log log() {
    return [this](const std::string& line) { lines.push_back(line); };
  }
  kj::Own<kj::AsyncIoStream> knock() {
    auto address = io.provider->getNetwork().parseAddress("127.0.0.1", port).wait(io.waitScope);
    return address->connect().wait(io.waitScope);
  }
  // Somebody who shows a certificate, and whether the gate keeps the connection.
  kj::Own<TlsStream> come(const Issued& who) {
    const tls::Identity identity{who.certificate_pem(), who.key_pem(), authority.pem(), {}};
    const auto context = Context::make(Side::kClient, identity, gate_name).value();
    auto shaken = TlsStream::shake_hands(knock(), context).wait(io.waitScope);
    return kj::mv(std::get<kj::Own<TlsStream>>(shaken));
  }
  // Runs the loop until that holds; a test that hangs is ended by its runner.
  void until(const std::function<bool()>& holds) {
    while (!holds()) io.provider->getTimer().afterDelay(1 * kj::MILLISECONDS).wait(io.waitScope);
  }
  void expect_end(kj::AsyncIoStream& stream) {
    char byte = 0;
    try {
      EXPECT_EQ(stream.tryRead(&byte, 1, 1).wait(io.waitScope), 0u);
    } catch (const kj::Exception&) {
    }
  }
  static Said said(std::vector<std::string> san, const std::string& use) {
    Said one;
    one.san = std::move(san);
    one.extended_use = use;
    return one;
  }

  const ipc::Principal gate_name = ipc::Principal::parse("spiffe://lab/djinn-gate/box").value();
  tls::TestAuthority authority;
  Issued gate = authority.issue(said({"URI:spiffe://lab/djinn-gate/box"}, "serverAuth"));
  Issued ann = authority.issue({});
  Issued ben = authority.issue(said({"URI:spiffe://lab/ben"}, "clientAuth"));
  std::vector<std::string> lines;
  kj::AsyncIoContext io = kj::setupAsyncIo();
  kj::uint port = 0;
  Listener listener;
  kj::Promise<void> serves = nullptr;
};

TEST(Listener, lets_in_who_has_a_certificate_and_puts_out_whose_was_revoked) {
  House house;
  auto ann = house.come(house.ann), ben = house.come(house.ben);
  house.until([&] { return house.listener.connections() == 2; });
  house.listener.replace(house.of_gate({house.ann}));
  house.expect_end(*ann);
  house.until([&] { return house.listener.connections() == 1; });
  auto again = house.come(house.ann);
  house.expect_end(*again);
  EXPECT_EQ(house.listener.outcomes(Outcome::kRevoked), 1u);
  EXPECT_EQ(house.listener.outcomes(Outcome::kOk), 2u);
}

TEST(Listener, turns_away_more_handshakes_than_may_wait_of_one_source) {
  DoorLimits limits;
  limits.handshakes_of_source = 3;
  House house(limits);
  std::vector<kj::Own<kj::AsyncIoStream>> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(house.knock());
  house.until([&] { return house.listener.turned_away() == 17; });
  // Who was not turned away still may.
  silent.clear();
  house.until([&] { return house.listener.outcomes(Outcome::kTruncated) == 3; });
  auto ann = house.come(house.ann);
  house.until([&] { return house.listener.connections() == 1; });
  EXPECT_TRUE(house.lines.size() == 1) << "no line for who is not known";
}

TEST(Listener, waits_for_descriptors_where_there_are_none) {
  House house;
  std::vector<kj::Own<kj::AsyncIoStream>> waiting;
  for (int i = 0; i < 3; ++i) waiting.push_back(house.knock());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{3, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  house.until([&] { return house.listener.turned_away() >= 3; });
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  waiting.clear();
  house.until([&] { return house.listener.outcomes(Outcome::kTruncated) == 3; });
  auto ann = house.come(house.ann);
  house.until([&] { return house.listener.connections() == 1; });
}

TEST(Listener, takes_no_breath_for_who_is_gone_again) {
  House house;
  for (int i = 0; i < 3; ++i) {
    auto gone = house.knock();
    const linger reset{1, 0};
    gone->setsockopt(SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  }
  auto ann = house.come(house.ann);
  house.until([&] { return house.listener.connections() == 1; });
}

TEST(Listener, gives_up_who_is_silent) {
  DoorLimits limits;
  limits.handshake = 20 * kj::MILLISECONDS;
  House house(limits);
  auto silent = house.knock();
  house.expect_end(*silent);
  EXPECT_EQ(house.listener.outcomes(Outcome::kTimeout), 1u);
}

TEST(Listener, a_principal_has_so_many_connections_and_others_have_theirs) {
  DoorLimits limits;
  limits.connections_of_principal = 2;
  House house(limits);
  auto one = house.come(house.ann), two = house.come(house.ann);
  house.until([&] { return house.listener.connections() == 2; });
  auto three = house.come(house.ann);
  house.expect_end(*three);
  auto ben = house.come(house.ben);
  house.until([&] { return house.listener.connections() == 3; });
  one = nullptr;
  house.until([&] { return house.listener.connections() == 2; });
  auto four = house.come(house.ann);
  house.until([&] { return house.listener.connections() == 3; });
}

}  // namespace
}  // namespace djinn::gate
