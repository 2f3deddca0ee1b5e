#include "daemon/djinnd/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>

#include <utility>

namespace djinn::daemon {
namespace {

// Messages heard before others get their turn.
constexpr int kTurn = 16;

std::vector<int> numbers_of(const std::vector<Fd>& fds) {
  std::vector<int> numbers;
  for (const Fd& fd : fds) numbers.push_back(fd.get());
  return numbers;
}

}  // namespace

Channel::Channel(Loop& loop, Fd socket, size_t backlog_max, Traffic& traffic, Events events)
    : loop_(loop),
      socket_(std::move(socket)),
      backlog_max_(backlog_max),
      traffic_(traffic),
      events_(std::move(events)) {
  poll_.emplace(loop, socket_.get(), [this] { ready(); });
  poll_->watch_readable();
}

Channel::~Channel() {
  *alive_ = false;
  // Unread messages would make the close a reset, which takes our last words from the peer.
  ::shutdown(socket_.get(), SHUT_RD);
  for (int i = 0; i < kTurn; ++i) {
    const auto unread = ipc::receive_datagram(socket_.get());
    if (!unread.ok() || !unread.value()) break;
  }
}

void Channel::send(std::span<const std::byte> bytes, std::span<const int> fds) {
  if (ended_ || draining_) return;
  if (!backlog_.empty()) return keep(bytes, fds);
  const Status sent = send_now(bytes, fds);
  if (sent) return;
  if (sent.error().code == ErrorCode::kBusy) return keep(bytes, fds);
  end(sent.error());
}

Status Channel::send_now(std::span<const std::byte> bytes, std::span<const int> fds) {
  DJINN_CHECK(ipc::send_datagram(socket_.get(), bytes, fds));
  ++traffic_.sent_messages;
  traffic_.sent_bytes += bytes.size();
  return {};
}

void Channel::keep(std::span<const std::byte> bytes, std::span<const int> fds) {
  if (backlog_.size() >= backlog_max_) {
    return end({ErrorCode::kQueueFull, "The peer does not read its messages."});
  }
  Waiting waiting{{bytes.begin(), bytes.end()}, {}};
  for (const int fd : fds) {
    Fd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!copy.valid()) return end(system_error("keep a descriptor for the peer", errno));
    waiting.fds.push_back(std::move(copy));
  }
  backlog_.push_back(std::move(waiting));
  poll_->watch_both();
}

void Channel::flush() {
  while (!backlog_.empty() && !ended_) {
    const Waiting& next = backlog_.front();
    const Status sent = send_now(next.bytes, numbers_of(next.fds));
    if (!sent && sent.error().code == ErrorCode::kBusy) return;
    if (!sent) return end(sent.error());
    backlog_.pop_front();
  }
  if (!ended_) poll_->watch_readable();
}

void Channel::ready() {
  if (!backlog_.empty()) flush();
  for (int i = 0; i < kTurn && hear_one(); ++i) {
  }
}

bool Channel::hear_one() {
  if (ended_) return false;
  Result<std::optional<ipc::Datagram>> next = ipc::receive_datagram(socket_.get());
  if (!next) {
    end(next.error());
    return false;
  }
  if (!next.value()) return false;
  ++traffic_.received_messages;
  traffic_.received_bytes += next.value()->bytes.size();
  events_.message(*std::move(next.value()));
  return true;
}

// Also where words to the peer were lost: it may have said what must be heard before it ended.
void Channel::drain() {
  draining_ = true;
  ended_ = false;
  while (hear_one()) {
  }
}

void Channel::end(Error error) {
  if (ended_) return;
  ended_ = true;
  poll_->pause();
  loop_.defer([this, alive = alive_, error = std::move(error)] {
    if (*alive && events_.ended) events_.ended(error);
  });
}

void Channel::mute() {
  ended_ = true;
  *alive_ = false;
  poll_->pause();
}

}  // namespace djinn::daemon
