// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/reach/near_memory.h"

#include <string.h>

#include <algorithm>
#include <utility>

#include "ipc/rpc/bytes.h"
#include "ipc/rpc/fault.h"

namespace djinn::reach {
namespace {

using Observer = kj::UnixEventPort::FdObserver;
using rpc::breach;
using rpc::raise;
using rpc::require;

// The ns until a deadline; one that has passed is as short as can be.
uint64_t left_until(uint64_t begin_by_ns, uint64_t now_ns) {
  if (begin_by_ns == 0) return 0;
  return begin_by_ns > now_ns ? begin_by_ns - now_ns : 1;
}

}  // namespace

NearMemory::NearMemory(kj::UnixEventPort& port, rpc::MirroredMemory memory, Fd bell, Fd completions,
                       rpc::Session::Client far, kj::Function<void(kj::Exception&&)> on_end)
    : memory_(std::move(memory)),
      ring_(memory_.view(), 0, 0),
      bell_(std::move(bell)),
      completions_(std::move(completions)),
      rings_(port, bell_.get(), Observer::OBSERVE_READ),
      far_(kj::mv(far)),
      on_end_(kj::mv(on_end)),
      tasks_(*this) {
  pumps_ = true;
  tasks_.add(kj::evalLater([this] { return pump(); }));
  tasks_.add(listen());
}

// --- to the far side

// Nobody reads the bell: each ring is an event.
kj::Promise<void> NearMemory::listen() {
  return rings_.whenBecomesReadable().then([this] {
    KJ_IF_MAYBE (waits, waits_for_room_) {
      (*waits)->fulfill();
      waits_for_room_ = nullptr;
    }
    if (!std::exchange(pumps_, true)) {
      ring_.finish_sleep();
      tasks_.add(pump());
    }
    return listen();
  });
}

kj::Promise<void> NearMemory::pump() {
  return tell_changes().then([this]() -> kj::Promise<void> {
    require(ring_.has_submission());
    if (carried_ < ring_.found()) {
      return submit(carried_++).then([this] { return pump(); });
    }
    if (!ring_.prepare_to_sleep(carried_)) return pump();
    if (ring_.cancelled_through() != cancelled_) {  // told between the look above and the sleep
      ring_.finish_sleep();
      return pump();
    }
    pumps_ = false;
    return kj::READY_NOW;
  });
}

kj::Promise<void> NearMemory::tell_changes() {
  if (const uint64_t through = ring_.cancelled_through(); through != cancelled_) {
    cancelled_ = through;
    auto request = far_.cancelRequest();
    request.setThrough(through);
    tasks_.add(request.send().ignoreResult());
  }
  const ipc::ClientStatement statement = ring_.statement();
  if (statement == stated_) return kj::READY_NOW;
  stated_ = statement;
  auto request = far_.stateRequest();
  auto words = request.initWords(static_cast<unsigned>(statement.calls.size() + 1));
  for (unsigned i = 0; i < statement.calls.size(); ++i) words.set(i, statement.calls[i]);
  words.set(words.size() - 1, statement.local_models);
  return request.send();
}

kj::Promise<void> NearMemory::submit(uint64_t index) {
  const ipc::Submission submission = ring_.copy_submission(index);
  open_.push_back(submission.run);
  // What cannot be read the worker refuses: it gets the submission without it.
  auto pieces = rpc::pieces_of(require(memory_.use_of(submission)).read, memory_.staging_bytes(),
                               rpc::PIECE_BYTES);
  if (rpc::bytes_of(pieces) <= rpc::PIECE_BYTES) return submit_with(index, submission, pieces);
  return rpc::stage_each(far_, memory_, std::move(pieces)).then([this, index, submission] {
    return submit_with(index, submission, {});
  });
}

kj::Promise<void> NearMemory::submit_with(uint64_t index, const ipc::Submission& submission,
                                          std::span<const ipc::StagingRange> pieces) {
  auto request = far_.submitRequest();
  request.setIndex(index);
  request.setSubmission(rpc::data_of(std::as_bytes(std::span(&submission, 1))));
  request.setBeginWithin(left_until(submission.begin_by_ns, clock_.monotonic_ns()));
  rpc::fill(request.initPieces(static_cast<unsigned>(pieces.size())), memory_, pieces);
  return request.send();
}

// --- from the far side

// One after the other: where the program's ring is full, those that come later wait behind it.
kj::Promise<void> NearMemory::complete(Completing context) {
  auto done = last_put_
                  .then([this, context]() mutable {
                    const auto params = context.getParams();
                    if (params.getFirst() != ring_.pushed()) {
                      raise(breach("A completion is not the next one."));
                    }
                    if (params.getCompletions().size() % sizeof(ipc::Completion) != 0) {
                      raise(breach("A completion has another size."));
                    }
                    for (const auto piece : params.getPieces()) stage(piece);
                    for (const auto text : params.getTexts()) {
                      const auto words = text.getText();
                      ring_.set_error_text(text.getSubmission(), {words.begin(), words.size()});
                    }
                    return put(params, 0);
                  })
                  .attach(kj::cp(context))
                  .fork();
  last_put_ = done.addBranch();
  return done.addBranch();
}

kj::Promise<void> NearMemory::put(rpc::Near::CompleteParams::Reader params, size_t from) {
  const auto bytes = rpc::bytes_of(params.getCompletions());
  const size_t count = bytes.size() / sizeof(ipc::Completion);
  size_t free = require(ring_.free_completions());
  for (; from < count && free > 0; ++from, --free) {
    ipc::Completion completion;
    memcpy(&completion, bytes.data() + from * sizeof completion, sizeof completion);
    ring_.push(completion);
    const bool is_done = completion.kind == static_cast<uint16_t>(ipc::CompletionKind::kDone);
    if (is_done && !open_.empty() && open_.front() == completion.run) {
      open_.pop_front();
      ring_.complete_one();
    }
  }
  if (ring_.publish()) ipc::ring_completion_bell(completions_);
  if (from == count) return kj::READY_NOW;
  if (!require(ring_.block_until_free(1))) return put(params, from);
  auto room = kj::newPromiseAndFulfiller<void>();
  waits_for_room_ = kj::mv(room.fulfiller);
  return room.promise.then([this, params, from] { return put(params, from); });
}

}  // namespace djinn::reach
