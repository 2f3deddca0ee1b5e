// SPDX-License-Identifier: Apache-2.0

// Crew: a lane's threads, for our own kernels. LibTorch's kernels have OpenMP's, which do nothing
// between two regions; these fetch meanwhile what they are likely to read next. A token's step
// computes its products one after the other, and between them one thread alone goes through norms,
// views and the dispatcher: that is when the memory would be idle.
#pragma once

#include <stdint.h>

#include <array>
#include <atomic>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "kernel/exec/torch_headers.h"

namespace djinn::exec {

// What a thread is likely to read first of what comes next, in this order. It is a hint: the bytes
// need not be there any more.
struct Ahead {
  struct Part {
    const std::byte* begin = nullptr;
    int64_t bytes = 0;
  };
  std::array<Part, 4> parts;
};

// Bytes that a thread fetches ahead at most: what its second cache has room for beside the rest.
[[nodiscard]] int64_t ahead_bytes();

// As many threads as this lane has for a call, also where it is itself one thread's share of one.
[[nodiscard]] int lane_threads();

class Crew {
 public:
  using Work = c10::function_ref<void(int thread)>;

  // The calling thread's, whose other members are threads that no one else's crew has.
  static Crew& mine();

  Crew() = default;
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  // Calls work(i) once for each i of [0, threads), each in a thread of its own, of which 0 is this
  // one, and returns when all have returned; then each other one fetches what is ahead of it, if
  // that is told. Within such a call this thread calls them one after the other. work throws
  // nothing, and LibTorch's kernels have one thread in it. Throws std::system_error where no thread
  // is to be had. Precondition: threads > 0; ahead is of each of them, or empty.
  void call(int threads, Work work, std::span<const Ahead> ahead = {});

 private:
  struct alignas(64) Member {
    std::atomic<uint32_t> called{0};  // how often
    std::atomic<uint32_t> returned{0};
    const Work* work = nullptr;  // none: it is to end
    int lane_threads = 0;
    Ahead ahead;
    std::thread thread;
  };

  static void live(Member& member, int number);
  void grow(size_t others);
  void call_member(size_t number, const Work* work, std::span<const Ahead> ahead);

  std::vector<std::unique_ptr<Member>> members_;  // from thread 1 on
};

}  // namespace djinn::exec
