// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/metrics/metrics_server.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "daemon/djinnd/loop/background.h"
#include "kernel/base/assert.h"
#include "kernel/base/clock.h"

namespace djinn::daemon {
namespace {

constexpr int kNotPolled = -1;
constexpr const char* kExposition = "text/plain; version=0.0.4; charset=utf-8";

// Tells whether a call on a socket failed because it would have had to wait, or was interrupted.
bool must_wait() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

bool is_page(const HttpRequest& request) {
  return request.state == HttpRequest::State::kComplete &&
         (request.path == "/metrics" || request.path == "/healthz" || request.path == "/readyz");
}

}  // namespace

bool may_follow(ScrapePhase from, ScrapePhase to) {
  using enum ScrapePhase;
  static constexpr auto kLegal = std::to_array<Transition<ScrapePhase>>({
      {kReading, kAsking},
      {kReading, kWriting},
      {kAsking, kWriting},
      {kWriting, kClosing},
  });
  return is_listed(kLegal, from, to);
}

Result<std::unique_ptr<MetricsServer>> MetricsServer::start(std::vector<Fd> sockets,
                                                            const Clock& clock,
                                                            std::function<void()> ask) {
  Fd bell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell.valid()) return system_error("make the metrics' bell", errno);
  std::unique_ptr<MetricsServer> server(
      new MetricsServer(std::move(sockets), clock, std::move(ask), std::move(bell)));
  DJINN_TRY(server->thread_, start_thread("metrics", [raw = server.get()] { raw->work(); }));
  return server;
}

MetricsServer::MetricsServer(std::vector<Fd> sockets, const Clock& clock, std::function<void()> ask,
                             Fd bell)
    : sockets_(std::move(sockets)), clock_(clock), ask_(std::move(ask)), bell_(std::move(bell)) {
  static_assert(kFreshMs <= kSnapshotMs);
  DJINN_ASSERT(!sockets_.empty() && ask_ != nullptr);
}

MetricsServer::~MetricsServer() {
  stopping_.store(true);
  ring();
  if (thread_.joinable()) thread_.join();
}

void MetricsServer::ring() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(bell_.get(), &one, sizeof one);
}

void MetricsServer::publish(std::unique_ptr<const MetricsSnapshot> snapshot) {
  latest_.put(std::move(snapshot));
  ring();
}

// --- the thread

void MetricsServer::work() {
  while (!stopping_.load()) wait();
}

// Makes one turn: sleeps until something happens or is due, and handles it.
void MetricsServer::wait() {
  std::vector<pollfd> polled{{bell_.get(), POLLIN, 0}};
  const bool accepts = takes_more();
  for (const Fd& socket : sockets_) {
    polled.push_back({accepts ? socket.get() : kNotPolled, POLLIN, 0});
  }
  for (const Connection& one : connections_) {
    const short events = one.phase == ScrapePhase::kWriting ? POLLOUT : POLLIN;
    polled.push_back(
        {one.phase == ScrapePhase::kAsking ? kNotPolled : one.socket.get(), events, 0});
  }
  if (::poll(polled.data(), polled.size(), timeout_ms()) < 0) return;

  // Connections are served before new ones are added to the list.
  size_t next = 1 + sockets_.size();
  for (Connection& one : connections_) {
    if (polled[next++].revents != 0) go_on(one);
  }
  DJINN_ASSERT(next == polled.size());
  if (polled[0].revents != 0) take_news();
  for (size_t i = 0; i < sockets_.size(); ++i) {
    if (polled[1 + i].revents != 0) accept_from(sockets_[i]);
  }
  expire();
  connections_.remove_if([](const Connection& one) { return !one.socket.valid(); });
}

// When every connection is in use and none can give way, new ones wait in the socket's queue.
bool MetricsServer::takes_more() const {
  if (clock_.monotonic_ns() < pause_until_ns_) return false;
  return connections_.size() < kConnections || std::ranges::any_of(connections_, gives_way);
}

int MetricsServer::timeout_ms() const {
  const uint64_t now_ns = clock_.monotonic_ns();
  uint64_t due_ns = now_ns < pause_until_ns_ ? pause_until_ns_ : UINT64_MAX;
  for (const Connection& one : connections_) due_ns = std::min(due_ns, one.deadline_ns);
  if (due_ns == UINT64_MAX) return -1;
  return static_cast<int>((due_ns - std::min(due_ns, now_ns)) / kNsPerMs + 1);
}

bool MetricsServer::gives_way(const Connection& connection) {
  return connection.phase == ScrapePhase::kReading || connection.phase == ScrapePhase::kClosing;
}

void MetricsServer::take_news() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(bell_.get(), &count, sizeof count);
  auto newest = latest_.take();
  if (!newest) return;
  snapshot_ = std::move(newest);
  asked_ = false;
  for (Connection& one : connections_) {
    if (one.phase == ScrapePhase::kAsking) answer(one);
  }
}

