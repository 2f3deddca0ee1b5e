// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_cuda/streams.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

namespace djinn::fake_cuda {

Code Streams::fate() const {
  const Lock lock(mutex_);
  return fate_;
}

void Streams::doom(Code code) {
  const CodeInfo* const info = find_code(code);
  if (info == nullptr || !info->sticky) return;
  const Lock lock(mutex_);
  if (fate_ == Code::kSuccess) fate_ = code;
  changed_.notify_all();
}

Streams::SharedStream Streams::start() {
  auto stream = std::make_shared<Stream>();
  stream->thread = std::thread([this, stream] { serve(*stream); });
  return stream;
}

void Streams::serve(Stream& stream) {
  Lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stream.closed || !stream.queue.empty(); });
    if (stream.queue.empty()) return;
    const Work work = std::move(stream.queue.front());
    stream.queue.pop_front();
    if (fate_ == Code::kSuccess) {
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(delay_us_));  // style: it was asked for
      doom(work());
      lock.lock();
    }
    stream.done += 1;
    changed_.notify_all();
  }
}

Streams::SharedStream Streams::find(StreamHandle handle) {
  if (handle == nullptr) {
    if (null_ == nullptr) null_ = start();
    return null_;
  }
  const auto is_it = [&](const SharedStream& stream) {
    return static_cast<void*>(stream.get()) == static_cast<void*>(handle);
  };
  const auto found = std::ranges::find_if(streams_, is_it);
  return found == streams_.end() ? nullptr : *found;
}

Streams::Event* Streams::find(EventHandle handle) {
  const auto is_it = [&](const std::unique_ptr<Event>& event) {
    return static_cast<void*>(event.get()) == static_cast<void*>(handle);
  };
  const auto found = std::ranges::find_if(events_, is_it);
  return found == events_.end() ? nullptr : found->get();
}

Code Streams::create(StreamHandle* out) {
  const Lock lock(mutex_);
  const SharedStream stream = start();
  *out = reinterpret_cast<StreamHandle>(stream.get());
  streams_.insert(stream);
  return Code::kSuccess;
}

Code Streams::destroy(StreamHandle handle) {
  Lock lock(mutex_);
  const SharedStream stream = handle == nullptr ? nullptr : find(handle);
  if (stream == nullptr) return Code::kInvalidHandle;
  streams_.erase(stream);
  stream->closed = true;
  changed_.notify_all();
  const bool is_idle = stream->done == stream->submitted;
  lock.unlock();
  // An idle stream leaves no thread behind. A busy one may never end, so its thread is detached.
  if (is_idle) {
    stream->thread.join();
  } else {
    stream->thread.detach();
  }
  return Code::kSuccess;
}

void Streams::push(Stream& stream, Work work) {
  stream.queue.push_back(std::move(work));
  stream.submitted += 1;
  changed_.notify_all();
}

Code Streams::submit(StreamHandle handle, Work work) {
  const Lock lock(mutex_);
  const SharedStream stream = find(handle);
  if (stream == nullptr) return Code::kInvalidHandle;
  push(*stream, std::move(work));
  return Code::kSuccess;
}

Code Streams::query(StreamHandle handle) {
  const Lock lock(mutex_);
  const SharedStream stream = find(handle);
  if (stream == nullptr) return Code::kInvalidHandle;
  return stream->done == stream->submitted ? fate_ : Code::kNotReady;
}

Code Streams::synchronize(StreamHandle handle) {
  Lock lock(mutex_);
  const SharedStream stream = find(handle);
  if (stream == nullptr) return Code::kInvalidHandle;
  const uint64_t until = stream->submitted;
  changed_.wait(lock, [&] { return stream->done >= until || fate_ != Code::kSuccess; });
  return fate_;
}

void Streams::synchronize_all() {
  Lock lock(mutex_);
  std::vector<std::pair<SharedStream, uint64_t>> all;
  for (const SharedStream& stream : streams_) all.emplace_back(stream, stream->submitted);
  if (null_ != nullptr) all.emplace_back(null_, null_->submitted);
  const auto is_done = [](const auto& each) { return each.first->done >= each.second; };
  changed_.wait(lock, [&] { return fate_ != Code::kSuccess || std::ranges::all_of(all, is_done); });
}

Code Streams::create_event(EventHandle* out) {
  const Lock lock(mutex_);
  auto event = std::make_unique<Event>();
  *out = reinterpret_cast<EventHandle>(event.get());
  events_.insert(std::move(event));
  return Code::kSuccess;
}

Code Streams::destroy_event(EventHandle handle) {
  const Lock lock(mutex_);
  const Event* const event = find(handle);
  const auto erased = std::erase_if(events_, [&](const auto& each) { return each.get() == event; });
  return erased == 0 ? Code::kInvalidHandle : Code::kSuccess;
}

Code Streams::record(EventHandle handle, StreamHandle stream_handle) {
  const Lock lock(mutex_);
  Event* const event = find(handle);
  const SharedStream stream = find(stream_handle);
  if (event == nullptr || stream == nullptr) return Code::kInvalidHandle;
  event->mark = std::make_shared<Mark>();
  push(*stream, [this, mark = event->mark] {
    const Lock inner(mutex_);
    mark->reached = true;
    changed_.notify_all();
    return Code::kSuccess;
  });
  return Code::kSuccess;
}

Code Streams::synchronize_event(EventHandle handle) {
  Lock lock(mutex_);
  const Event* const event = find(handle);
  if (event == nullptr) return Code::kInvalidHandle;
  const std::shared_ptr<Mark> mark = event->mark;
  changed_.wait(lock, [&] { return mark == nullptr || mark->reached || fate_ != Code::kSuccess; });
  return fate_;
}

}  // namespace djinn::fake_cuda
