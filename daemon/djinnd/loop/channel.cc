// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/loop/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <utility>

#include "kernel/base/assert.h"

namespace djinn::daemon {
namespace {

// At most this many messages of a worker or loader are heard in a row.
constexpr int kTurn = 16;

std::vector<int> numbers_of(const std::vector<SharedFd>& fds) {
  std::vector<int> numbers;
  for (const SharedFd& fd : fds) numbers.push_back(fd->get());
  return numbers;
}

}  // namespace

Channel::Channel(Loop& loop, Fd socket, size_t backlog_max, Traffic& traffic, Events events,
                 Close close)
    : loop_(loop),
      socket_(std::move(socket)),
      backlog_max_(backlog_max),
      traffic_(traffic),
      events_(std::move(events)),
      close_(std::move(close)) {
  DJINN_ASSERT(socket_.valid() && close_ != nullptr);
  poll_.emplace(loop, socket_.get(), [this] { ready(); });
  poll_->watch_readable();
}

Channel::~Channel() {
  *alive_ = false;
  // The peer must see the end now, even if the socket is closed later.
  ::shutdown(socket_.get(), SHUT_RDWR);
  // Closing a socket with unread messages resets it, and the peer would lose our last words.
  for (int i = 0; i < kTurn; ++i) {
    std::vector<Fd> fds;
    auto unread = ipc::receive_datagram(socket_.get(), &fds);
    const bool more = unread.ok() && unread.value();
    if (more) fds = std::move(unread.value()->fds);
    for (Fd& fd : fds) close_(std::move(fd));
    if (!more) break;
  }
  poll_.reset();  // it looks at the socket
  close_(std::move(socket_));
}

void Channel::send(std::span<const std::byte> bytes, std::span<const int> fds) {
  if (says_nothing_more() || sent_at_once(bytes, fds)) return;
  std::vector<SharedFd> copies;
  for (const int fd : fds) {
    Fd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!copy.valid()) return end(system_error("keep a descriptor for the peer", errno));
    copies.push_back(std::make_shared<const Fd>(std::move(copy)));
  }
  keep(bytes, std::move(copies));
}

void Channel::send_shared(std::span<const std::byte> bytes, std::vector<SharedFd> fds) {
  if (says_nothing_more() || sent_at_once(bytes, numbers_of(fds))) return;
  keep(bytes, std::move(fds));
}

bool Channel::sent_at_once(std::span<const std::byte> bytes, std::span<const int> fds) {
  if (!backlog_.empty()) return false;
  const Status sent = send_now(bytes, fds);
  if (!sent && sent.error().code == ErrorCode::kBusy) return false;
  if (!sent) end(sent.error());
  return true;
}

Status Channel::send_now(std::span<const std::byte> bytes, std::span<const int> fds) {
  DJINN_CHECK(ipc::send_datagram(socket_.get(), bytes, fds));
  traffic_.note_sent(bytes.size());
  own_.note_sent(bytes.size());
  return {};
}

void Channel::keep(std::span<const std::byte> bytes, std::vector<SharedFd> fds) {
  if (ended_) return;
  if (backlog_.size() >= backlog_max_) {
    return end({ErrorCode::kQueueFull, "The peer does not read its messages."});
  }
  backlog_.push_back({{bytes.begin(), bytes.end()}, std::move(fds)});
  watch();
  if (patience_ && !patience_->active()) await_reading();
}

void Channel::take_turns(Turns& turns, Owner user, uint64_t patience_ms) {
  DJINN_ASSERT(turns_ == nullptr && patience_ms > 0);
  turns_ = &turns;
  patience_ms_ = patience_ms;
  patience_.emplace(loop_, [this] { lose_patience(); });
  speaker_ = make_speaker(user);
}

// The former speaker, which may be speaking, is forgotten with its owner.
void Channel::pass_to(Owner user, Close close) {
  DJINN_ASSERT(turns_ != nullptr && close != nullptr && !hung_up_);
  close_ = std::move(close);
  speaker_ = make_speaker(user);
  if (!ended_) watch();
}

std::shared_ptr<Turns::Speaker> Channel::make_speaker(Owner user) {
  return std::make_shared<Turns::Speaker>(Turns::Speaker{user, [this] { return take_turn(); },
                                                         [this] {
                                                           if (listens()) watch();
                                                         }});
}

