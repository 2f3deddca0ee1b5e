// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_cuda/emulator/emulator.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "kernel/base/assert.h"
#include "tests/fake_cuda/emulator/device/cuda_runtime.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#elif defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace {
constexpr size_t kGuardBytes = 256;  // behind what a launch asked for
}

// Kernels declare it without a size.
extern uint4 dynamic_shared[];
uint4 dynamic_shared[(djinn::emulator::kSharedBytesMax + kGuardBytes) / sizeof(uint4)];

namespace djinn::emulator {
namespace {

constexpr size_t kStackBytes = size_t{64} << 10;
constexpr int kUnwritten = 0xff;  // NaN and -1
constexpr int kGuard = 0xa5;

enum class State : uint8_t { kReady, kAtWarp, kAtBlock, kEnded };

// What a sanitizer has to be told of two stacks between which a thread goes to and fro.
class Stack {
 public:
  Stack() = default;
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;
  ~Stack() {
#if defined(__SANITIZE_THREAD__)
    if (bottom_ != nullptr) __tsan_destroy_fiber(fiber_);
#endif
  }

  // Once: it is of `bytes` at `bottom`; or the one that everything began on, which they know.
  void tell([[maybe_unused]] void* bottom, [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    bottom_ = bottom;
    bytes_ = bytes;
#endif
#if defined(__SANITIZE_THREAD__)
    fiber_ = bottom == nullptr ? __tsan_get_current_fiber() : __tsan_create_fiber(0);
#endif
  }
  void leave_for([[maybe_unused]] Stack& next, [[maybe_unused]] bool for_ever) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(for_ever ? nullptr : &fake_, next.bottom_, next.bytes_);
#elif defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(next.fiber_, 0);
#endif
  }
  // As soon as this stack is the current one; `before` is where the thread was.
  void arrive([[maybe_unused]] Stack& before) {
#if defined(__SANITIZE_ADDRESS__)
    const void* bottom = nullptr;
    size_t bytes = 0;
    __sanitizer_finish_switch_fiber(fake_, &bottom, &bytes);
    before.bottom_ = const_cast<void*>(bottom);
    before.bytes_ = bytes;
#endif
  }

 private:
  [[maybe_unused]] void* bottom_ = nullptr;
  [[maybe_unused]] size_t bytes_ = 0;
  [[maybe_unused]] void* fake_ = nullptr;
  [[maybe_unused]] void* fiber_ = nullptr;
};

struct Thread {
  ucontext_t context;
  Stack stack;
  State state = State::kReady;
  uint3 index{};
  std::source_location where;  // it waits; or ended
};

// Why a launch ends: what two threads do, or what is wrong at a place.
struct Failure {
  const char* what = nullptr;
  const Thread* thread = nullptr;
  const Thread* other = nullptr;
  std::source_location where;
};

// Memory of all stacks, each with a page in front of it that nobody may touch.
class Stacks {
 public:
  explicit Stacks(size_t count)
      : page_(static_cast<size_t>(::sysconf(_SC_PAGESIZE))), bytes_(count * each()) {
    void* const all = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    DJINN_ASSERT(all != MAP_FAILED);
    all_ = static_cast<std::byte*>(all);
    for (size_t i = 0; i < count; ++i) {
      DJINN_ASSERT(::mprotect(all_ + i * each(), page_, PROT_NONE) == 0);
    }
  }
  ~Stacks() {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(all_, bytes_);  // whoever is mapped there next knows nothing
#endif
    ::munmap(all_, bytes_);
  }
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  [[nodiscard]] std::byte* of(size_t thread) const {
    return all_ + thread * each() + page_;
  }

 private:
  [[nodiscard]] size_t each() const {
    return page_ + kStackBytes;
  }

  size_t page_, bytes_;
  std::byte* all_ = nullptr;
};

class Run {
 public:
  Run(const Launch& launch, const std::function<void()>& kernel)
      : launch_(launch),
        kernel_(kernel),
        stacks_(launch.block.x),
        threads_(launch.block.x),
        lanes_(threads_.size()) {
    caller_.stack.tell(nullptr, 0);
    for (size_t i = 0; i < threads_.size(); ++i) prepare(threads_[i], static_cast<unsigned>(i));
  }

