// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/control.h"

#include <errno.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "ipc/codec/control_codec.h"
#include "ipc/limits.h"
#include "libdjinn-client/connect_advice.h"
#include "libdjinn-client/far_host.h"
#include "libdjinn-client/wait.h"

namespace djinn::client {
namespace {

// At most this many requests may wait for answers that nobody wants: half of what djinnd takes.
// Half as many messages may be told without an answer.
constexpr size_t kUnwantedMax = limits::kRequestsPending / 2;
constexpr size_t kToldMax = kUnwantedMax / 2;

constexpr int kSilenceMs = 2000;

// Makes the sentences of an error fit to show, line by line, without what would steer a terminal.
void show(ipc::Failed& failed) {
  std::string shown;
  std::string_view rest = failed.message;
  for (;;) {
    const size_t line = std::min(rest.find('\n'), rest.size());
    shown += ipc::showable_sentence(rest.substr(0, line));
    if (line == rest.size()) break;
    shown += '\n';
    rest.remove_prefix(line + 1);
  }
  failed.message = std::move(shown);
}

// Tells whether the request gives something back: it must reach djinnd, whoever waits for it.
bool gives_back(const decltype(ipc::ClientRequest::body)& body) {
  return std::holds_alternative<ipc::DropSequence>(body) ||
         std::holds_alternative<ipc::CloseModel>(body);
}

// Tells whether the answer tells that something is done. That may take long, and so says nothing
// about djinnd.
bool is_answered_when_done(const decltype(ipc::ClientRequest::body)& body) {
  if (const auto* const follow = std::get_if<ipc::FollowEvents>(&body)) return follow->wait;
  return std::holds_alternative<ipc::OpenModel>(body) ||
         std::holds_alternative<ipc::ImportModel>(body) ||
         std::holds_alternative<ipc::DefineProgram>(body) ||
         std::holds_alternative<ipc::EvictModel>(body);
}

constexpr const char* kLost =
    "The connection to djinnd is lost, because djinnd was stopped or restarted: this session and "
    "what it held are gone. Start djinnd if it does not run, and load the model again, which "
    "connects anew.";
constexpr const char* kFarLost =
    "The connection to djinnd is lost, because djinnd there, djinn-gate, ssh, djinn-reach or the "
    "network between them stopped: this session and what it held are gone. Load the model again, "
    "which connects anew.";
constexpr const char* kFarLostByObserver =
    "The connection to djinnd is lost, because djinnd there, djinn-gate, ssh, djinn-reach or the "
    "network between them stopped. Repeat this.";
constexpr const char* kLostByObserver =
    "The connection to djinnd is lost, because djinnd was stopped or restarted. Start djinnd if it "
    "does not run, and repeat this.";

}  // namespace

Result<Control> Control::connect(const Host& host, const Deadline* deadline) {
  if (host.is_far()) {
    DJINN_TRY(LeaseSocket far, connect_far(host));
    return Control(std::move(far), true);
  }
  const std::string& path = host.path;
  auto socket = LeaseSocket::connect(path, deadline);
  if (!socket && socket.error().code == ErrorCode::kNotFound) {
    return nobody_answers(path, path == kServiceSocket && service_is_installed());
  }
  if (!socket && socket.error().code == ErrorCode::kPermissionDenied) {
    return not_allowed(path, stranger_to(path));
  }
  if (!socket) return std::move(socket).error();
  return Control(*std::move(socket), false);
}

// Remembers why nothing more comes. A socket that was only closed gave no reason.
Error Control::end(Error why) {
  if (why.code == ErrorCode::kDisconnected) {
    const char* const near = is_observer_ ? kLostByObserver : kLost;
    why.message = is_far_ ? (is_observer_ ? kFarLostByObserver : kFarLost) : near;
  }
  ended_ = SessionEnd{why};
  return why;
}

Status Control::wait(short events, const Deadline* deadline) {
  pollfd entry{socket_.get(), events, 0};
  return wait_for(std::span(&entry, 1), {interrupt_, &given_up_}, deadline);
}

Status Control::wait_for_answer(bool may_take_long, const Deadline* deadline) {
  if (!on_silence_ || may_take_long || deadline != nullptr) return wait(POLLIN, deadline);
  const SystemClock clock;
  const Deadline silence(clock, kSilenceMs);
  Status answered = wait(POLLIN, &silence);
  if (answered || answered.error().code != ErrorCode::kTimeout) return answered;
  std::exchange(on_silence_, {})();
  return wait(POLLIN, nullptr);
}

Status Control::send(std::span<const std::byte> bytes, std::span<const int> fds,
                     const Deadline* deadline) {
  for (;;) {
    if (ended_) return ended_->why;
    Status sent = ipc::send_datagram(socket_.get(), bytes, fds);
    if (!sent && sent.error().code == ErrorCode::kDisconnected) {
      const auto last_words = receive();
      return last_words ? end(sent.error()) : last_words.error();
    }
    if (sent || sent.error().code != ErrorCode::kBusy) return sent;
    DJINN_CHECK(wait(POLLOUT, deadline));
  }
}

Result<std::optional<Answer>> Control::receive() {
  for (;;) {
    DJINN_TRY(std::optional<Answer> answer, receive_any());
    if (!answer || !is_unwanted(answer->reply.number)) return answer;
    let_go(answer->reply);
  }
}

// A program may be defined for somebody else of this session meanwhile, so who knows that decides
// whether it goes.
void Control::let_go(const ipc::DaemonReply& unwanted) {
  if (const auto* const opened = std::get_if<ipc::ModelOpened>(&unwanted.body)) {
    give_back(ipc::CloseModel{opened->model});
  } else if (const auto* const made = std::get_if<ipc::SequenceMade>(&unwanted.body)) {
    give_back(ipc::DropSequence{made->sequence});
  } else if (const auto* const defined = std::get_if<ipc::ProgramDefined>(&unwanted.body)) {
    late_programs_.push_back(defined->program);
  }
}

void Control::give_back(decltype(ipc::ClientRequest::body) body) {
  const uint32_t number = ++last_number_;
  returns_.insert(number);
  owed_.push_back({number, std::move(body)});
  send_owed_without_wait();
}

// An error other than a full socket is the session's end, with which everything is given back.
void Control::send_owed_without_wait() {
  while (!owed_.empty()) {
    if (!ipc::send_datagram(socket_.get(), ipc::encode(owed_.front()), {})) return;
    owed_.pop_front();
  }
}

Status Control::send_owed(const Deadline* deadline) {
  for (; !owed_.empty(); owed_.pop_front()) {
    DJINN_CHECK(send(ipc::encode(owed_.front()), {}, deadline));
  }
  return {};
}

Result<std::optional<Answer>> Control::receive_any() {
  if (ended_) return ended_->why;
  auto received = ipc::receive_datagram(socket_.get());
  if (!received) return end(std::move(received).error());
  std::optional<ipc::Datagram>& datagram = *received;
  if (!datagram) return std::optional<Answer>();
  auto decoded = ipc::decode_daemon_reply(datagram->bytes);
  if (!decoded) {
    return not_as_djinnd_answers(decoded.error().code,
                                 "The daemon's answer cannot be read: " + decoded.error().message);
  }
  ipc::DaemonReply& reply = *decoded;
  if (auto* failed = std::get_if<ipc::Failed>(&reply.body)) show(*failed);
  if (reply.number == 0) {
    if (const auto* failed = std::get_if<ipc::Failed>(&reply.body)) {
      // In the answer to a run kCancelled means that the run was given up, and its session lives.
      // Here it means that the session has ended.
      if (failed->code != ErrorCode::kCancelled) return end({failed->code, failed->message});
      ended_ = SessionEnd{{ErrorCode::kDisconnected, failed->message}, true};
      return ended_->why;
    }
  }
  return std::optional(Answer{std::move(reply), std::move(datagram->fds)});
}

Status Control::check_notices() {
  DJINN_TRY(const std::optional<Answer> answer, receive());
  if (answer) {
    return not_as_djinnd_answers(ErrorCode::kProtocolViolation,
                                 "The daemon answered a question nobody asked.");
  }
  return {};
}

Result<bool> Control::tell(decltype(ipc::ClientRequest::body) body) {
  if (!unwanted_.empty() || !returns_.empty()) DJINN_CHECK(check_notices());  // some may have come
  send_owed_without_wait();
  if (!owed_.empty() || unwanted_.size() >= kToldMax) return false;
  const uint32_t number = ++last_number_;
  if (!ipc::send_datagram(socket_.get(),
                          ipc::encode(ipc::ClientRequest{number, std::move(body)}))) {
    return false;
  }
  unwanted_.insert(number);
  return true;
}

Result<Answer> Control::request(decltype(ipc::ClientRequest::body) body, std::span<const int> fds,
                                const Deadline* deadline) {
  if (!unwanted_.empty() || !returns_.empty()) DJINN_CHECK(check_notices());  // some may have come
  send_owed_without_wait();
  if (unwanted_.size() >= kUnwantedMax && !gives_back(body)) {
    return Error{ErrorCode::kBusy,
                 "djinnd still works on what this session asked for and gave up. Try again later."};
  }
  const bool may_take_long = is_answered_when_done(body);
  const uint32_t number = ++last_number_;
  const ipc::ClientRequest request{number, std::move(body)};
  Status sent = send_owed(deadline);
  if (sent) sent = send(ipc::encode(request), fds, deadline);
  if (!sent) {
    if (sent.error().code == ErrorCode::kCancelled && gives_back(request.body)) {
      give_back(request.body);
    }
    return std::move(sent).error();
  }
  auto answer = take_answer(number, may_take_long, deadline);
  if (!answer && answer.error().code == ErrorCode::kCancelled) {
    (gives_back(request.body) ? returns_ : unwanted_).insert(number);
  }
  if (!answer) return std::move(answer).error();
  if (const auto* failed = std::get_if<ipc::Failed>(&answer->reply.body)) {
    return Error{failed->code, failed->message};
  }
  return answer;
}

Result<Answer> Control::take_answer(uint32_t number, bool may_take_long, const Deadline* deadline) {
  for (;;) {
    DJINN_TRY(std::optional<Answer> answer, receive());
    if (answer && answer->reply.number == number) return *std::move(answer);
    if (answer) {
      return not_as_djinnd_answers(ErrorCode::kProtocolViolation,
                                   "The daemon answered another request.");
    }
    const Status waited = wait_for_answer(may_take_long, deadline);
    if (!waited && waited.error().code == ErrorCode::kCancelled) {
      return Error{ErrorCode::kCancelled,
                   "The call was cancelled before djinnd had answered. djinnd may do what was "
                   "asked all the same; what comes of it is given back "
                   "with a later call."};
    }
    DJINN_CHECK(waited);
  }
}

}  // namespace djinn::client
