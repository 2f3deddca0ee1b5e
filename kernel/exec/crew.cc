// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/crew.h"

#include <ATen/Parallel.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>

#include "kernel/base/assert.h"
#include "kernel/base/clock.h"
#include "kernel/base/spin.h"
#include "kernel/exec/one_thread.h"

namespace djinn::exec {
namespace {

// Threads that spin take cores from everybody else. Between two products of a step there are some
// tens of microseconds.
constexpr uint64_t kSpinNs = 100'000;
constexpr int64_t kLineBytes = 64;
constexpr int64_t kLinesAtOnce = 16;  // between two looks at whether there is something to do

thread_local int threads_of_call = 0;  // 0: this thread is in none

// Waits until the number is another one, spinning for a while, and gives it.
uint32_t await_other(const std::atomic<uint32_t>& number, uint32_t former) {
  const SystemClock clock;
  Spin spin(clock, kSpinNs);
  do {
    const uint32_t now = number.load(std::memory_order_acquire);
    if (now != former) return now;
  } while (spin.wait());
  number.wait(former, std::memory_order_acquire);
  return number.load(std::memory_order_acquire);
}

// Fetches as long as the number is as before.
void fetch_while(const std::atomic<uint32_t>& number, uint32_t former, const Ahead& ahead) {
  for (const Ahead::Part& part : ahead.parts) {
    for (int64_t at = 0; at < part.bytes; at += kLinesAtOnce * kLineBytes) {
      if (number.load(std::memory_order_relaxed) != former) return;
      for (int64_t line = 0; line < kLinesAtOnce; ++line) {
        constexpr int kRead = 0, kSecondCache = 2;
        __builtin_prefetch(part.begin + at + line * kLineBytes, kRead, kSecondCache);
      }
    }
  }
}

// While it lives, this thread is in a call of so many.
class InCall {
 public:
  explicit InCall(int threads) { threads_of_call = threads; }
  ~InCall() { threads_of_call = 0; }
  InCall(const InCall&) = delete;
  InCall& operator=(const InCall&) = delete;
};

}  // namespace

int64_t ahead_bytes() {
  static const int64_t bytes = [] {
    constexpr int64_t kUsual = 256 << 10;
    const int64_t cache = ::sysconf(_SC_LEVEL2_CACHE_SIZE);
    return cache > 0 ? cache / 2 : kUsual;
  }();
  return bytes;
}

int lane_threads() {
  return threads_of_call > 0 ? threads_of_call : at::get_num_threads();
}

Crew& Crew::mine() {
  static thread_local Crew crew;
  return crew;
}

Crew::~Crew() {
  for (size_t i = 0; i < members_.size(); ++i) call_member(i, nullptr, {});
  for (const auto& member : members_) member->thread.join();
}

void Crew::call(int threads, Work work, std::span<const Ahead> ahead) {
  DJINN_ASSERT(threads > 0);
  if (threads == 1 || threads_of_call > 0) {
    for (int i = 0; i < threads; ++i) work(i);
    return;
  }
  const auto others = static_cast<size_t>(threads) - 1;
  grow(others);
  const InCall within(at::get_num_threads());
  for (size_t i = 0; i < others; ++i) call_member(i, &work, ahead);
  {
    const OneThread alone(true);
    work(0);
  }
  for (size_t i = 0; i < others; ++i) {
    const Member& member = *members_[i];
    const uint32_t called = member.called.load(std::memory_order_relaxed);
    while (member.returned.load(std::memory_order_acquire) != called) {
      await_other(member.returned, called - 1);
    }
  }
}

// A member is one of them when it has its thread: who cannot have one has all that were there.
void Crew::grow(size_t others) {
  if (members_.size() < others) members_.reserve(others);
  while (members_.size() < others) {
    auto member = std::make_unique<Member>();
    const auto number = static_cast<int>(members_.size()) + 1;
    member->thread = std::thread([&it = *member, number] { live(it, number); });
    members_.push_back(std::move(member));
  }
}

void Crew::call_member(size_t number, const Work* work, std::span<const Ahead> ahead) {
  Member& member = *members_[number];
  member.work = work;
  member.lane_threads = lane_threads();
  member.ahead = ahead.empty() ? Ahead() : ahead[number + 1];
  member.called.fetch_add(1, std::memory_order_release);
  member.called.notify_one();
}

void Crew::live(Member& member, int number) {
  ::pthread_setname_np(::pthread_self(), "djinn-crew");
  const OneThread alone(true);
  for (uint32_t called = 0;;) {
    called = await_other(member.called, called);
    if (member.work == nullptr) return;
    const Ahead ahead = member.ahead;
    {
      const InCall within(member.lane_threads);
      (*member.work)(number);
    }
    member.returned.store(called, std::memory_order_release);
    member.returned.notify_one();
    fetch_while(member.called, called, ahead);
  }
}

}  // namespace djinn::exec
