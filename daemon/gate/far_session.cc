// SPDX-License-Identifier: Apache-2.0

#include "daemon/gate/far_session.h"

#include <utility>

#include "daemon/gate/payloads.h"
#include "ipc/codec/control_codec.h"
#include "ipc/rpc/bytes.h"
#include "ipc/rpc/fault.h"

namespace djinn::gate {

using rpc::breach;
using rpc::raise;
using rpc::require;

kj::Promise<FarSession::Opened> FarSession::open(kj::UnixEventPort& port, Fd socket,
                                                 std::span<const std::byte> hello,
                                                 const std::string& principal,
                                                 rpc::Near::Client near) {
  ipc::ClientRequest request = require(ipc::decode_client_request(hello));
  auto* const said = std::get_if<ipc::Hello>(&request.body);
  if (said == nullptr) raise(breach("A session begins with a Hello."));
  if (!said->principal.empty()) raise(breach("Whose a session is, a client has no say in."));
  said->principal = principal;
  auto control = kj::heap<rpc::Datagrams>(port, std::move(socket));
  auto sent = control->send(ipc::encode(request));
  rpc::Datagrams& open = *control;
  return sent.then([&open] { return open.receive(); })
      .then([&port, control = kj::mv(control),
             near = kj::mv(near)](kj::Maybe<ipc::Datagram>&& datagram) mutable {
        ipc::Datagram* answer = nullptr;
        KJ_IF_MAYBE (received, datagram) {
          answer = received;
        } else {
          raise({ErrorCode::kDisconnected, "djinnd has closed the connection without a word."});
        }
        const ipc::DaemonReply reply = require(ipc::decode_daemon_reply(answer->bytes));
        Opened opened;
        if (const auto* const welcome = std::get_if<ipc::Welcome>(&reply.body)) {
          auto session = kj::heap<FarSession>(port, kj::mv(control), kj::mv(near));
          session->attach(*welcome, std::move(answer->fds));
          opened.session = kj::mv(session);
        }
        opened.answer = std::move(answer->bytes);
        return opened;
      });
}

FarSession::FarSession(kj::UnixEventPort& port, kj::Own<rpc::Datagrams> control,
                       rpc::Near::Client near)
    : port_(port), control_(kj::mv(control)), near_(kj::mv(near)) {
  reads_ = kj::evalLater([this] {
             return read_answers();
           }).eagerlyEvaluate([this](kj::Exception&& why) { end(kj::mv(why)); });
}

void FarSession::attach(const ipc::Welcome& welcome, std::vector<Fd> fds) {
  if (fds.empty()) return;  // an observer's
  if (fds.size() != 3) raise(breach("A session of djinnd's came without its descriptors."));
  memory_ = kj::heap<FarMemory>(
      port_, require(rpc::MirroredMemory::adopt(std::move(fds[0]), welcome.staging_bytes)),
      std::move(fds[1]), std::move(fds[2]), near_,
      [this](kj::Exception&& why) { end(kj::mv(why)); });
}

kj::Promise<void> FarSession::read_answers() {
  return control_->receive().then([this](kj::Maybe<ipc::Datagram>&& received) {
    KJ_IF_MAYBE (datagram, received) {
      return take(std::move(datagram->bytes)).then([this] { return read_answers(); });
    }
    end(rpc::to_exception({ErrorCode::kDisconnected, "djinnd has closed the session."}));
    return kj::Promise<void>(kj::READY_NOW);
  });
}

kj::Promise<void> FarSession::take(Answer bytes) {
  const ipc::DaemonReply reply = require(ipc::decode_daemon_reply(bytes));
  if (reply.number == 0) {
    auto notice = near_.tellRequest();
    notice.setNotice(rpc::data_of(bytes));
    return notice.send();
  }
  const auto asked = asked_.find(reply.number);
  if (asked == asked_.end()) raise(breach("djinnd answered a question that nobody asked."));
  asked->second->fulfill(std::move(bytes));
  asked_.erase(asked);
  return kj::READY_NOW;
}

// What is still asked for fails, and so does what is called later. Memory stays with this, for it
// may be what calls.
void FarSession::end(kj::Exception&& why) {
  if (ended_ != nullptr) return;
  for (auto& [number, fulfiller] : asked_) fulfiller->reject(kj::cp(why));
  asked_.clear();
  ended_ = kj::mv(why);
  near_.endRequest().send().detach([](kj::Exception&&) {});  // nobody may be there to hear it
}

FarMemory& FarSession::memory() {
  KJ_IF_MAYBE (why, ended_) kj::throwFatalException(kj::cp(*why));
  KJ_IF_MAYBE (memory, memory_) return **memory;
  raise(breach("This session has no data path."));
}

kj::Promise<void> FarSession::addPayload(AddPayloadContext context) {
  const auto params = context.getParams();
  payloads_.add(params.getId(), rpc::bytes_of(params.getData()));
  return kj::READY_NOW;
}

kj::Promise<void> FarSession::ask(AskContext context) {
  context.allowCancellation();  // a session that is closed waits for no answer
  KJ_IF_MAYBE (why, ended_) return kj::cp(*why);
  const auto params = context.getParams();
  ipc::ClientRequest request =
      require(ipc::decode_client_request(rpc::bytes_of(params.getRequest())));
  if (std::holds_alternative<ipc::Hello>(request.body)) raise(breach("A session has one Hello."));
  if (request.number == 0 || asked_.contains(request.number)) {
    raise(breach("A request has the number of another one."));
  }
  if (asked_.size() >= limits::kRequestsPending) raise(breach("Too many requests are pending."));
  if (params.getPayloads().size() > limits::kControlDescriptors) {
    raise(breach("A request has too many payloads."));
  }
  std::vector<Fd> fds;
  for (const uint64_t id : params.getPayloads()) {
    auto fd = payloads_.take(id);
    if (!fd) {
      const ipc::Failed failed{fd.error().code, fd.error().message};
      const Answer answer = ipc::encode(ipc::DaemonReply{request.number, failed});
      context.getResults().setAnswer(rpc::data_of(answer));
      return kj::READY_NOW;
    }
    fds.push_back(*std::move(fd));
  }
  auto answer = kj::newPromiseAndFulfiller<Answer>();
  asked_[request.number] = kj::mv(answer.fulfiller);
  return control_->send(ipc::encode(request), std::move(fds))
      .then([promise = kj::mv(answer.promise)]() mutable { return kj::mv(promise); })
      .then([context](Answer&& bytes) mutable {
        context.getResults().setAnswer(rpc::data_of(bytes));
      });
}

kj::Promise<void> FarSession::stage(StageContext context) {
  memory().stage(context.getParams().getPiece());
  return kj::READY_NOW;
}

kj::Promise<void> FarSession::submit(SubmitContext context) {
  memory().submit(context.getParams());
  return kj::READY_NOW;
}

kj::Promise<void> FarSession::cancel(CancelContext context) {
  memory().cancel_through(context.getParams().getThrough());
  return kj::READY_NOW;
}

kj::Promise<void> FarSession::state(StateContext context) {
  memory().state(context.getParams().getWords());
  return kj::READY_NOW;
}

}  // namespace djinn::gate
