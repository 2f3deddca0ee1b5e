// SPDX-License-Identifier: Apache-2.0

// The server against clients of this process, with a loop that the test plays.
#include "daemon/djinnd/metrics/metrics_server.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "kernel/base/owned_state_for_tests.h"

namespace djinn::daemon {
namespace {

constexpr int kDeadlineMs = 20'000;

class MetricsServerTest : public ::testing::Test {
 protected:
  MetricsServerTest() {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    Fd listening(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    // An abstract address: the kernel chooses it.
    EXPECT_EQ(::bind(listening.get(), reinterpret_cast<sockaddr*>(&address), sizeof(sa_family_t)),
              0);
    EXPECT_EQ(::listen(listening.get(), 64), 0);
    length_ = sizeof address_;
    EXPECT_EQ(::getsockname(listening.get(), reinterpret_cast<sockaddr*>(&address_), &length_), 0);
    std::vector<Fd> sockets;
    sockets.push_back(std::move(listening));
    auto started = MetricsServer::start(std::move(sockets), clock_, [this] { asked(); });
    EXPECT_TRUE(started.ok());
    server_ = *std::move(started);
  }

  // On the server's thread.
  void asked() {
    ++asked_;
    if (!loop_answers_) return;
    auto shot = std::make_unique<MetricsSnapshot>();
    shot->taken_ns = clock_.monotonic_ns();
    shot->memory_waiting = asked_;
    shot->ready = ready_;
    shot->unready_why = "Not today.";
    server_->publish(std::move(shot));
  }

  Fd connect() {
    Fd client(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(client.get(), reinterpret_cast<sockaddr*>(&address_), length_), 0);
    return client;
  }
  static void send(const Fd& client, std::string_view bytes) {
    EXPECT_EQ(::send(client.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // All that comes until the server closes.
  static std::string receive(const Fd& client) {
    std::string all;
    std::array<char, 4096> buffer;
    for (;;) {
      pollfd one{client.get(), POLLIN, 0};
      if (::poll(&one, 1, kDeadlineMs) <= 0) return "no end within the deadline";
      const ssize_t length = ::recv(client.get(), buffer.data(), buffer.size(), 0);
      if (length <= 0) return all;
      all.append(buffer.data(), static_cast<size_t>(length));
    }
  }
  std::string get(const std::string& path) {
    const Fd client = connect();
    send(client, "GET " + path + " HTTP/1.1\r\n\r\n");
    return receive(client);
  }

  const SystemClock clock_;
  sockaddr_un address_{};
  socklen_t length_ = 0;
  std::atomic<uint64_t> asked_{0};
  std::atomic<bool> loop_answers_{true};
  std::atomic<bool> ready_{true};
  std::unique_ptr<MetricsServer> server_;
};

TEST(ScrapePhase, a_connection_has_one_answer_and_then_ends) {
  using enum ScrapePhase;
  constexpr std::array kStates{kReading, kAsking, kWriting, kClosing};
  constexpr auto kLegal = std::to_array<Transition<ScrapePhase>>({
      {kReading, kAsking},
      {kReading, kWriting},
      {kAsking, kWriting},
      {kWriting, kClosing},
  });
  StateForTests::expect_legal<ScrapePhase>(kStates, kLegal);
}

TEST_F(MetricsServerTest, a_scrape_asks_the_loop_and_the_next_one_soon_after_does_not) {
  const std::string first = get("/metrics");
  EXPECT_TRUE(first.starts_with("HTTP/1.1 200 OK\r\n")) << first;
  EXPECT_NE(first.find("djinn_memory_waiting_requests 1\n"), std::string::npos);
  EXPECT_NE(first.find("text/plain; version=0.0.4"), std::string::npos);
  get("/metrics");
  get("/healthz");
  EXPECT_LE(asked_, 2u);  // a slow machine may need a second one
}

TEST_F(MetricsServerTest, health_is_the_loops_answer_and_readiness_what_it_says) {
  ready_ = false;
  EXPECT_TRUE(get("/healthz").starts_with("HTTP/1.1 200 OK\r\n"));
  const std::string unready = get("/readyz");
  EXPECT_TRUE(unready.starts_with("HTTP/1.1 503 ")) << unready;
  EXPECT_TRUE(unready.ends_with("Not today.\n")) << unready;
}

TEST_F(MetricsServerTest, a_loop_that_does_not_answer_is_unhealthy_and_its_last_numbers_are_told) {
  get("/metrics");
  loop_answers_ = false;
  std::string health;
  do {  // until the last snapshot has aged
    health = get("/healthz");
  } while (health.starts_with("HTTP/1.1 200 "));
  EXPECT_TRUE(health.starts_with("HTTP/1.1 503 ")) << health;
  EXPECT_NE(get("/metrics").find("djinn_memory_waiting_requests 1\n"), std::string::npos);
  EXPECT_EQ(asked_, 2u);  // one question at a time
  loop_answers_ = true;
  asked();  // at last
  EXPECT_TRUE(get("/healthz").starts_with("HTTP/1.1 200 OK\r\n"));
}

TEST_F(MetricsServerTest, bad_requests_are_refused_each_in_its_way) {
  EXPECT_TRUE(get("/").starts_with("HTTP/1.1 404 "));
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"POST /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 405 "},
      {"hello\r\n\r\n", "HTTP/1.1 400 "},
      {"GET / HTTP/1.1\r\nX: " + std::string(HttpRequest::kBytesMax, 'x'), "HTTP/1.1 431 "}};
  for (const auto& [request, answer] : cases) {
    const Fd client = connect();
    send(client, request);
    EXPECT_TRUE(receive(client).starts_with(answer)) << request;
  }
  EXPECT_EQ(asked_, 0u);
}

TEST_F(MetricsServerTest, silent_clients_keep_nobody_out) {
  std::vector<Fd> silent;
  for (size_t i = 0; i < 3 * MetricsServer::kConnections; ++i) silent.push_back(connect());
  EXPECT_TRUE(get("/metrics").starts_with("HTTP/1.1 200 OK\r\n"));
  EXPECT_EQ(receive(silent.front()), "");  // it gave way
}

TEST_F(MetricsServerTest, who_sends_byte_by_byte_is_answered_and_who_never_ends_is_cut) {
  const Fd slow = connect();
  for (const char c : std::string("GET /healthz HTTP/1.1\r\n\r\n")) send(slow, {&c, 1});
  EXPECT_TRUE(receive(slow).starts_with("HTTP/1.1 200 OK\r\n"));
  const Fd endless = connect();
  send(endless, "GET /metr");
  EXPECT_EQ(receive(endless), "");
  EXPECT_NE(get("/metrics").find("djinn_metrics_requests_total{result=\"timeout\"} 1\n"),
            std::string::npos);
}

TEST_F(MetricsServerTest, it_ends_while_clients_are_connected) {
  const Fd client = connect();
  send(client, "GET /metr");
  server_.reset();
  EXPECT_EQ(receive(client), "");
}

}  // namespace
}  // namespace djinn::daemon
