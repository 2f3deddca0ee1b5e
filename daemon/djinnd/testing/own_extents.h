// SPDX-License-Identifier: Apache-2.0

// OwnExtents: a late source that knows which extents it made, and fails the test where it is given
// one of another's.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <set>
#include <utility>
#include <vector>

#include "daemon/djinnd/testing/late_extents.h"

namespace djinn::daemon::testing {

class OwnExtents final : public LateExtents {
 public:
  using LateExtents::LateExtents;

  // How many were made here, and are not freed.
  [[nodiscard]] size_t held() const { return made_.size(); }
  // How often the memory of one was taken back.
  [[nodiscard]] size_t decommitted() const { return decommitted_; }

  using ExtentSource::free;
  void create(ExtentUse use, uint64_t bytes, Made made) override {
    LateExtents::create(use, bytes, [this, made = std::move(made)](Result<Fd> extent) {
      if (extent.ok()) made_.insert(inode_of(extent.value()));
      made(std::move(extent));
    });
  }
  Status seal(const Fd& extent) override {
    expect_own(extent);
    return LateExtents::seal(extent);
  }
  void free(std::vector<Fd> extents, std::function<void()> freed) override {
    for (const Fd& extent : extents) {
      expect_own(extent);
      made_.erase(inode_of(extent));
    }
    LateExtents::free(std::move(extents), std::move(freed));
  }
  void decommit(std::span<const Fd> extents, std::function<void(bool)> done) override {
    for (const Fd& extent : extents) expect_own(extent);
    decommitted_ += extents.size();
    LateExtents::decommit(extents, std::move(done));
  }

 private:
  static uint64_t inode_of(const Fd& extent) {
    struct stat info {};
    EXPECT_EQ(::fstat(extent.get(), &info), 0);
    return info.st_ino;
  }
  void expect_own(const Fd& extent) const {
    EXPECT_TRUE(made_.contains(inode_of(extent))) << "an extent of another device's source";
  }

  std::set<uint64_t> made_;  // by inode
  size_t decommitted_ = 0;
};

}  // namespace djinn::daemon::testing