  Status blocks() {
    const auto [x, y, z] = launch_.grid;
    const uint64_t count = uint64_t{x} * y * z;
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t at = launch_.order == Order::kAscending ? i : count - 1 - i;
      blockIdx = {static_cast<unsigned>(at % x), static_cast<unsigned>(at / x % y),
                  static_cast<unsigned>(at / x / y)};
      DJINN_CHECK(block());
    }
    end_fibers();
    return {};
  }

  void meet(State at, std::source_location where) {
    Thread& self = *current_;
    const auto [first, last] = who_meet(at);
    self.state = at;
    self.where = where;
    size_t& come = at == State::kAtBlock ? come_to_block_ : lanes_[number(*first)].come_to_warp;
    if (++come < static_cast<size_t>(last - first)) return go_on();
    come = 0;
    const auto elsewhere = std::find_if(first, last, [&](const Thread& other) {
      return other.where.line() != where.line() || other.where.column() != where.column() ||
             std::strcmp(other.where.file_name(), where.file_name()) != 0;
    });
    if (elsewhere != last) fail_with({"threads meet at different places", &self, &*elsewhere, {}});
    std::for_each(first, last, [](Thread& other) { other.state = State::kReady; });
  }

  // A lane that goes on may come to its next exchange before others have read: they alternate. It
  // cannot come to the one behind that, for which it needs them.
  uint64_t exchange(uint64_t value, uint32_t lane, std::source_location where) {
    const size_t self = number(*current_);
    Lane& mine = lanes_[self];
    const bool side = mine.side;
    mine.side = !side;
    mine.values[side] = value;
    meet(State::kAtWarp, where);
    return lanes_[self / kWarp * kWarp + lane].values[side];
  }

  // The running thread's stack is left for ever: nothing on it may have to be destroyed.
  [[noreturn]] void fail_with(const Failure& failure) {
    failure_ = failure;
    switch_to(caller_, true);
    __builtin_unreachable();
  }

  // On the fiber of a thread, whose turn it is for the first time. The fiber lives on from block to
  // block, since to make one is dear where a sanitizer has to know it.
  void begin() {
    current_->stack.arrive(before_->stack);
    while (!ends_) {
      kernel_();
      current_->state = State::kEnded;
      go_on();
    }
    switch_to(caller_, true);
  }

  // After a launch whose threads all ended.
  void end_fibers() {
    ends_ = true;
    for (Thread& thread : threads_) {
      current_ = &caller_;
      switch_to(thread, false);
    }
  }

 private:
  struct Lane {
    std::array<uint64_t, 2> values{};
    bool side = false;
    size_t come_to_warp = 0;  // of a warp's first lane: how many have
  };
  using Threads = std::vector<Thread>::iterator;

  [[nodiscard]] size_t number(const Thread& thread) const {
    return static_cast<size_t>(&thread - threads_.data());
  }

  std::pair<Threads, Threads> who_meet(State at) {
    if (at == State::kAtBlock) return {threads_.begin(), threads_.end()};
    const auto first = threads_.begin() + static_cast<ptrdiff_t>(number(*current_) / kWarp * kWarp);
    return {first, first + kWarp};
  }

  Status block() {
    auto* const shared = reinterpret_cast<std::byte*>(dynamic_shared);
    std::memset(shared, kUnwritten, launch_.shared_bytes);
    std::memset(shared + launch_.shared_bytes, kGuard, kGuardBytes);
    for (Thread& thread : threads_) thread.state = State::kReady;
    current_ = &caller_;
    switch_to(launch_.order == Order::kAscending ? threads_.front() : threads_.back(), false);
    if (failure_.what != nullptr) return Error{ErrorCode::kInternal, text_of(failure_)};
    const auto is_whole = [](std::byte byte) { return byte == std::byte{kGuard}; };
    std::byte* const behind = shared + launch_.shared_bytes;
    if (std::all_of(behind, behind + kGuardBytes, is_whole)) return {};
    return Error{ErrorCode::kInternal,
                 fmt::format("block {} wrote behind its {} bytes of shared memory", blockIdx.x,
                             launch_.shared_bytes)};
  }

