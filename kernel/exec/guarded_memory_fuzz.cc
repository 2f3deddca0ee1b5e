// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/guarded_memory_fuzz.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

#include "kernel/base/assert.h"

namespace djinn::exec {
namespace {

constexpr uint64_t kPage = 4096;
constexpr size_t kBlocksMax = 8192;      // two mappings each, of the kernel's 65530
constexpr uint64_t kHeapAlignment = 64;  // what LibTorch is promised

uint64_t rounded(uint64_t bytes, uint64_t unit) {
  return (bytes + unit - 1) & ~(unit - 1);
}

bool are_all(std::span<const std::byte> bytes, std::byte value) {
  return std::all_of(bytes.begin(), bytes.end(), [value](std::byte b) { return b == value; });
}

void protect(std::byte* pages, uint64_t bytes, int protection) {
  DJINN_ASSERT(::mprotect(pages, bytes, protection) == 0);
}

}  // namespace

GuardedMemory::GuardedMemory(uint64_t bytes) {
  void* const pages = ::mmap(nullptr, rounded(bytes, kPage), PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  DJINN_ASSERT(pages != MAP_FAILED);
  reserved_ = {static_cast<std::byte*>(pages), rounded(bytes, kPage)};
}

GuardedMemory::~GuardedMemory() {
  ::munmap(reserved_.data(), reserved_.size());
}

std::span<std::byte> GuardedMemory::place(uint64_t bytes, uint64_t alignment) {
  DJINN_ASSERT(bytes > 0 && alignment <= kPage);
  if (bytes > reserved_.size() || blocks_.size() == kBlocksMax) return {};
  const uint64_t page_bytes = rounded(bytes, kPage);
  if (page_bytes + 2 * kPage > reserved_.size() - used_) return {};
  std::byte* const pages = reserved_.data() + used_ + kPage;
  protect(pages, page_bytes, PROT_READ | PROT_WRITE);
  std::fill_n(pages, page_bytes, poison_);
  used_ += kPage + page_bytes;
  const std::span block(pages + page_bytes - rounded(bytes, alignment), bytes);
  blocks_.push_back({pages, page_bytes, block});
  return block;
}

void GuardedMemory::reset(std::byte poison) {
  const uint64_t touched = std::min(used_ + kPage, reserved_.size());
  protect(reserved_.data(), touched, PROT_NONE);
  DJINN_ASSERT(::madvise(reserved_.data(), touched, MADV_DONTNEED) == 0);
  used_ = 0;
  poison_ = poison;
  blocks_.clear();
  was_intact_ = true;
}

void GuardedMemory::release(const void* block) {
  const auto found = std::find_if(blocks_.begin(), blocks_.end(), [block](const Block& one) {
    return one.is_live && one.bytes.data() == block;
  });
  if (found == blocks_.end()) return;
  was_intact_ = was_intact_ && is_intact(*found);
  found->is_live = false;
  protect(found->pages, found->page_bytes, PROT_NONE);
}

bool GuardedMemory::is_intact(const Block& block) const {
  std::byte* const end = block.pages + block.page_bytes;
  const auto before = static_cast<size_t>(block.bytes.data() - block.pages);
  return are_all({block.pages, before}, poison_) &&
         are_all({block.bytes.data() + block.bytes.size(), end}, poison_);
}

bool GuardedMemory::is_intact() const {
  return was_intact_ && std::all_of(blocks_.begin(), blocks_.end(), [this](const Block& block) {
           return !block.is_live || is_intact(block);
         });
}

void* GuardedSink::allocate(size_t bytes) {
  if (bytes == 0) return nullptr;
  const std::span<std::byte> block = memory_.place(bytes, kHeapAlignment);
  if (block.empty()) throw std::bad_alloc();
  return block.data();
}

}  // namespace djinn::exec
