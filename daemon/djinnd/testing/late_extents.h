// SPDX-License-Identifier: Apache-2.0

// LateExtents: wraps a source and tells what was made, or could not be, when the test says so: as
// one whose extents a child makes.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "daemon/djinnd/memory/extent_source.h"

namespace djinn::daemon::testing {

class LateExtents final : public ExtentSource {
 public:
  explicit LateExtents(ExtentSource& inner) : inner_(inner) {}

  // From now on answers wait for tell_all().
  void hold() { holds_ = true; }
  void tell_all() {
    holds_ = false;
    for (const auto& tell : std::exchange(untold_, {})) tell();
  }
  [[nodiscard]] size_t untold() const { return untold_.size(); }

  using ExtentSource::free;
  void create(ExtentUse use, uint64_t bytes, Made made) override {
    if (!holds_) return inner_.create(use, bytes, std::move(made));
    inner_.create(use, bytes, [this, made = std::move(made)](Result<Fd> extent) {
      auto held = std::make_shared<Result<Fd>>(std::move(extent));
      untold_.emplace_back([made, held] { made(std::move(*held)); });
    });
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
  bool holds_ = false;
  std::vector<std::function<void()>> untold_;
};

}  // namespace djinn::daemon::testing
