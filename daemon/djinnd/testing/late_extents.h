// SPDX-License-Identifier: Apache-2.0

// LateExtents: a faulty source that tells what was made, or could not be, when the test says so: as
// one whose extents a child makes.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "daemon/djinnd/memory/faulty_extents.h"

namespace djinn::daemon::testing {

class LateExtents : public FaultyExtents {
 public:
  explicit LateExtents(ExtentSource& inner) : FaultyExtents(inner, 0) {}

  // From now on answers wait for tell_all().
  void hold() { holds_ = true; }
  void tell_all() {
    holds_ = false;
    for (const auto& tell : std::exchange(untold_, {})) tell();
  }
  [[nodiscard]] size_t untold() const { return untold_.size(); }

  void create(ExtentUse use, uint64_t bytes, Made made) override {
    if (!holds_) return FaultyExtents::create(use, bytes, std::move(made));
    FaultyExtents::create(use, bytes, [this, made = std::move(made)](Result<Fd> extent) {
      auto held = std::make_shared<Result<Fd>>(std::move(extent));
      untold_.emplace_back([made, held] { made(std::move(*held)); });
    });
  }

 private:
  bool holds_ = false;
  std::vector<std::function<void()>> untold_;
};

}  // namespace djinn::daemon::testing
