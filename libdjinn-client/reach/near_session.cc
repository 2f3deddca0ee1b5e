// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/reach/near_session.h"

#include <errno.h>
#include <unistd.h>

#include <utility>

#include "ipc/bell.h"
#include "ipc/codec/control_codec.h"
#include "ipc/rpc/bytes.h"
#include "ipc/rpc/fault.h"

namespace djinn::reach {
namespace {

using rpc::breach;
using rpc::raise;
using rpc::require;

// Up to so many bytes of a file, from offset on; fewer, or none, are its last.
Result<std::vector<std::byte>> read_part(const Fd& file, uint64_t offset, size_t most) {
  std::vector<std::byte> bytes(most);
  size_t got = 0;
  while (got < most) {
    const ssize_t part =
        ::pread(file.get(), bytes.data() + got, most - got, static_cast<off_t>(offset + got));
    if (part < 0 && errno == EINTR) continue;
    if (part < 0) return system_error("read a file that is to be sent", errno);
    if (part == 0) break;
    got += static_cast<size_t>(part);
  }
  bytes.resize(got);
  return bytes;
}

}  // namespace

// What the far side calls. It may live longer than its session.
class NearSession::Callbacks final : public rpc::Near::Server {
 public:
  explicit Callbacks(NearSession& session) : session_(&session) {}
  ~Callbacks() noexcept {
    if (session_ != nullptr) session_->callbacks_ = nullptr;
  }

  void let_go() { session_ = nullptr; }

 protected:
  kj::Promise<void> stage(StageContext context) override {
    memory().stage(context.getParams().getPiece());
    return kj::READY_NOW;
  }
  kj::Promise<void> complete(CompleteContext context) override {
    return session().called_.wrap(memory().complete(context));
  }
  kj::Promise<void> tell(TellContext context) override {
    const auto notice = rpc::bytes_of(context.getParams().getNotice());
    const ipc::DaemonReply reply = require(ipc::decode_daemon_reply(notice));
    if (reply.number != 0) raise(breach("A notice has the number of an answer."));
    return session().called_.wrap(session().program_.send({notice.begin(), notice.end()}));
  }
  kj::Promise<void> end(EndContext) override {
    session().ended_->fulfill();
    return kj::READY_NOW;
  }

 private:
  NearSession& session() {
    if (session_ == nullptr)
      raise({ErrorCode::kDisconnected, "The program has closed its session."});
    return *session_;
  }
  NearMemory& memory() {
    KJ_IF_MAYBE (memory, session().memory_) return **memory;
    raise(breach("This session has no data path."));
  }

