// SPDX-License-Identifier: Apache-2.0

// HostExtents: the host's memory as extents: memfds, which djinnd makes itself and at once. None of
// their pages is there before somebody commits or writes it. It can stand in for a device whose
// extents have no parts.
#pragma once

#include "daemon/djinnd/loop/work_queue.h"
#include "daemon/djinnd/memory/extent_source.h"

namespace djinn::daemon {

class HostExtents final : public ExtentSource {
 public:
  // work: frees memory, which takes a third of a second for two GiB; outlives this.
  explicit HostExtents(WorkQueue& work, bool have_parts = true)
      : work_(work), have_parts_(have_parts) {}

  using ExtentSource::free;
  [[nodiscard]] bool extents_have_parts() const override { return have_parts_; }
  [[nodiscard]] uint64_t granularity_bytes() const override { return 4096; }
  [[nodiscard]] std::string huge_page_setting() const override;
  // made: called at once.
  void create(ExtentUse use, uint64_t bytes, Made made) override;
  // Asks the kernel for about a second at most (memfd.h).
  Status seal(const Fd& extent) override;
  [[nodiscard]] Status check_sealed(const Fd& extent, uint64_t bytes) const override;
  void free(std::vector<Fd> extents, std::function<void()> freed) override;
  void decommit(std::span<const Fd> extents, std::function<void(bool)> done) override;

 private:
  WorkQueue& work_;
  bool have_parts_;
};

}  // namespace djinn::daemon
