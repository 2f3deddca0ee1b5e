// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/workers/batons.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernel/base/assert.h"

namespace djinn::daemon {

ipc::BatonPage& Batons::Page::baton() const {
  return *reinterpret_cast<ipc::BatonPage*>(mapping.data());
}

Result<std::unique_ptr<Batons::Page>> Batons::make_page() {
  auto page = std::make_unique<Page>();
  DJINN_TRY(page->memfd,
            pal::make_memfd("djinn-baton", sizeof(ipc::BatonPage), pal::Seals::kShared));
  DJINN_TRY(page->mapping,
            pal::map_shared(page->memfd, sizeof(ipc::BatonPage), pal::Access::kReadWrite));
  return page;
}

Result<Batons::Place> Batons::enter(WorkerKey key) {
  std::unique_ptr<Page>& page = pages_[key.device];
  if (!page) {
    DJINN_TRY(page, make_page());
  }
  DJINN_ASSERT(std::ranges::find(page->slots, std::optional(key)) == page->slots.end());
  auto* const free = std::ranges::find(page->slots, std::optional<WorkerKey>());
  if (free == page->slots.end()) {
    return Error{ErrorCode::kLimitExceeded,
                 fmt::format("{} workers share the device, which is the limit.", ipc::kBatonSlots)};
  }
  *free = key;
  return Place{static_cast<uint32_t>(free - page->slots.begin()), page->memfd.get()};
}

void Batons::leave(WorkerKey key) {
  const auto found = pages_.find(key.device);
  if (found == pages_.end() || !found->second) return;
  auto* const slot = std::ranges::find(found->second->slots, std::optional(key));
  if (slot == found->second->slots.end()) return;
  ipc::leave_baton(found->second->baton(),
                   static_cast<uint32_t>(slot - found->second->slots.begin()));
  slot->reset();
}

}  // namespace djinn::daemon
