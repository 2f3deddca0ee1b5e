// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/simulation/memory_book.h"

#include <sys/stat.h>

#include <utility>

#include "kernel/base/assert.h"

namespace djinn::daemon::simulation {
namespace {

uint64_t inode_of(const Fd& fd) {
  struct stat info {};
  DJINN_ASSERT(::fstat(fd.get(), &info) == 0);
  return info.st_ino;
}

}  // namespace

void MemoryBook::made(const Fd& extent, uint64_t bytes) {
  there_[inode_of(extent)] = {bytes, false};
}

void MemoryBook::used(const Fd& extent) {
  const auto found = there_.find(inode_of(extent));
  if (found != there_.end()) found->second.used = true;
}

void MemoryBook::freed(const Fd& extent) {
  there_.erase(inode_of(extent));
}

void MemoryBook::keep(std::vector<Fd> extents) {
  for (Fd& extent : extents) kept_.push_back(std::move(extent));
}

uint64_t MemoryBook::bytes() const {
  uint64_t sum = 0;
  for (const auto& [inode, extent] : there_) sum += extent.used ? extent.bytes : 0;
  return sum;
}

uint64_t MemoryBook::bytes_of(const std::vector<Fd>& extents) const {
  uint64_t sum = 0;
  for (const Fd& fd : extents) {
    if (!fd.valid()) continue;  // it is being closed
    const auto found = there_.find(inode_of(fd));
    if (found != there_.end() && found->second.used) sum += found->second.bytes;
  }
  return sum;
}

}  // namespace djinn::daemon::simulation