  NearSession* session_;
};

NearSession::NearSession(kj::UnixEventPort& port, Fd socket, rpc::Gate::Client gate,
                         kj::Function<kj::Promise<Error>(const Error&)> explain)
    : port_(port),
      program_(port, std::move(socket)),
      gate_(kj::mv(gate)),
      explain_(kj::mv(explain)),
      asked_(*this) {
  auto end = kj::newPromiseAndFulfiller<void>();
  ended_ = kj::mv(end.fulfiller);
  end_ = kj::mv(end.promise);
}

NearSession::~NearSession() {
  if (callbacks_ != nullptr) callbacks_->let_go();
}

kj::Promise<void> NearSession::run(kj::Promise<void> lost) {
  auto serves = program_.receive().then([this](kj::Maybe<ipc::Datagram>&& received) {
    KJ_IF_MAYBE (hello, received) {
      is_greeted_ = true;
      return begin(kj::mv(*hello)).then([this] { return serve(); });
    }
    return kj::Promise<void>(kj::READY_NOW);
  });
  auto ends = serves.exclusiveJoin(kj::mv(end_))
                  .exclusiveJoin(kj::mv(lost))
                  .exclusiveJoin(program_.closed());
  return ends.catch_([this](kj::Exception&& why) {
    Error told = rpc::to_error(why);
    if (told.code != ErrorCode::kDisconnected) return tell_last(told);
    return explain_(told).then([this](Error&& explained) { return tell_last(explained); });
  });
}

kj::Promise<void> NearSession::tell_last(const Error& why) {
  const auto tell = [this, why](uint32_t number) {
    program_.send_last(ipc::encode(ipc::DaemonReply{number, ipc::Failed{why.code, why.message}}));
  };
  if (is_greeted_) {
    tell(0);
    return kj::READY_NOW;
  }
  return program_.receive()
      .then([tell](kj::Maybe<ipc::Datagram>&& received) {
        KJ_IF_MAYBE (hello, received) tell(ipc::number_of_request(hello->bytes));
      })
      .catch_([](kj::Exception&&) {});  // it has gone
}

void NearSession::taskFailed(kj::Exception&& why) {
  if (ended_->isWaiting()) ended_->reject(kj::mv(why));
}

// --- its beginning

// Whatever the program learns of a gate that cannot be reached is the answer to its Hello.
kj::Promise<void> NearSession::begin(ipc::Datagram&& hello) {
  const uint32_t number = ipc::number_of_request(hello.bytes);
  auto request = gate_.openRequest();
  request.setHello(rpc::data_of(hello.bytes));
  auto callbacks = kj::heap<Callbacks>(*this);
  callbacks_ = callbacks.get();
  request.setNear(kj::mv(callbacks));
  return request.send().then(
      [this, number](auto&& response) -> kj::Promise<void> {
        const auto bytes = rpc::bytes_of(response.getAnswer());
        const ipc::DaemonReply reply = require(ipc::decode_daemon_reply(bytes));
        if (response.hasSession()) far_ = response.getSession();
        if (const auto* const welcomed = std::get_if<ipc::Welcome>(&reply.body)) {
          return welcome(*welcomed, number);
        }
        return program_.send({bytes.begin(), bytes.end()});
      },
      [this, number](kj::Exception&& why) {
        return explain_(rpc::to_error(why)).then([this, number](Error&& told) {
          return answer(number, ipc::Failed{told.code, told.message});
        });
      });
}

// An observer has no staging.
kj::Promise<void> NearSession::welcome(const ipc::Welcome& welcome, uint32_t number) {
  if (welcome.staging_bytes == 0) return answer(number, welcome);
  rpc::MirroredMemory memory = require(rpc::MirroredMemory::make(welcome.staging_bytes));
  Fd bell = require(ipc::make_submission_bell());
  ipc::CompletionBell completions = require(ipc::make_completion_bell());
  std::vector<Fd> fds;
  fds.push_back(require(memory.fd().duplicate()));
  fds.push_back(require(bell.duplicate()));
  fds.push_back(std::move(completions.listener));
  memory_ =
      kj::heap<NearMemory>(port_, std::move(memory), std::move(bell), std::move(completions.bell),
                           far(), [this](kj::Exception&& why) { taskFailed(kj::mv(why)); });
  return answer(number, welcome, std::move(fds));
}

// --- its requests

kj::Promise<void> NearSession::serve() {
  return program_.receive().then([this](kj::Maybe<ipc::Datagram>&& received) {
    KJ_IF_MAYBE (datagram, received) {
      return forward(kj::mv(*datagram)).then([this] { return serve(); });
    }
    return kj::Promise<void>(kj::READY_NOW);
  });
}

rpc::Session::Client& NearSession::far() {
  KJ_IF_MAYBE (far, far_) return *far;
  raise(breach("A session begins with a Hello that is answered."));
}

kj::Promise<void> NearSession::forward(ipc::Datagram&& datagram) {
  auto forwarded = kj::heap<Forwarded>();
  forwarded->datagram = std::move(datagram);
  auto sent = send_payloads(*forwarded, 0, 0);
  return sent
      .then([this, &one = *forwarded]() -> kj::Promise<void> {
        const uint32_t number = ipc::number_of_request(one.datagram.bytes);
        if (!one.read) {
          return answer(number, ipc::Failed{one.read.error().code, one.read.error().message});
        }
        // Its answer is not waited for: others may be asked meanwhile.
        asked_.add(ask(one.datagram.bytes, number, one.datagram.fds.size()));
        return kj::READY_NOW;
      })
      .attach(kj::mv(forwarded));
}

// Piece after piece of one file after the other. A file that cannot be read is an error of its
// request alone.
kj::Promise<void> NearSession::send_payloads(Forwarded& one, size_t next, uint64_t offset) {
  if (next == one.datagram.fds.size()) return kj::READY_NOW;
  const auto part = read_part(one.datagram.fds[next], offset, rpc::PIECE_BYTES);
  if (!part) {
    one.read = part.error();
    return kj::READY_NOW;
  }
  auto request = far().addPayloadRequest();
  request.setId(payloads_ + next);
  request.setData(rpc::data_of(*part));
  const bool is_last = part->size() < rpc::PIECE_BYTES;
  return request.send().then([this, &one, next, offset, is_last] {
    return is_last ? send_payloads(one, next + 1, 0)
                   : send_payloads(one, next, offset + rpc::PIECE_BYTES);
  });
}

kj::Promise<void> NearSession::ask(const std::vector<std::byte>& request, uint32_t number,
                                   size_t payloads) {
  auto call = far().askRequest();
  call.setRequest(rpc::data_of(request));
  auto ids = call.initPayloads(static_cast<unsigned>(payloads));
  for (unsigned i = 0; i < payloads; ++i) ids.set(i, payloads_++);
  return call.send().then([this, number](auto&& response) {
    const auto bytes = rpc::bytes_of(response.getAnswer());
    const ipc::DaemonReply reply = require(ipc::decode_daemon_reply(bytes));
    if (reply.number != number) raise(breach("An answer has the number of another request."));
    return program_.send({bytes.begin(), bytes.end()});
  });
}

kj::Promise<void> NearSession::answer(uint32_t number, decltype(ipc::DaemonReply::body) body,
                                      std::vector<Fd> fds) {
  return program_.send(ipc::encode(ipc::DaemonReply{number, std::move(body)}), std::move(fds));
}

}  // namespace djinn::reach
