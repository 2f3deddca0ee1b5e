// SPDX-License-Identifier: Apache-2.0

// Memory whose misuse shows, for operators_fuzz.cc.
//
//   block    ends at a page that cannot be touched, so reading or writing beyond it ends the
//   process poison   the byte that fills a block, and the rest of its first page, before it is used
//
// A released block cannot be touched, either. The n-th block of equal sizes lies at the same
// address after each reset(), so that two runs of one case differ in the poison alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernel/exec/allocator_hook.h"

namespace djinn::exec {

class GuardedMemory {
 public:
  // Reserves room for blocks of so many bytes in all, their pages counted.
  explicit GuardedMemory(uint64_t bytes);
  ~GuardedMemory();
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  // A block of bytes > 0, aligned to a power of two; empty where there is no room.
  std::span<std::byte> place(uint64_t bytes, uint64_t alignment);
  // Drops all blocks, and poisons those to come.
  void reset(std::byte poison);
  // Makes a block untouchable; nothing if none begins here.
  void release(const void* block);
  // Whether what lies around the blocks still is poison.
  [[nodiscard]] bool is_intact() const;
  [[nodiscard]] std::span<std::byte> reserved() const { return reserved_; }

 private:
  struct Block {
    std::byte* pages;  // the first of them
    uint64_t page_bytes;
    std::span<std::byte> bytes;
    bool is_live = true;
  };
  [[nodiscard]] bool is_intact(const Block& block) const;

  std::span<std::byte> reserved_;
  uint64_t used_ = 0;
  std::byte poison_{0};
  std::vector<Block> blocks_;
  bool was_intact_ = true;  // of the blocks that were released
};

// Where a run's allocations go.
class GuardedSink final : public Sink {
 public:
  explicit GuardedSink(GuardedMemory& memory) : memory_(memory) {}

  void* allocate(size_t bytes) override;
  void released(void* block) override { memory_.release(block); }
  void skip() override {}

 private:
  GuardedMemory& memory_;
};

}  // namespace djinn::exec
