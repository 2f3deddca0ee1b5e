// SPDX-License-Identifier: Apache-2.0

// GpuExtents: a GPU's memory as extents, which its mover makes at djinnd's order. They have no
// parts and no seals: who gets a descriptor may map it for writing, so what must not change is
// compared (models/copies.h).
#pragma once

#include "daemon/djinnd/memory/extent_source.h"
#include "daemon/djinnd/workers/gpu.h"

namespace djinn::daemon {

class GpuExtents final : public ExtentSource {
 public:
  // gpu: outlives this.
  explicit GpuExtents(Gpu& gpu) : gpu_(gpu) {}

  using ExtentSource::free;
  [[nodiscard]] bool extents_have_parts() const override { return false; }
  [[nodiscard]] bool sequences_have_parts() const override { return false; }
  [[nodiscard]] uint64_t granularity_bytes() const override { return gpu_.granularity_bytes(); }
  [[nodiscard]] std::string huge_page_setting() const override { return ""; }
  // Of whole granules. made: called later. Errors: those of Gpu::order() besides.
  void create(ExtentUse use, uint64_t bytes, Made made) override;
  // There is nothing to do.
  Status seal(const Fd& extent) override;
  // Whether it is of the right kind; what it holds only a mover can say.
  [[nodiscard]] Status check_sealed(const Fd& extent, uint64_t bytes) const override;
  // By the GPU's own thread.
  void free(std::vector<Fd> extents, std::function<void()> freed) override;
  // Gives nothing back: of memory without parts all goes at once, with its descriptor.
  void decommit(std::span<const Fd> extents, std::function<void(bool)> done) override;

 private:
  Gpu& gpu_;
};

}  // namespace djinn::daemon
