// SPDX-License-Identifier: Apache-2.0

// NoExtents: the source of a device whose memory is only accounted; nobody asks it for an extent.
#pragma once

#include <functional>
#include <vector>

#include "daemon/djinnd/memory/extent_source.h"
#include "kernel/base/assert.h"

namespace djinn::daemon::testing {

class NoExtents final : public ExtentSource {
 public:
  using ExtentSource::free;
  [[nodiscard]] bool extents_have_parts() const override { return true; }
  [[nodiscard]] uint64_t granularity_bytes() const override { return 4096; }
  [[nodiscard]] std::string huge_page_setting() const override { return ""; }
  void create(ExtentUse, uint64_t, Made) override { DJINN_ASSERT(false); }
  Status seal(const Fd&) override { return unwanted(); }
  [[nodiscard]] Status check_sealed(const Fd&, uint64_t) const override { return unwanted(); }
  void free(std::vector<Fd>, std::function<void()>) override { DJINN_ASSERT(false); }
  void decommit(std::span<const Fd>, std::function<void(bool)>) override { DJINN_ASSERT(false); }

 private:
  static Status unwanted() {
    DJINN_ASSERT(false);
    return {};
  }
};

}  // namespace djinn::daemon::testing
