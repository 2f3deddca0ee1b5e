// SPDX-License-Identifier: Apache-2.0

// Channel: djinnd's end of one SEQPACKET socket, to a client, a worker or a loader. Never blocks:
// what the peer is not ready to take waits here, and a peer that lets too much wait is cut off.
//
// A client is heard in its turn (turns.h), and not while it is held, or leaves answers unread. What
// is not heard may hold the client's own end, which then stays open when the client has gone: so
// who leaves answers unread while more of it waits is cut off after a while, and of who was
// dismissed all is received, and nothing heard, until it hangs up.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "daemon/djinnd/loop/loop.h"
#include "daemon/djinnd/loop/traffic.h"
#include "daemon/djinnd/loop/turns.h"
#include "ipc/socket.h"
#include "kernel/base/fd.h"
#include "kernel/base/owner.h"
#include "kernel/base/result.h"

namespace djinn::daemon {

class Channel {
 public:
  // How a descriptor of the peer's is closed that nobody hears of, and the socket itself.
  using Close = std::function<void(Fd)>;
  struct Events {
    std::function<void(ipc::Datagram)> message;
    // Once, and nothing after it: the peer left (kDisconnected), broke a limit, or is too far
    // behind. A peer that broke a limit may be told so.
    std::function<void(const Error&)> ended;
    // All that waited for the peer is sent.
    std::function<void()> flushed{};
  };
  // backlog_max: messages that may wait for the peer. traffic: outlives this.
  Channel(
      Loop& loop, Fd socket, size_t backlog_max, Traffic& traffic, Events events,
      Close close = [](Fd fd) { fd.reset(); });
  ~Channel();

  // Sends in order. fds stay the caller's. Failures come as ended().
  void send(std::span<const std::byte> bytes, std::span<const int> fds = {});
  // Sends as above; each descriptor is valid, and held until it is sent.
  void send_shared(std::span<const std::byte> bytes, std::vector<SharedFd> fds);

  // Hears at once what the peer has sent so far: the last words of a process that has died.
  void drain();

  static constexpr uint64_t kPatienceMs = 60'000;

  // Is heard in its user's share of each turn from now on, instead of whenever it is ready. turns:
  // outlives this. patience_ms: for how long it may take no answer and want more.
  void take_turns(Turns& turns, Owner user, uint64_t patience_ms = kPatienceMs);
  // Is another user's from now on: it is heard in their turns, and they have closed what is left.
  void pass_to(Owner user, Close close);
  // Whether what the peer sends waits, in the socket: nothing of it is heard, its end neither.
  void hold(bool held);

  // Whether what is sent waits for the peer to read.
  [[nodiscard]] bool has_backlog() const { return !backlog_.empty(); }

  // No event is called any more.
  void mute();
  // Mutes, and the peer, a client, sees the end; it may keep its own end open for as long as it
  // likes.
  void dismiss();
  // Whether the peer of a dismissed one has closed its end; once, when it has. What it sends until
  // then is thrown away, in its user's turns.
  [[nodiscard]] bool has_hung_up() const;
  void await_hang_up(std::function<void()> hung_up);

  // The traffic of this socket.
  [[nodiscard]] const Traffic& traffic() const { return own_; }

 private:
  struct Waiting {
    std::vector<std::byte> bytes;
    std::vector<SharedFd> fds;
  };
  [[nodiscard]] std::shared_ptr<Turns::Speaker> make_speaker(Owner user);
  void ready();
  void watch();
  void flush();
  Status send_now(std::span<const std::byte> bytes, std::span<const int> fds);
  // Hears one message and gives its bytes; 0 when none waits or the channel has ended.
  size_t hear_one();
  // Receives one message of a dismissed peer and gives its bytes; 0 when none waits.
  size_t throw_away_one();
  size_t take_turn();
  [[nodiscard]] bool listens() const { return !ended_ || hung_up_; }
  [[nodiscard]] bool has(short event) const;  // poll's
  void await_reading();
  void lose_patience();
  void end(Error error);
  void keep(std::span<const std::byte> bytes, std::vector<SharedFd> fds);
  // Whether what a client sends waits.
  [[nodiscard]] bool must_wait() const;
  // False when it must wait for the peer.
  bool sent_at_once(std::span<const std::byte> bytes, std::span<const int> fds);
  [[nodiscard]] bool says_nothing_more() const { return !speaks_ || draining_; }

  Loop& loop_;
  Fd socket_;
  size_t backlog_max_;
  Traffic& traffic_;  // of all peers of this kind
  Traffic own_;
  Events events_;
  Close close_;
  std::deque<Waiting> backlog_;
  bool ended_ = false;  // nothing is heard any more
  bool speaks_ = true;
  bool draining_ = false;  // the peer is gone, and its last words are heard
  bool held_ = false;
  Turns* turns_ = nullptr;  // null: it is heard at once
  std::shared_ptr<Turns::Speaker> speaker_;
  uint64_t patience_ms_ = 0;
  std::optional<Timer> patience_;  // runs while answers wait for a client
  uint64_t sent_before_ = 0;       // messages, when it began to run
  std::function<void()> hung_up_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // for what was deferred
  std::optional<Poll> poll_;
};

}  // namespace djinn::daemon