size_t Channel::take_turn() {
  if (hung_up_) return throw_away_one();
  return must_wait() ? 0 : hear_one();
}

void Channel::await_reading() {
  DJINN_ASSERT(patience_.has_value());
  sent_before_ = own_.sent_messages;
  patience_->start_once(patience_ms_);
}

void Channel::lose_patience() {
  if (ended_ || backlog_.empty()) return;
  if (own_.sent_messages > sent_before_ || !has(POLLIN)) return await_reading();
  end({ErrorCode::kQueueFull, "The peer sends more, and does not read its messages."});
}

// A peer that asks and never reads must wait, or djinnd would have to keep all its answers.
bool Channel::must_wait() const {
  return held_ || (turns_ != nullptr && !backlog_.empty());
}

void Channel::hold(bool held) {
  held_ = held;
  if (!ended_) watch();
}

void Channel::watch() {
  const bool deaf = (must_wait() && !hung_up_) || (speaker_ && speaker_->rests);
  if (backlog_.empty()) return deaf ? poll_->pause() : poll_->watch_readable();
  deaf ? poll_->watch_writable() : poll_->watch_both();
}

void Channel::flush() {
  while (!backlog_.empty() && !ended_) {
    const Waiting& next = backlog_.front();
    const Status sent = send_now(next.bytes, numbers_of(next.fds));
    if (!sent && sent.error().code == ErrorCode::kBusy) return;
    if (!sent) return end(sent.error());
    backlog_.pop_front();
  }
  if (ended_) return;
  watch();
  if (events_.flushed) events_.flushed();
}

void Channel::ready() {
  if (!backlog_.empty()) flush();
  if (turns_ != nullptr) return turns_->note(speaker_);
  for (int i = 0; i < kTurn && hear_one() > 0; ++i) {
  }
}

size_t Channel::hear_one() {
  if (ended_) return 0;
  std::vector<Fd> of_refused;
  Result<std::optional<ipc::Datagram>> next = ipc::receive_datagram(socket_.get(), &of_refused);
  if (!next) {
    for (Fd& fd : of_refused) close_(std::move(fd));
    end(next.error());
    return 0;
  }
  if (!next.value()) return 0;
  const size_t bytes = next.value()->bytes.size();
  ++traffic_.received_messages;
  traffic_.received_bytes += bytes;
  events_.message(*std::move(next.value()));
  return bytes;
}

// The channel is drained even if a message to the peer was lost: before it ended, the peer may have
// said something that must be heard.
void Channel::drain() {
  draining_ = true;
  ended_ = false;
  while (hear_one() > 0) {
  }
}

void Channel::end(Error error) {
  if (ended_) return;
  ended_ = true;
  speaks_ = error.code == ErrorCode::kProtocolViolation || error.code == ErrorCode::kLimitExceeded;
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

// Only sending is shut down: POLLRDHUP must go on to tell of the peer's end, and not of this one's.
void Channel::dismiss() {
  mute();
  backlog_.clear();
  ::shutdown(socket_.get(), SHUT_WR);
}

bool Channel::has(short event) const {
  pollfd end{socket_.get(), event, 0};
  return ::poll(&end, 1, 0) == 1;
}

bool Channel::has_hung_up() const {
  return has(POLLRDHUP);
}

// Descriptors in unread messages may be all that keeps the peer's own socket open.
size_t Channel::throw_away_one() {
  DJINN_ASSERT(ended_ && hung_up_ != nullptr);
  if (has_hung_up()) {
    poll_->pause();
    loop_.defer([alive = alive_, hung_up = std::exchange(hung_up_, {})] {
      if (*alive) hung_up();
    });
    return 0;
  }
  std::vector<Fd> fds;
  auto unread = ipc::receive_datagram(socket_.get(), &fds);
  if (unread.ok() && !unread.value()) return 0;
  if (unread.ok()) fds = std::move(unread.value()->fds);
  for (Fd& fd : fds) close_(std::move(fd));
  return unread.ok() ? unread.value()->bytes.size() : 1;
}

void Channel::await_hang_up(std::function<void()> hung_up) {
  DJINN_ASSERT(ended_);
  hung_up_ = std::move(hung_up);
  alive_ = std::make_shared<bool>(true);
  watch();
}

}  // namespace djinn::daemon
