// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/reach/reach.h"

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>

#include <utility>

#include "ipc/codec/control_codec.h"
#include "ipc/rpc/datagrams.h"
#include "ipc/rpc/fault.h"
#include "ipc/rpc/framed_stream.h"
#include "ipc/rpc/heartbeat.h"
#include "libdjinn-client/reach/carrier.h"
#include "libdjinn-client/reach/near_session.h"

namespace djinn::reach {
namespace {

class Reach final : private kj::TaskSet::ErrorHandler {
 public:
  Reach(kj::AsyncIoContext& io, Fd door, kj::Own<Carrier> carrier)
      : port_(io.unixEventPort),
        door_(kj::heap<rpc::Datagrams>(port_, std::move(door))),
        carrier_(kj::mv(carrier)),
        timer_(io.provider->getTimer()),
        silence_(timer_, rpc::kSilentForNear),
        messages_(carrier_->stream(), silence_),
        network_(messages_, capnp::rpc::twoparty::Side::CLIENT),
        system_(capnp::makeRpcClient(network_)),
        gate_(bootstrap()),
        lost_(network_.onDisconnect()
                  .exclusiveJoin(listen())
                  .then([] {
                    rpc::raise({ErrorCode::kDisconnected, "The host is lost."});
                  })
                  .fork()),
        sessions_(*this) {}

  // Ends when the door is closed and no session is left, or the host is gone and all were told: at
  // least whoever had this process started, who may be on the way still.
  kj::Promise<void> run() {
    auto is_lost = lost_.addBranch().catch_([](kj::Exception&&) {}).then([this] {
      return kj::mv(first_.promise);
    });
    auto is_over = is_lost.exclusiveJoin(kj::mv(failed_.promise));
    return admit().exclusiveJoin(kj::mv(is_over)).then([this] {
      close_door();
      return sessions_.onEmpty();
    });
  }

 private:
  rpc::Gate::Client bootstrap() {
    capnp::MallocMessageBuilder message;
    auto id = message.initRoot<capnp::rpc::twoparty::VatId>();
    id.setSide(capnp::rpc::twoparty::Side::SERVER);
    return system_.bootstrap(id).castAs<rpc::Gate>();
  }

  // Ends when the host has fallen silent. Until it has said something for the first time, somebody
  // may be typing a password. What is no gate refuses this, and its sessions are told so.
  kj::Promise<void> listen() {
    return gate_.pingRequest()
        .send()
        .ignoreResult()
        .then([this] {
          carrier_->note_answer();
          return silence_.lasts().exclusiveJoin(ping());
        })
        .catch_([](kj::Exception&&) { return kj::Promise<void>(kj::NEVER_DONE); });
  }

  kj::Promise<void> ping() {
    return timer_.afterDelay(rpc::kPingEvery).then([this] {
      return gate_.pingRequest().send().ignoreResult().then([this] { return ping(); });
    });
  }

  kj::Promise<void> admit() {
    return door_->receive().then([this](kj::Maybe<ipc::Datagram>&& received) {
      KJ_IF_MAYBE (datagram, received) {
        for (Fd& fd : datagram->fds) begin(std::move(fd));
        first_.fulfiller->fulfill();
        return admit();
      }
      return kj::Promise<void>(kj::READY_NOW);
    });
  }

  // Whoever has come in is told; who comes later starts another djinn-reach.
  void close_door() {
    try {
      for (kj::Maybe<ipc::Datagram> received = door_->receive_now(); received != nullptr;
           received = door_->receive_now()) {
        KJ_IF_MAYBE (datagram, received) {
          for (Fd& fd : datagram->fds) begin(std::move(fd));
        }
      }
    } catch (const kj::Exception&) {
      // It is closed on the other side.
    }
    door_ = nullptr;
    closed_.fulfiller->fulfill();
  }

  // Who hears that a session failed may try again at once: that is another djinn-reach's.
  kj::Promise<Error> explain(const Error& failed) {
    failed_.fulfiller->fulfill();
    return is_closed_.addBranch().then([this, failed] { return carrier_->explain(failed); });
  }

  // One that cannot begin, for want of descriptors for instance, hears that from its socket's end.
  void begin(Fd socket) try {
    auto session = kj::heap<NearSession>(port_, std::move(socket), gate_,
                                         [this](const Error& failed) { return explain(failed); });
    auto runs = session->run(lost_.addBranch());
    sessions_.add(runs.attach(kj::mv(session)));
  } catch (const kj::Exception&) {
  }

  void taskFailed(kj::Exception&&) override {}  // a session ends with its own error

  kj::UnixEventPort& port_;
  kj::Own<rpc::Datagrams> door_;
  kj::Own<Carrier> carrier_;
  kj::Timer& timer_;
  rpc::Silence silence_;
  rpc::FramedStream messages_;
  capnp::TwoPartyVatNetwork network_;
  capnp::RpcSystem<capnp::rpc::twoparty::VatId> system_;
  rpc::Gate::Client gate_;
  kj::ForkedPromise<void> lost_;
  kj::PromiseFulfillerPair<void> first_ = kj::newPromiseAndFulfiller<void>();   // program came in
  kj::PromiseFulfillerPair<void> failed_ = kj::newPromiseAndFulfiller<void>();  // some session
  kj::PromiseFulfillerPair<void> closed_ = kj::newPromiseAndFulfiller<void>();  // the door
  kj::ForkedPromise<void> is_closed_ = closed_.promise.fork();
  kj::TaskSet sessions_;
};

}  // namespace

void serve(Fd door, const client::Host& host) {
  auto io = kj::setupAsyncIo();
  try {
    Reach reach(io, std::move(door), Carrier::start(io, host));
    reach.run().wait(io.waitScope);
  } catch (const kj::Exception&) {
    // The door's other end hears it from the socket.
  }
}

}  // namespace djinn::reach
