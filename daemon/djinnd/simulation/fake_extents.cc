// SPDX-License-Identifier: Apache-2.0

// A simulated machine's extents are memfds without pages. Each call on them may fail or take its
// time. They take the place of memory/host_extents.cc.
#include <algorithm>
#include <utility>

#include "daemon/djinnd/memory/host_extents.h"
#include "daemon/djinnd/simulation/machine.h"
#include "kernel/base/assert.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon {

using simulation::Machine;
using simulation::Mistake;

namespace {

Result<Fd> make_extent(const ExtentSource& source, ExtentUse use, uint64_t bytes) {
  if (Machine::current().fault(40)) {
    return Error{ErrorCode::kOutOfMemory, "The simulated machine has no such extent."};
  }
  const bool is_weights = use == ExtentUse::kWeights;
  auto made =
      pal::make_memfd("djinn-extent", bytes, is_weights ? pal::Seals::kSize : pal::Seals::kShared);
  if (made.ok()) Machine::current().memory().is_of(source, made.value());
  if (made.ok() && is_weights) Machine::current().memory().made(made.value(), bytes);
  return made;
}

void close_all(std::vector<Fd>& extents) {
  for (const Fd& extent : extents) {
    if (extent.valid()) Machine::current().memory().freed(extent);
  }
  extents.clear();
}

}  // namespace

// A simulated machine has no pages to choose from.
std::string HostExtents::huge_page_setting() const {
  return "";
}

void HostExtents::create(ExtentUse use, uint64_t bytes, Made made) {
  if (Machine::current().one_in(3)) {
    return work_.run([this, use, bytes] { return make_extent(*this, use, bytes); },
                     std::move(made));
  }
  made(make_extent(*this, use, bytes));
}

Status HostExtents::seal(const Fd& extent) {
  DJINN_ASSERT(extent.valid());
  Machine::current().memory().comes_to(*this, extent);
  if (Machine::current().fault(60)) return Error{ErrorCode::kBusy, "Somebody may still write."};
  return pal::seal_content(extent);
}

Status HostExtents::check_sealed(const Fd& extent, uint64_t bytes) const {
  Machine::current().memory().is_of(*this, extent);
  return pal::verify_memfd(extent, bytes, pal::Seals::kWrite);
}

void HostExtents::free(std::vector<Fd> extents, std::function<void()> freed) {
  DJINN_ASSERT(freed != nullptr);
  for (const Fd& extent : extents) {
    if (extent.valid()) Machine::current().memory().comes_to(*this, extent);
  }
  const Mistake mistake = Machine::current().mistake();
  if (mistake == Mistake::kExtentIsForgotten && Machine::current().one_in(4)) {
    Machine::current().memory().keep(std::move(extents));
  }
  work_.run(
      [held = std::move(extents)]() mutable {
        close_all(held);
        return true;
      },
      [mistake, freed = std::move(freed)](bool /*closed*/) {
        const bool is_told = mistake != Mistake::kFreedIsNotTold || !Machine::current().one_in(4);
        if (is_told) freed();
      });
}

void HostExtents::decommit(std::span<const Fd> extents, std::function<void(bool)> done) {
  DJINN_ASSERT(std::ranges::all_of(extents, &Fd::valid));
  for (const Fd& extent : extents) Machine::current().memory().comes_to(*this, extent);
  const bool is_done = !Machine::current().fault(10);
  if (is_done) {
    for (const Fd& extent : extents) Machine::current().memory().freed(extent);
  }
  work_.run([is_done] { return is_done; }, std::move(done));
}

}  // namespace djinn::daemon
