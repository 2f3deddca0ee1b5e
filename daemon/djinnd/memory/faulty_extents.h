// SPDX-License-Identifier: Apache-2.0

// FaultyExtents: wraps another source and makes one of its creations fail, without having any
// effect: what FaultyPal is for a pal. A test does something once for each extent that it makes,
// with that one failing, and shows that nothing is lost.
#pragma once

#include <utility>

#include "daemon/djinnd/memory/extent_source.h"

namespace djinn::daemon {

class FaultyExtents : public ExtentSource {
 public:
  // fail_at: the number of the creation, counted from 1; 0: none fails.
  FaultyExtents(ExtentSource& inner, uint64_t fail_at) : inner_(inner), fail_at_(fail_at) {}

  // Counted from the next one on.
  void fail_at(uint64_t number) {
    created_ = 0;
    fail_at_ = number;
  }

  using ExtentSource::free;
  [[nodiscard]] bool extents_have_parts() const override { return inner_.extents_have_parts(); }
  [[nodiscard]] uint64_t granularity_bytes() const override { return inner_.granularity_bytes(); }
  [[nodiscard]] std::string huge_page_setting() const override {
    return inner_.huge_page_setting();
  }
  void create(ExtentUse use, uint64_t bytes, Made made) override {
    if (++created_ != fail_at_) return inner_.create(use, bytes, std::move(made));
    made(Error{ErrorCode::kOutOfMemory, "A test made this extent fail."});
  }
  Status seal(const Fd& extent) override { return inner_.seal(extent); }
  [[nodiscard]] Status check_sealed(const Fd& extent, uint64_t bytes) const override {
    return inner_.check_sealed(extent, bytes);
  }
  void free(std::vector<Fd> extents, std::function<void()> freed) override {
    inner_.free(std::move(extents), std::move(freed));
  }
  void decommit(std::span<const Fd> extents, std::function<void(bool)> done) override {
    inner_.decommit(extents, std::move(done));
  }

 private:
  ExtentSource& inner_;
  uint64_t fail_at_;
  uint64_t created_ = 0;
};

}  // namespace djinn::daemon
