// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/memory/host_extents.h"

#include <errno.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "kernel/base/assert.h"
#include "kernel/pal/huge_pages.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon {
namespace {

struct Kind {
  const char* name;  // in /proc/PID/maps
  pal::Seals seals;  // of what is new
};

// Only weights are sealed later. Other extents are written again by the next worker, so no worker
// may seal them against writing.
Kind kind_of(ExtentUse use) {
  switch (use) {
    case ExtentUse::kRefs:
      return {"djinn-refs", pal::Seals::kShared};
    case ExtentUse::kSequence:
      return {"djinn-sequence", pal::Seals::kShared};
    case ExtentUse::kSlab:
      return {"djinn-slab", pal::Seals::kShared};
    case ExtentUse::kWeights:
      return {"djinn-weights", pal::Seals::kSize};
  }
  return {"djinn-extent", pal::Seals::kShared};
}

bool is_decommitted(const Fd& extent) {
  struct stat info {};
  return ::fstat(extent.get(), &info) == 0 &&
         pal::decommit(extent, 0, static_cast<uint64_t>(info.st_size)).ok();
}

bool are_decommitted(std::span<const Fd> extents) {
  return std::ranges::all_of(extents, &is_decommitted);
}

// Error: kLimitExceeded if there are no more descriptors.
Result<std::vector<Fd>> duplicates_of(std::span<const Fd> extents) {
  std::vector<Fd> duplicates;
  for (const Fd& extent : extents) {
    DJINN_TRY(Fd duplicate, extent.duplicate());
    duplicates.push_back(std::move(duplicate));
  }
  return duplicates;
}

}  // namespace

std::string HostExtents::huge_page_setting() const {
  return pal::huge_page_setting();
}

void HostExtents::create(ExtentUse use, uint64_t bytes, Made made) {
  const Kind kind = kind_of(use);
  Result<Fd> extent = pal::make_memfd(kind.name, bytes, kind.seals);
  if (extent.ok() && !have_parts_ && use == ExtentUse::kRefs) {
    const Status committed = pal::commit_ahead(extent.value(), 0, bytes);
    if (!committed) return made(committed.error());
  }
  made(std::move(extent));
}

Status HostExtents::seal(const Fd& extent) {
  DJINN_CHECK(pal::seal_content(extent));
  if (::fchmod(extent.get(), 0400) != 0) return system_error("seal an extent", errno);
  return {};
}

Status HostExtents::check_sealed(const Fd& extent, uint64_t bytes) const {
  return pal::verify_memfd(extent, bytes, pal::Seals::kWrite);
}

void HostExtents::free(std::vector<Fd> extents, std::function<void()> freed) {
  DJINN_ASSERT(freed != nullptr);
  work_.close(std::move(extents), std::move(freed));
}

// If no descriptor is left for the thread, the loop does the work itself. The answer is deferred
// even then, because the caller may be in the middle of changing its state.
void HostExtents::decommit(std::span<const Fd> extents, std::function<void(bool)> done) {
  DJINN_ASSERT(std::ranges::all_of(extents, &Fd::valid));
  Result<std::vector<Fd>> duplicates = duplicates_of(extents);
  if (!duplicates.ok()) {
    return work_.run([freed = are_decommitted(extents)] { return freed; }, std::move(done));
  }
  work_.run([held = *std::move(duplicates)] { return are_decommitted(held); }, std::move(done));
}

}  // namespace djinn::daemon
