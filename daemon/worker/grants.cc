// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/grants.h"

#include <algorithm>
#include <utility>

#include "kernel/base/assert.h"

namespace djinn::worker {
namespace {

Error gone() {
  return {ErrorCode::kDisconnected, "djinnd is gone."};
}

// Tells whether `one` may be granted although `other` was refused: it asks for less, for other
// places, or for bytes that are needed where the other was only wished for.
bool is_less(const ipc::GrantRequest& one, const ipc::GrantRequest& other) {
  return one.bytes < other.bytes || (other.or_less && !one.or_less) || one.places != other.places;
}

}  // namespace

uint64_t Grants::enter(ipc::GrantRequest request) {
  DJINN_ASSERT(request.bytes > 0);
  const uint64_t number = ++last_request_;
  request.request = number;
  outbox_.send({request});
  asked_[number].request = std::move(request);
  return number;
}

Grants::Questions::iterator Grants::find(ipc::GrantKind kind, SessionId session) {
  return std::ranges::find_if(asked_, [&](const auto& entry) {
    const ipc::GrantRequest& request = entry.second.request;
    return request.kind == kind && request.session == session && !entry.second.answered;
  });
}

Outcome<Grants::Answer> Grants::take(ipc::GrantKind kind, SessionId session, uint64_t bytes,
                                     vmu::Amount amount, std::vector<ipc::MemoryRange> places) {
  DJINN_ASSERT(kind != ipc::GrantKind::kSequence);
  DJINN_ASSERT((kind == ipc::GrantKind::kRefs) == session.valid());
  ipc::GrantRequest wanted;
  wanted.kind = kind;
  wanted.session = session;
  wanted.bytes = bytes;
  wanted.or_less = in_trial_ || amount == vmu::Amount::kMore;
  wanted.places = std::move(places);
  const std::lock_guard lock(mutex_);
  if (closed_) return gone();
  const auto open = find(kind, session);
  if (open != asked_.end() && !open->second.answer) {
    if (std::exchange(open->second.forgotten, false)) open->second.of_another_step = true;
    return waits_.await(AwaitedGrant{kind, session});
  }
  if (open != asked_.end()) {
    Answer answer = *std::move(open->second.answer);
    const bool of_another = open->second.of_another_step || is_less(wanted, open->second.request);
    asked_.erase(open);
    if (answer.status) return answer;
    if (!of_another) return std::move(answer.status).error();
    // The refusal was of another step's request, or of one that was given up, or it may be refused
    // what this one is not: this step asks anew.
  }
  enter(std::move(wanted));
  return waits_.await(AwaitedGrant{kind, session});
}

void Grants::forget(ipc::GrantKind kind, SessionId session, uint64_t held_bytes) {
  DJINN_ASSERT(kind != ipc::GrantKind::kSequence);
  const std::lock_guard lock(mutex_);
  const auto open = find(kind, session);
  if (open == asked_.end()) return;
  open->second.forgotten = true;
  open->second.held_bytes = held_bytes;
  if (open->second.answer) drop(open);
}

// djinnd counts a new slab in place of the former one. The former one is kept here, so only the
// difference goes back.
void Grants::drop(Questions::iterator asked) {
  Asked& it = asked->second;
  DJINN_ASSERT(it.forgotten && it.answer);
  const uint64_t more = it.request.bytes - std::min(it.request.bytes, it.held_bytes);
  it.answer->memory.clear();
  if (it.answer->status && it.request.places.empty() && more > 0) {
    give_back(it.request.kind, it.request.session, more);
  }
  for (const ipc::MemoryRange& chunk : it.request.places) {
    if (it.answer->status) give_back_chunk(it.request.kind, it.request.session, chunk);
  }
  asked_.erase(asked);
}

void Grants::ask(SessionId session, SequenceHandle sequence, uint64_t bytes,
                 std::function<void(Status)> answered) {
  DJINN_ASSERT(session.valid() && sequence.valid() && answered);
  ipc::GrantRequest wanted;
  wanted.kind = ipc::GrantKind::kSequence;
  wanted.session = session;
  wanted.sequence = sequence;
  wanted.bytes = bytes;
  const std::lock_guard lock(mutex_);
  if (!closed_) asked_[enter(wanted)].answered = std::move(answered);
}

// The answer changes nothing: djinnd ends who is refused.
void Grants::tell_base(uint64_t bytes) {
  ipc::GrantRequest taken;
  taken.kind = ipc::GrantKind::kHeap;
  taken.bytes = bytes;
  const std::lock_guard lock(mutex_);
  if (!closed_) asked_[enter(taken)].answered = [](const Status&) {};
}

void Grants::give_back(ipc::GrantKind kind, SessionId session, uint64_t bytes,
                       SequenceHandle sequence) {
  DJINN_ASSERT(bytes > 0);
  ipc::GrantReturn returned;
  returned.kind = kind;
  returned.session = session;
  returned.sequence = sequence;
  returned.bytes = bytes;
  outbox_.send({returned});
}

void Grants::give_back_chunk(ipc::GrantKind kind, SessionId session, ipc::MemoryRange chunk) {
  DJINN_ASSERT((kind == ipc::GrantKind::kRefs) == session.valid() && chunk.bytes > 0);
  ipc::GrantReturn returned;
  returned.kind = kind;
  returned.session = session;
  returned.bytes = chunk.bytes;
  returned.offset = chunk.offset;
  outbox_.send({returned});
}

// --- control thread

void Grants::deliver(uint64_t request, Answer answer) {
  std::function<void(Status)> answered;
  AwaitedGrant awaited;
  {
    const std::lock_guard lock(mutex_);
    const auto found = asked_.find(request);
    if (found == asked_.end()) return;
    answered = std::move(found->second.answered);
    awaited = {found->second.request.kind, found->second.request.session};
    if (answered) {
      asked_.erase(found);
    } else {
      answer.bytes = found->second.request.bytes;
      answer.places = found->second.request.places;
      found->second.answer = std::move(answer);
      if (found->second.forgotten) drop(found);
    }
  }
  if (answered) return answered(std::move(answer.status));
  waits_.arrived(awaited);
}

void Grants::deliver(const ipc::GrantAnswer& answer) {
  Status status;
  if (answer.code != ErrorCode::kOk) status = Error{answer.code, answer.message};
  deliver(answer.request, {std::move(status), 0, {}, {}});
}

void Grants::deliver(const ipc::GiveMemory& given, std::vector<Fd> memory) {
  deliver(given.request, {{}, 0, {}, std::move(memory)});
}

void Grants::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

}  // namespace djinn::worker
