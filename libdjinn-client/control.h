// SPDX-License-Identifier: Apache-2.0

// Control: the control socket of one connection: a request goes out, its answer comes back.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ipc/messages.h"
#include "ipc/socket.h"
#include "kernel/base/result.h"
#include "libdjinn-client/connect_advice.h"
#include "libdjinn-client/deadline.h"
#include "libdjinn-client/host.h"
#include "libdjinn-client/interrupt.h"
#include "libdjinn-client/lease_socket.h"

namespace djinn::client {

// How a session ended.
struct SessionEnd {
  Error why;
  bool was_terminated = false;  // it was somebody's will
};

struct Answer {
  ipc::DaemonReply reply;
  std::vector<Fd> fds;
};

class Control {
 public:
  // Errors: kNotFound when no daemon listens there, kPermissionDenied; those of connect_far(). That
  // a far host cannot be reached, the first request tells.
  static Result<Control> connect(const Host& host, const Deadline* deadline = nullptr);

  // Its session only looks, so that nothing of it is lost with the connection.
  void set_observer() { is_observer_ = true; }

  // Ends waits, with kCancelled. An answer that comes after it is dropped, and what it gave is
  // given back. nullptr: nothing does.
  void set_interrupt(Interrupt* interrupt) { interrupt_ = interrupt; }
  // Ends the same waits when it says so, which it is asked several times a second. Empty: nobody
  // is.
  void set_given_up(CancelPredicate given_up) { given_up_ = std::move(given_up); }

  // Called once, while a request waits for its answer for longer than two seconds. Not while one
  // does whose answer comes when something is done: that opens, evicts, defines, or waits for
  // events.
  void set_on_silence(std::function<void()> on_silence) { on_silence_ = std::move(on_silence); }

  // Sends body with fds and waits for its answer; a Failed answer comes back as its Error.
  // deadline: nullptr waits as long as it takes; when it ends, so does the use of this connection,
  // for the answer may still come.
  Result<Answer> request(decltype(ipc::ClientRequest::body) body, std::span<const int> fds = {},
                         const Deadline* deadline = nullptr);
  // Sends body, whose answer nobody waits for, if there is room for it and for one more such
  // answer; whether it did. Never waits. Errors: why the session ended.
  Result<bool> tell(decltype(ipc::ClientRequest::body) body);
  // Sends body, which gives something back, as soon as there is room, and before any request that
  // comes later. Never waits.
  void give_back(decltype(ipc::ClientRequest::body) body);
  // Sends what give_back() could not, as far as there is room. No system call where nothing is
  // owed.
  void send_owed_without_wait();
  // The programs of answers that nobody waited for, since the last call.
  std::vector<ProgramId> take_late_programs() { return std::exchange(late_programs_, {}); }
  // Asks as request() does, for answers of one kind. Errors: kProtocolViolation for another kind.
  template <typename Body>
  Result<Body> ask(decltype(ipc::ClientRequest::body) body, std::vector<Fd>* fds_out = nullptr,
                   std::span<const int> fds = {}, const Deadline* deadline = nullptr);

  // Reads what djinnd said unasked, without waiting. Errors: why the session ended, kDisconnected
  // when djinnd is gone; the same one from then on.
  Status check_notices();
  // Whether an earlier call found that the session has ended; no system call.
  [[nodiscard]] bool has_ended() const { return ended_.has_value(); }
  // Likewise: whether it has because somebody ended it.
  [[nodiscard]] bool was_terminated() const { return ended_ && ended_->was_terminated; }
  [[nodiscard]] int fd() const { return socket_.get(); }
  // Whether its djinnd is on another machine.
  [[nodiscard]] bool is_far() const { return is_far_; }

 private:
  Control(LeaseSocket socket, bool is_far) : socket_(std::move(socket)), is_far_(is_far) {}
  // An answer that has come and is still wanted; nothing if there is none.
  Result<std::optional<Answer>> receive();
  Result<std::optional<Answer>> receive_any();
  // Whether nobody waits for this answer, which is then no longer expected.
  bool is_unwanted(uint32_t number) { return unwanted_.erase(number) + returns_.erase(number) > 0; }
  void let_go(const ipc::DaemonReply& unwanted);
  Status send_owed(const Deadline* deadline);
  Error end(Error why);
  Status wait(short events, const Deadline* deadline);
  Status wait_for_answer(bool may_take_long, const Deadline* deadline);
  Result<Answer> take_answer(uint32_t number, bool may_take_long, const Deadline* deadline);
  Status send(std::span<const std::byte> bytes, std::span<const int> fds, const Deadline* deadline);

  LeaseSocket socket_;
  bool is_far_;
  uint32_t last_number_ = 0;
  std::optional<SessionEnd> ended_;
  bool is_observer_ = false;
  Interrupt* interrupt_ = nullptr;
  CancelPredicate given_up_;
  std::function<void()> on_silence_;
  std::set<uint32_t> unwanted_;  // numbers of requests whose answers nobody waits for any more
  std::set<uint32_t> returns_;   // likewise, of what is given back: djinnd answers that at once
  std::deque<ipc::ClientRequest> owed_;   // that give something back, and are not sent yet
  std::vector<ProgramId> late_programs_;  // of answers that nobody waited for
};

template <typename Body>
Result<Body> Control::ask(decltype(ipc::ClientRequest::body) body, std::vector<Fd>* fds_out,
                          std::span<const int> fds, const Deadline* deadline) {
  DJINN_TRY(Answer answer, request(std::move(body), fds, deadline));
  Body* const wanted = std::get_if<Body>(&answer.reply.body);
  if (wanted == nullptr) {
    return not_as_djinnd_answers(ErrorCode::kProtocolViolation,
                                 "The daemon answered with another kind of message.");
  }
  if (fds_out != nullptr) *fds_out = std::move(answer.fds);
  return std::move(*wanted);
}

}  // namespace djinn::client
