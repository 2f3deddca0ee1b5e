// SPDX-License-Identifier: Apache-2.0

// MetricsServer: a thread that answers /metrics, /healthz and /readyz over HTTP, on sockets that
// listen already.
//
//   snapshot    the newest that the loop has published; answers are made of it alone
//   question    asks the loop for a newer one, when the newest is older than kFreshMs. The answer
//               waits for it, but not longer than kSnapshotMs: then the old numbers are told, with
//               their age, and the loop is called unhealthy
//
// The loop never waits for this thread, nor for its clients: a snapshot goes over through a place
// that both exchange at once (latest.h), a question through a wake-up. While nobody asks, both
// sleep.
//
// A client has one request of at most 4 KiB on a connection, and kRequestMs to send it. At most
// kConnections are open; when all are, one that has not asked yet, or has its answer, gives way to
// who comes.
//
//   reading -> asking     it has asked for a page, and the newest snapshot is too old
//   reading -> writing    it has its answer; or it is refused
//   asking -> writing     it has its answer
//   writing -> closing    all of the answer is sent
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "daemon/djinnd/loop/latest.h"
#include "daemon/djinnd/metrics/http_request.h"
#include "daemon/djinnd/metrics/metrics_snapshot.h"
#include "daemon/djinnd/metrics/metrics_text.h"
#include "kernel/base/clock.h"
#include "kernel/base/fd.h"
#include "kernel/base/owned_state.h"
#include "kernel/base/result.h"

namespace djinn::daemon {

enum class ScrapePhase : uint8_t { kReading, kAsking, kWriting, kClosing };
[[nodiscard]] bool may_follow(ScrapePhase from, ScrapePhase to);

class MetricsServer {
 public:
  static constexpr size_t kConnections = 8;
  static constexpr uint64_t kFreshMs = 500;
  static constexpr uint64_t kSnapshotMs = 1000;
  static constexpr uint64_t kRequestMs = 2000;
  static constexpr uint64_t kAnswerMs = 5000;  // to read the answer
  static constexpr uint64_t kClosingMs = 1000;
  static constexpr uint64_t kPauseMs = 100;  // after running out of descriptors

  // sockets: listening, non-blocking. ask: called on the thread; publish() is its answer.
  // Errors: kSystem and its kin.
  static Result<std::unique_ptr<MetricsServer>> start(std::vector<Fd> sockets, const Clock& clock,
                                                      std::function<void()> ask);
  // Ends all connections, and the thread.
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  // Any thread; never waits.
  void publish(std::unique_ptr<const MetricsSnapshot> snapshot);

 private:
  struct Connection {
    Fd socket{};
    OwnedState<ScrapePhase, MetricsServer> phase{};
    std::string in{};
    HttpRequest request{};
    std::string out{};
    size_t written = 0;
    uint64_t deadline_ns = 0;
  };
  struct Answer {
    const char* status;
    std::string body;
    const char* content_type = "text/plain; charset=utf-8";
  };

  MetricsServer(std::vector<Fd> sockets, const Clock& clock, std::function<void()> ask, Fd bell);
  void work();
  void wait();
  void take_news();
  void accept_from(const Fd& socket);
  bool make_room();
  void go_on(Connection& connection);
  void read(Connection& connection);
  void requested(Connection& connection);
  void answer(Connection& connection);
  void write(Connection& connection);
  void drop_input(Connection& connection);
  void expire();
  [[nodiscard]] bool takes_more() const;
  static bool gives_way(const Connection& connection);
  [[nodiscard]] int timeout_ms() const;
  [[nodiscard]] Answer make(const HttpRequest& request);
  [[nodiscard]] Answer make_complete(const HttpRequest& request) const;
  [[nodiscard]] Answer tell_state(bool good, const std::string& why) const;
  [[nodiscard]] bool is_fresh(uint64_t age_ms) const;
  void ring();

  const std::vector<Fd> sockets_;
  const Clock& clock_;
  const std::function<void()> ask_;
  const Fd bell_;
  Latest<MetricsSnapshot> latest_;
  std::atomic<bool> stopping_{false};
  // --- the thread's own
  std::unique_ptr<const MetricsSnapshot> snapshot_;
  bool asked_ = false;           // and not answered
  uint64_t pause_until_ns_ = 0;  // until then nobody is accepted
  std::list<Connection> connections_;
  ScrapeCounts counts_;
  std::thread thread_;
};

}  // namespace djinn::daemon
