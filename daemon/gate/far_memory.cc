// SPDX-License-Identifier: Apache-2.0

#include "daemon/gate/far_memory.h"

#include <string.h>

#include <algorithm>
#include <utility>

#include "ipc/bell.h"
#include "ipc/rpc/bytes.h"
#include "ipc/rpc/fault.h"
#include "kernel/base/checked.h"

namespace djinn::gate {
namespace {

using Observer = kj::UnixEventPort::FdObserver;
using rpc::breach;
using rpc::raise;
using rpc::require;

// Messages with completions that may be on their way at once: tokens of so many steps, so that a
// generation goes on while a far client's answers travel.
constexpr size_t kInFlightMax = 32;
// What they carry is memory of both sides, and in the way of what comes behind it.
constexpr uint64_t kInFlightBytes = 4 << 20;
constexpr size_t kTogetherMax = 64;  // completions in one message

}  // namespace

FarMemory::FarMemory(kj::UnixEventPort& port, rpc::MirroredMemory memory, Fd bell, Fd listener,
                     rpc::Near::Client near, kj::Function<void(kj::Exception&&)> on_end)
    : memory_(std::move(memory)),
      ring_(memory_.view()),
      bell_(std::move(bell)),
      listener_(std::move(listener)),
      listens_(port, listener_.get(), Observer::OBSERVE_READ),
      near_(kj::mv(near)),
      on_end_(kj::mv(on_end)),
      tasks_(*this) {
  tasks_.add(kj::evalLater([this] { return drain(); }).then([this] { return listen(); }));
}

// --- from the near side

void FarMemory::submit(rpc::Session::SubmitParams::Reader params) {
  const auto bytes = params.getSubmission();
  ipc::Submission submission;
  if (bytes.size() != sizeof submission) raise(breach("A submission has another size."));
  if (params.getIndex() != submitted_) raise(breach("A submission is not the next one."));
  memcpy(&submission, bytes.begin(), sizeof submission);
  for (const auto piece : params.getPieces()) stage(piece);
  const uint64_t within = params.getBeginWithin();
  submission.begin_by_ns = within == 0 ? 0 : checked_add(within, clock_.monotonic_ns()).value_or(0);
  auto written = require(memory_.use_of(submission)).written;
  require(ring_.publish(submission));
  open_.push_back({submitted_, submission.run, std::move(written)});
  ++submitted_;
  if (ring_.worker_must_be_woken()) ipc::ring_submission_bell(bell_);
}

void FarMemory::cancel_through(uint64_t run) {
  ring_.cancel_through(run);
  ipc::ring_submission_bell(bell_);
}

void FarMemory::state(capnp::List<uint64_t>::Reader words) {
  ipc::ClientStatement statement;
  if (words.size() != statement.calls.size() + 1) raise(breach("A statement has another size."));
  for (uint32_t i = 0; i < statement.calls.size(); ++i) statement.calls[i] = words[i];
  statement.local_models = words[words.size() - 1];
  ring_.state(statement);
}

// --- to the near side

kj::Promise<void> FarMemory::listen() {
  return listens_.whenBecomesReadable().then([this] {
    ring_.finish_sleep();
    ipc::take_rings(listener_);
    return drain().then([this] { return listen(); });
  });
}

kj::Promise<void> FarMemory::drain() {
  if (in_flight_ >= kInFlightMax || in_flight_bytes_ >= kInFlightBytes) {
    auto room = kj::newPromiseAndFulfiller<void>();
    waits_for_room_ = kj::mv(room.fulfiller);
    return room.promise.then([this] { return drain(); });
  }
  Batch batch = collect();
  if (batch.completions.empty()) {
    return ring_.prepare_to_sleep(seen_) ? kj::Promise<void>(kj::READY_NOW) : drain();
  }
  if (rpc::bytes_of(batch.written) <= rpc::PIECE_BYTES) {
    send(batch);
    return kj::evalLater([this] { return drain(); });
  }
  auto staged = rpc::stage_each(near_, memory_, std::exchange(batch.written, {}));
  return staged.then([this, batch = std::move(batch)] {
    send(batch);
    return drain();
  });
}

FarMemory::Batch FarMemory::collect() {
  Batch batch;
  batch.first = seen_;
  while (batch.completions.size() < kTogetherMax &&
         rpc::bytes_of(batch.written) <= rpc::PIECE_BYTES) {
    const auto completion = require(ring_.look_at(seen_));
    if (!completion) break;
    ++seen_;
    batch.completions.push_back(*completion);
    if (completion->kind == static_cast<uint16_t>(ipc::CompletionKind::kDone)) {
      note_done(batch, *completion);
    }
  }
  return batch;
}

// A new worker may tell the end of a run once more.
void FarMemory::note_done(Batch& batch, const ipc::Completion& completion) {
  if (open_.empty() || open_.front().run != completion.run) return;
  Open done = std::move(open_.front());
  open_.pop_front();
  if (completion.error == 0) {
    auto pieces =
        rpc::pieces_of(std::move(done.written), memory_.staging_bytes(), rpc::PIECE_BYTES);
    std::ranges::move(pieces, std::back_inserter(batch.written));
    return;
  }
  const auto text = memory_.view().error_text(done.index);
  batch.texts.emplace_back(done.index, std::string(text.begin(), std::ranges::find(text, '\0')));
}

void FarMemory::send(const Batch& batch) {
  auto request = near_.completeRequest();
  request.setFirst(batch.first);
  request.setCompletions(rpc::data_of(std::as_bytes(std::span(batch.completions))));
  rpc::fill(request.initPieces(static_cast<unsigned>(batch.written.size())), memory_,
            batch.written);
  auto texts = request.initTexts(static_cast<unsigned>(batch.texts.size()));
  for (unsigned i = 0; i < batch.texts.size(); ++i) {
    texts[i].setSubmission(batch.texts[i].first);
    texts[i].setText(batch.texts[i].second);
  }
  ++in_flight_;
  const uint64_t bytes = rpc::bytes_of(batch.written);
  in_flight_bytes_ += bytes;
  const uint64_t through = batch.first + batch.completions.size();
  tasks_.add(request.send().ignoreResult().then([this, through, bytes] {
    --in_flight_;
    in_flight_bytes_ -= bytes;
    consume_through(through);
    KJ_IF_MAYBE (waits, waits_for_room_) {
      (*waits)->fulfill();
      waits_for_room_ = nullptr;
    }
  }));
}

void FarMemory::consume_through(uint64_t index) {
  ring_.consume_through(std::max(index, ring_.consumed()));
  if (ring_.worker_is_blocked()) ipc::ring_submission_bell(bell_);
}

}  // namespace djinn::gate