  [[nodiscard]] static std::string told(const Thread& thread) {
    const std::string name = fmt::format("thread {} of block {}", thread.index.x, blockIdx.x);
    if (thread.state == State::kEnded) return name + " has ended";
    return fmt::format("{} is at {}:{}:{}", name, thread.where.file_name(), thread.where.line(),
                       thread.where.column());
  }
  [[nodiscard]] static std::string text_of(const Failure& failure) {
    if (failure.thread == nullptr) {
      return fmt::format("{}:{}: {}", failure.where.file_name(), failure.where.line(),
                         failure.what);
    }
    return fmt::format("{}: {}, {}", failure.what, told(*failure.thread),
                       failure.other == nullptr ? "as all others" : told(*failure.other));
  }

  void prepare(Thread& thread, unsigned index);

  // The next thread that can go on has its turn; the caller, when all have ended.
  void go_on() {
    const size_t count = threads_.size();
    const size_t step = launch_.order == Order::kAscending ? 1 : count - 1;
    size_t at = number(*current_);
    for (size_t i = 0; i < count; ++i) {
      at = (at + step) % count;
      if (threads_[at].state == State::kReady) return switch_to(threads_[at], false);
    }
    const auto has_ended = [](const Thread& thread) { return thread.state == State::kEnded; };
    const auto waits = std::ranges::find_if_not(threads_, has_ended);
    if (waits == threads_.end()) return switch_to(caller_, false);
    const auto other = std::ranges::find_if(
        threads_, [&](const Thread& thread) { return thread.state != waits->state; });
    fail_with({"threads wait for ever", &*waits, other == threads_.end() ? nullptr : &*other, {}});
  }

  void switch_to(Thread& next, bool for_ever) {
    before_ = current_;
    Thread& self = *current_;
    current_ = &next;
    threadIdx = next.index;
    self.stack.leave_for(next.stack, for_ever);
    ::swapcontext(&self.context, &next.context);
    self.stack.arrive(before_->stack);
  }

  const Launch& launch_;
  const std::function<void()>& kernel_;
  Stacks stacks_;
  std::vector<Thread> threads_;
  std::vector<Lane> lanes_;
  Thread caller_;
  Thread* current_ = &caller_;
  Thread* before_ = &caller_;
  Failure failure_;
  size_t come_to_block_ = 0;
  bool ends_ = false;
};

Run* running = nullptr;

void begin_thread() {
  running->begin();
}

void Run::prepare(Thread& thread, unsigned index) {
  thread.index = {index, 0, 0};
  std::byte* const stack = stacks_.of(index);
  thread.stack.tell(stack, kStackBytes);
  ::getcontext(&thread.context);
  thread.context.uc_stack.ss_sp = stack;
  thread.context.uc_stack.ss_size = kStackBytes;
  thread.context.uc_link = nullptr;
  ::makecontext(&thread.context, begin_thread, 0);
}

Status check(const Launch& launch) {
  const auto invalid = [](std::string what) {
    return Error{ErrorCode::kInvalidArgument, std::move(what)};
  };
  const auto [x, y, z] = launch.block;
  if (x == 0 || x > kThreadsMax || x % kWarp != 0 || y != 1 || z != 1) {
    return invalid(
        fmt::format("a block of {} × {} × {} threads; the emulator takes 32 to {} side "
                    "by side, in whole warps",
                    x, y, z, kThreadsMax));
  }
  if (launch.grid.x == 0 || launch.grid.y == 0 || launch.grid.z == 0)
    return invalid("a grid without blocks");
  if (launch.shared_bytes > kSharedBytesMax) {
    return invalid(fmt::format("{} bytes of shared memory are asked for; there are {}",
                               launch.shared_bytes, kSharedBytesMax));
  }
  return {};
}

}  // namespace

Status emulate(const Launch& launch, const std::function<void()>& kernel) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  DJINN_CHECK(check(launch));
  blockDim = {launch.block.x, 1, 1};
  gridDim = {launch.grid.x, launch.grid.y, launch.grid.z};
  const auto run = std::make_unique<Run>(launch, kernel);
  running = run.get();
  const Status done = run->blocks();
  running = nullptr;
  return done;
}

void meet_block(std::source_location where) {
  running->meet(State::kAtBlock, where);
}

void meet_warp(std::source_location where) {
  running->meet(State::kAtWarp, where);
}

uint64_t exchange(uint64_t value, uint32_t lane, std::source_location where) {
  return running->exchange(value, lane, where);
}

void fail(const char* what, std::source_location where) {
  running->fail_with({what, nullptr, nullptr, where});
}

}  // namespace djinn::emulator