void MetricsServer::accept_from(const Fd& socket) {
  Fd client(::accept4(socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!client.valid()) {
    // There are no descriptors or no memory, so accepting again at once would only use up a core.
    if (!must_wait() && errno != ECONNABORTED) {
      pause_until_ns_ = clock_.monotonic_ns() + kPauseMs * kNsPerMs;
    }
    return;
  }
  if (!make_room()) return;
  connections_.push_back({std::move(client)});
  DJINN_ASSERT(connections_.size() <= kConnections);
  connections_.back().deadline_ns = clock_.monotonic_ns() + kRequestMs * kNsPerMs;
  read(connections_.back());
}

// Closes the oldest connection that may give way.
bool MetricsServer::make_room() {
  connections_.remove_if([](const Connection& one) { return !one.socket.valid(); });
  if (connections_.size() < kConnections) return true;
  const auto oldest = std::ranges::find_if(connections_, gives_way);
  if (oldest == connections_.end()) return false;
  if (oldest->phase == ScrapePhase::kReading) ++counts_.connections_cut;
  connections_.erase(oldest);
  return true;
}

void MetricsServer::go_on(Connection& connection) {
  switch (connection.phase) {
    case ScrapePhase::kReading:
      return read(connection);
    case ScrapePhase::kAsking:
      return;
    case ScrapePhase::kWriting:
      return write(connection);
    case ScrapePhase::kClosing:
      return drop_input(connection);
  }
}

void MetricsServer::read(Connection& connection) {
  DJINN_ASSERT(connection.phase == ScrapePhase::kReading);
  DJINN_ASSERT(connection.in.size() < HttpRequest::kBytesMax);
  std::array<char, HttpRequest::kBytesMax> buffer;
  const size_t room = HttpRequest::kBytesMax - connection.in.size();
  const ssize_t length = ::recv(connection.socket.get(), buffer.data(), room, 0);
  if (length < 0 && must_wait()) return;
  if (length <= 0) return connection.socket.reset();
  connection.in.append(buffer.data(), static_cast<size_t>(length));
  connection.request = read_request(connection.in);
  if (connection.request.state != HttpRequest::State::kIncomplete) requested(connection);
}

bool MetricsServer::is_fresh(uint64_t age_ms) const {
  return snapshot_ && clock_.monotonic_ns() <= snapshot_->taken_ns + age_ms * kNsPerMs;
}

void MetricsServer::requested(Connection& connection) {
  if (!is_page(connection.request) || is_fresh(kFreshMs)) return answer(connection);
  connection.phase.enter(ScrapePhase::kAsking);
  connection.deadline_ns = clock_.monotonic_ns() + kSnapshotMs * kNsPerMs;
  if (!std::exchange(asked_, true)) ask_();
}

void MetricsServer::answer(Connection& connection) {
  const Answer made = make(connection.request);
  ++(std::string_view(made.status).starts_with("200") ? counts_.answers : counts_.refusals);
  connection.out =
      make_answer(made.status, made.content_type, made.body, connection.request.head_only);
  connection.phase.enter(ScrapePhase::kWriting);
  connection.deadline_ns = clock_.monotonic_ns() + kAnswerMs * kNsPerMs;
  write(connection);
}

MetricsServer::Answer MetricsServer::make(const HttpRequest& request) {
  switch (request.state) {
    case HttpRequest::State::kComplete:
      return make_complete(request);
    case HttpRequest::State::kTooLarge:
      return {"431 Request Header Fields Too Large", "A request has at most 4096 bytes.\n"};
    case HttpRequest::State::kUnsupported:
      return {"405 Method Not Allowed", "Only GET and HEAD are answered.\n"};
    case HttpRequest::State::kIncomplete:
    case HttpRequest::State::kMalformed:
      break;
  }
  return {"400 Bad Request", "This is no HTTP request.\n"};
}

MetricsServer::Answer MetricsServer::make_complete(const HttpRequest& request) const {
  if (!is_page(request)) return {"404 Not Found", "There are /metrics, /healthz and /readyz.\n"};
  if (!snapshot_) return tell_state(false, "djinnd has not begun to serve.");
  if (request.path == "/metrics") {
    return {"200 OK", text_of(*snapshot_, counts_, read_process_basics(), clock_.monotonic_ns()),
            kExposition};
  }
  // An old snapshot means that the loop did not answer in time.
  if (!is_fresh(kSnapshotMs)) return tell_state(false, "djinnd's loop does not answer.");
  if (request.path == "/healthz") return tell_state(snapshot_->healthy, snapshot_->unhealthy_why);
  return tell_state(snapshot_->ready, snapshot_->unready_why);
}

MetricsServer::Answer MetricsServer::tell_state(bool good, const std::string& why) const {
  if (good) return {"200 OK", "ok\n"};
  return {"503 Service Unavailable", why + "\n"};
}

void MetricsServer::write(Connection& connection) {
  while (connection.written < connection.out.size()) {
    const ssize_t length =
        ::send(connection.socket.get(), connection.out.data() + connection.written,
               connection.out.size() - connection.written, MSG_NOSIGNAL);
    if (length < 0 && must_wait()) return;
    if (length <= 0) return connection.socket.reset();
    connection.written += static_cast<size_t>(length);
    DJINN_ASSERT(connection.written <= connection.out.size());
  }
  // Closing a socket with unread input would reset it, and the client would lose the answer. So the
  // server waits for the client to close.
  ::shutdown(connection.socket.get(), SHUT_WR);
  connection.phase.enter(ScrapePhase::kClosing);
  connection.deadline_ns = clock_.monotonic_ns() + kClosingMs * kNsPerMs;
  drop_input(connection);
}

void MetricsServer::drop_input(Connection& connection) {
  std::array<char, HttpRequest::kBytesMax> buffer;
  const ssize_t length = ::recv(connection.socket.get(), buffer.data(), buffer.size(), 0);
  if (length == 0 || (length < 0 && !must_wait())) connection.socket.reset();
}

void MetricsServer::expire() {
  const uint64_t now_ns = clock_.monotonic_ns();
  for (Connection& one : connections_) {
    if (!one.socket.valid() || now_ns < one.deadline_ns) continue;
    if (one.phase == ScrapePhase::kAsking) {
      answer(one);
      continue;
    }
    if (one.phase != ScrapePhase::kClosing) ++counts_.timeouts;
    one.socket.reset();
  }
}

}  // namespace djinn::daemon
