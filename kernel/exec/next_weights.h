// SPDX-License-Identifier: Apache-2.0

// NextWeights: which weights a thread's steps read after which. Steps of a program, and of
// generation, read the same ones in the same order time after time, so what followed a product last
// time follows it again; what did not is a hint that was of no use.
#pragma once

#include <stddef.h>

#include <span>
#include <unordered_map>

#include "kernel/exec/crew.h"
#include "kernel/exec/torch_headers.h"

namespace djinn::exec {

class NextWeights {
 public:
  // The calling thread's.
  static NextWeights& mine();

  // Notes that the product of this weight is computed now, of which each of so many threads reads
  // first what first_of(thread) gives. Gives what they read first of the product that followed it
  // last time, of each thread; nothing if none did. It is good until the next call.
  template <typename F>
  std::span<const Ahead> after(const void* weight, int threads, const F& first_of) {
    Follower& of_last = follower_of(last_);
    if (of_last.weight != weight || of_last.first.size() != static_cast<size_t>(threads)) {
      of_last.weight = weight;
      of_last.first.clear();
      for (int i = 0; i < threads; ++i) of_last.first.push_back(first_of(i));
    }
    last_ = weight;
    const auto found = followers_.find(weight);
    if (found == followers_.end()) return {};
    return {found->second.first.data(), found->second.first.size()};
  }

 private:
  struct Follower {
    const void* weight = nullptr;
    c10::SmallVector<Ahead, 2> first;
  };

  // Of weights that are there no more there may be so many before all are forgotten.
  static constexpr size_t kMost = 4096;

  Follower& follower_of(const void* weight) {
    if (followers_.size() == kMost) followers_.clear();
    return followers_[weight];
  }

  const void* last_ = nullptr;
  std::unordered_map<const void*, Follower> followers_;
};

}  // namespace djinn::exec
