// SPDX-License-Identifier: Apache-2.0

#include "ipc/rpc/datagrams.h"

#include <utility>

#include "ipc/rpc/fault.h"

namespace djinn::rpc {

using Observer = kj::UnixEventPort::FdObserver;

Datagrams::Datagrams(kj::UnixEventPort& port, Fd socket)
    : socket_(std::move(socket)), observer_(port, socket_.get(), Observer::OBSERVE_READ_WRITE) {}

kj::Promise<kj::Maybe<ipc::Datagram>> Datagrams::receive() {
  auto received = ipc::receive_datagram(socket_.get());
  if (!received && received.error().code == ErrorCode::kDisconnected) {
    return kj::Maybe<ipc::Datagram>(nullptr);
  }
  std::optional<ipc::Datagram> datagram = require(std::move(received));
  if (datagram) return kj::Maybe<ipc::Datagram>(*std::move(datagram));
  return observer_.whenBecomesReadable().then([this] { return receive(); });
}

kj::Maybe<ipc::Datagram> Datagrams::receive_now() {
  std::optional<ipc::Datagram> datagram = require(ipc::receive_datagram(socket_.get()));
  if (!datagram) return nullptr;
  return *std::move(datagram);
}

void Datagrams::send_last(const std::vector<std::byte>& bytes) {
  [[maybe_unused]] const Status sent = ipc::send_datagram(socket_.get(), bytes);
}

kj::Promise<void> Datagrams::send(std::vector<std::byte> bytes, std::vector<Fd> fds) {
  auto sent = last_
                  .then([this, bytes = std::move(bytes), fds = std::move(fds)]() mutable {
                    return send_now(std::move(bytes), std::move(fds));
                  })
                  .fork();
  last_ = sent.addBranch();
  return sent.addBranch();
}

kj::Promise<void> Datagrams::send_now(std::vector<std::byte> bytes, std::vector<Fd> fds) {
  std::vector<int> numbers;
  for (const Fd& fd : fds) numbers.push_back(fd.get());
  Status sent = ipc::send_datagram(socket_.get(), bytes, numbers);
  if (sent || sent.error().code != ErrorCode::kBusy) {
    require(std::move(sent));
    return kj::READY_NOW;
  }
  return observer_.whenBecomesWritable().then(
      [this, bytes = std::move(bytes), fds = std::move(fds)]() mutable {
        return send_now(std::move(bytes), std::move(fds));
      });
}

}  // namespace djinn::rpc
