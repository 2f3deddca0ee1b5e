// SPDX-License-Identifier: Apache-2.0

// Streams: work that a thread of its own does later, in order, for each stream; events; and the
// code that stays.
//
// The null stream is one more stream: unlike the real one it does not wait for the others, nor they
// for it, so that whoever relies on that order is found out.
// invariant: work that fails with a sticky code is the last that any stream does.
// Any thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "tests/fake_cuda/codes.h"

namespace djinn::fake_cuda {

class Streams {
 public:
  using Work = std::function<Code()>;
  using StreamHandle = pal::cuda::Stream;
  using EventHandle = pal::cuda::Event;

  explicit Streams(unsigned delay_us) : delay_us_(delay_us) {}

  // The first sticky code, or kSuccess.
  [[nodiscard]] Code fate() const;
  void doom(Code code);  // if it is sticky

  Code create(StreamHandle* out);
  // Work that is under way goes on, as on the real one.
  Code destroy(StreamHandle handle);
  Code submit(StreamHandle handle, Work work);
  Code query(StreamHandle handle);
  Code synchronize(StreamHandle handle);
  void synchronize_all();

  Code create_event(EventHandle* out);
  Code destroy_event(EventHandle handle);
  Code record(EventHandle event, StreamHandle stream);
  Code synchronize_event(EventHandle event);

 private:
  struct Stream {
    std::deque<Work> queue;
    uint64_t submitted = 0;
    uint64_t done = 0;
    bool closed = false;
    std::thread thread;
  };
  using SharedStream = std::shared_ptr<Stream>;
  struct Mark {
    bool reached = false;
  };
  struct Event {
    std::shared_ptr<Mark> mark;  // of the last record; null before
  };
  using Lock = std::unique_lock<std::mutex>;

  [[nodiscard]] SharedStream start();
  void serve(Stream& stream);
  // Null where there is none.
  [[nodiscard]] SharedStream find(StreamHandle handle);
  [[nodiscard]] Event* find(EventHandle handle);
  void push(Stream& stream, Work work);

  const unsigned delay_us_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Code fate_ = Code::kSuccess;
  SharedStream null_;
  std::set<SharedStream> streams_;
  std::set<std::unique_ptr<Event>> events_;
};

}  // namespace djinn::fake_cuda
