// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/simulation/memory_book.h"

#include <sys/stat.h>

#include <filesystem>
#include <set>
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

void MemoryBook::is_of(const ExtentSource& source, const Fd& extent) {
  sources_[inode_of(extent)] = &source;
}

void MemoryBook::comes_to(const ExtentSource& source, const Fd& extent) {
  const auto found = sources_.find(inode_of(extent));
  if (found == sources_.end() || found->second != &source) ++strayed_;
}

void MemoryBook::used(const Fd& extent) {
  const auto found = there_.find(inode_of(extent));
  if (found != there_.end()) found->second.used = true;
}

void MemoryBook::freed(const Fd& extent) {
  there_.erase(inode_of(extent));
}

void MemoryBook::keep_only(const std::map<ModelId, std::vector<Fd>>& extents) {
  std::map<uint64_t, Extent> kept;
  kept_models_.clear();
  for (const auto& [model, fds] : extents) {
    for (const Fd& fd : fds) {
      struct stat info {};
      DJINN_ASSERT(::fstat(fd.get(), &info) == 0);
      kept[info.st_ino] = {static_cast<uint64_t>(info.st_size), true};
      kept_models_[model].push_back(info.st_ino);
    }
  }
  there_ = std::move(kept);
}

void MemoryBook::freed(ModelId model) {
  const auto found = kept_models_.extract(model);
  if (found.empty()) return;
  for (const uint64_t inode : found.mapped()) there_.erase(inode);
}

void MemoryBook::forget_closed() {
  std::set<uint64_t> open;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    struct stat info {};
    if (::stat(entry.path().c_str(), &info) == 0) open.insert(info.st_ino);
  }
  std::erase_if(there_, [&](const auto& extent) { return !open.contains(extent.first); });
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
