#include "daemon/worker/grants.h"

#include <utility>

namespace djinn::worker {

Status Grants::request(ipc::GrantKind kind, SessionId session, SequenceHandle sequence,
                       uint64_t bytes) {
  ipc::GrantRequest request;
  request.kind = kind;
  request.session = session;
  request.sequence = sequence;
  request.bytes = bytes;
  DJINN_CHECK(ask(request));
  return {};
}

void Grants::give_back(ipc::GrantKind kind, SessionId session, SequenceHandle sequence,
                       uint64_t bytes) {
  ipc::GrantReturn returned;
  returned.kind = kind;
  returned.session = session;
  returned.sequence = sequence;
  returned.bytes = bytes;
  outbox_.send({returned});
}

Result<Grants::Slab> Grants::request_slab(uint64_t bytes) {
  ipc::GrantRequest request;
  request.kind = ipc::GrantKind::kSlab;
  request.bytes = bytes;
  return ask(request);
}

Result<Grants::Slab> Grants::ask(ipc::GrantRequest request) {
  std::unique_lock lock(mutex_);
  if (closed_) return Error{ErrorCode::kDisconnected, "djinnd is gone."};
  request.request = ++last_request_;
  auto& slot = waiting_[request.request];
  lock.unlock();
  outbox_.send({request});
  lock.lock();
  arrived_.wait(lock, [&] { return slot.has_value() || closed_; });
  if (!slot) return Error{ErrorCode::kDisconnected, "djinnd is gone."};
  Answer answer = std::move(*slot);
  waiting_.erase(request.request);
  if (!answer.status) return std::move(answer.status).error();
  return std::move(answer.slab);
}

void Grants::deliver(uint64_t request, Answer answer) {
  const std::lock_guard lock(mutex_);
  const auto found = waiting_.find(request);
  if (found == waiting_.end()) return;
  found->second = std::move(answer);
  arrived_.notify_all();
}

void Grants::deliver(const ipc::GrantAnswer& answer) {
  Status status;
  if (answer.code != ErrorCode::kOk) status = Error{answer.code, answer.message};
  deliver(answer.request, {std::move(status), {}});
}

void Grants::deliver(const ipc::GiveSlab& slab, Fd memfd) {
  deliver(slab.request, {{}, {std::move(memfd), slab.bytes}});
}

void Grants::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  arrived_.notify_all();
}

}  // namespace djinn::worker
