// SPDX-License-Identifier: Apache-2.0

// Connection: one program's sessions with one djinnd, one after the other. A session ends when
// djinnd is stopped or restarted, when an administrator ends it, and in the child of a fork, whose
// session is its parent's. What was in flight then fails; nothing is sent twice.
//
//   session   the number of a session of this connection, from 1. A handle (a model, program,
//             sequence, ref) is remembered together with it
//   open()    for what names no handle: makes a new session where the last one has ended
//   of()      for a handle: the client of its session, or an error that says that it is gone
//
// invariant: no client is given for a handle of another session than its own, so a stale handle
// meets neither memory that was freed nor a namesake in the new session.
// A client is good until the next call of this class. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kernel/base/clock.h"
#include "kernel/base/random.h"
#include "libdjinn-client/client.h"
#include "libdjinn-client/deadline.h"

namespace djinn::client {

// A restart of the service takes a second or two, and the first worker after it some more.
inline constexpr uint64_t kReconnectWaitMs = 10'000;

// The pauses between attempts: twice as long each time, up to a limit, and of each a random part of
// a half, so that the clients of a djinnd that comes back do not all come at once.
class Backoff {
 public:
  // first_ms, most_ms: of the first pause, and of the longest.
  explicit Backoff(uint64_t seed, uint64_t first_ms = 20, uint64_t most_ms = 500)
      : random_(seed), now_ms_(first_ms), most_ms_(most_ms) {}
  [[nodiscard]] uint64_t next_ms();

 private:
  Random random_;
  uint64_t now_ms_;
  uint64_t most_ms_;
};

class Connection {
 public:
  // Makes no session yet. reconnect_wait_ms: see open(); nothing: only reconnect() makes another.
  explicit Connection(ConnectOptions options,
                      std::optional<uint64_t> reconnect_wait_ms = kReconnectWaitMs);

  // The number of the last session that there was; 0: none yet.
  [[nodiscard]] uint64_t session() const { return session_; }

  // Whether there is a session that lives; a system call that does not wait. A session that has
  // ended is let go of, with its memory. Errors: why it ended, the same one until there is another.
  Status check();

  // The client of a session that lives. The first session gets one attempt, which djinnd has
  // ConnectOptions::answer_ms to answer. After a session that ended, attempts go on until
  // reconnect_wait_ms after that was seen; calls that come later make one each: it fails at once
  // where no djinnd listens, and one that takes the connection has reconnect_wait_ms to answer. If
  // djinnd said why the session ended and no call met that yet, this one fails with it, once.
  // Errors: those of Client::connect() for the first session, kTimeout among them; kDisconnected
  // after one that ended; kCancelled.
  Result<Client*> open(const CancelPredicate& given_up = {});

  // The client of a handle's session. Errors: kDisconnected when that is gone. No system call.
  Result<Client*> of(uint64_t session);
  // The same for a ref, which names its session. Errors: also kNotFound for one of generation 0.
  Result<Client*> of(RefHandle ref);

  // Makes a new session, unless the last one lives. Attempts go on for so long; there is at least
  // one, and it has at least a second to be answered. Errors: those of Client::connect(), of the
  // last attempt; kTimeout when djinnd takes the connection and does not answer; kCancelled.
  Status reconnect(uint64_t wait_ms, const CancelPredicate& given_up = {});

  // As Client's, of this session and those to come.
  void set_begin_within_ms(uint64_t ms);
  // ConnectOptions::service_class of the sessions to come.
  void set_service_class(std::string name);

  // While one lives, the connection has no client for anybody, but kBusy: the code that a client
  // calls back must not use it. They don't nest.
  class Hold {
   public:
    explicit Hold(Connection& connection) : connection_(connection) { connection_.held_ = true; }
    ~Hold() { connection_.held_ = false; }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    Connection& connection_;
  };

  // Leaves what the session had as it is, for nobody: in the child of a fork, when another thread
  // of the parent was in the middle of a call.
  void abandon();

 private:
  // reconnect() without a session that lives.
  Status try_again(uint64_t wait_ms, const CancelPredicate& given_up);
  // A djinnd that takes the connection has answer_ms to answer, or a second if that is longer.
  Status try_once(uint64_t answer_ms, const CancelPredicate& given_up);
  Result<std::unique_ptr<Client>> attempt(const Deadline& deadline);
  void adopt(std::unique_ptr<Client> client);
  void let_go(Error why);
  [[nodiscard]] Error gone() const;
  [[nodiscard]] Status refuse_held() const;

  ConnectOptions options_;
  std::string usual_host_;  // where djinnd listened, to whoever named no host
  std::optional<uint64_t> reconnect_wait_ms_;
  SystemClock clock_;
  std::unique_ptr<Client> client_;
  uint64_t session_ = 0;
  bool held_ = false;
  SessionEnd end_;          // of the last session that has
  uint64_t ended_ns_ = 0;   // when that was seen
  uint32_t refs_gone_ = 0;  // refs up to this generation are of earlier sessions
};

}  // namespace djinn::client
