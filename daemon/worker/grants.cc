#include "daemon/worker/grants.h"

#include <utility>

namespace djinn::worker {
namespace {

Error gone() {
  return {ErrorCode::kDisconnected, "djinnd is gone."};
}

Result<Grants::Answer> outcome_of(Grants::Answer answer) {
  if (!answer.status) return std::move(answer.status).error();
  return answer;
}

}  // namespace

uint64_t Grants::enter(ipc::GrantRequest request) {
  request.request = ++last_request_;
  asked_[request.request].request = request;
  outbox_.send({request});
  return request.request;
}

Result<Grants::Answer> Grants::take(ipc::GrantKind kind, SessionId session, uint64_t bytes) {
  ipc::GrantRequest wanted;
  wanted.kind = kind;
  wanted.session = session;
  wanted.bytes = bytes;
  const std::lock_guard lock(mutex_);
  if (closed_) return gone();
  for (auto& [number, asked] : asked_) {
    wanted.request = number;
    if (asked.forgotten || asked.request != wanted) continue;
    if (!asked.answer) return Error{ErrorCode::kBusy, "The memory is on its way."};
    Answer answer = *std::move(asked.answer);
    asked_.erase(number);
    return outcome_of(std::move(answer));
  }
  enter(wanted);
  return Error{ErrorCode::kBusy, "The memory is on its way."};
}

void Grants::forget(ipc::GrantKind kind, SessionId session) {
  const std::lock_guard lock(mutex_);
  for (auto next = asked_.begin(); next != asked_.end();) {
    Asked& asked = next->second;
    const bool meant = asked.request.kind == kind && asked.request.session == session;
    if (meant && asked.answer) {
      drop(asked);
      next = asked_.erase(next);
    } else {
      asked.forgotten |= meant;
      ++next;
    }
  }
}

void Grants::drop(const Asked& asked) {
  if (asked.answer->status) {
    give_back(asked.request.kind, asked.request.session, asked.request.bytes);
  }
}

Status Grants::request(SessionId session, SequenceHandle sequence, uint64_t bytes) {
  ipc::GrantRequest wanted;
  wanted.kind = ipc::GrantKind::kSequence;
  wanted.session = session;
  wanted.sequence = sequence;
  wanted.bytes = bytes;
  std::unique_lock lock(mutex_);
  if (closed_) return gone();
  const uint64_t number = enter(wanted);
  arrived_.wait(lock, [&] { return asked_[number].answer || closed_; });
  if (!asked_[number].answer) return gone();
  Answer answer = *std::move(asked_[number].answer);
  asked_.erase(number);
  return std::move(answer.status);
}

void Grants::give_back(ipc::GrantKind kind, SessionId session, uint64_t bytes) {
  ipc::GrantReturn returned;
  returned.kind = kind;
  returned.session = session;
  returned.bytes = bytes;
  outbox_.send({returned});
}

// --- control thread

void Grants::deliver(uint64_t request, Answer answer) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = asked_.find(request);
    if (found == asked_.end()) return;
    found->second.answer = std::move(answer);
    if (found->second.forgotten) {
      drop(found->second);
      asked_.erase(found);
    }
  }
  arrived_.notify_all();
  wake_();
}

void Grants::deliver(const ipc::GrantAnswer& answer) {
  Status status;
  if (answer.code != ErrorCode::kOk) status = Error{answer.code, answer.message};
  deliver(answer.request, {std::move(status), {}, 0});
}

void Grants::deliver(const ipc::GiveSlab& slab, Fd memfd) {
  deliver(slab.request, {{}, std::move(memfd), slab.bytes});
}

void Grants::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  arrived_.notify_all();
}

}  // namespace djinn::worker
