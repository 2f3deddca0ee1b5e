// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/memory/extent_source.h"

#include <memory>
#include <utility>

#include "kernel/base/assert.h"

namespace djinn::daemon {
namespace {

// Holds the extents that create_all() has made so far.
struct Batch {
  ExtentSource& source;
  ExtentUse use;
  std::vector<uint64_t> sizes;
  std::function<void(Result<std::vector<Fd>>)> made;
  std::vector<Fd> extents;
};

void create_next(const std::shared_ptr<Batch>& batch) {
  DJINN_ASSERT(batch->extents.size() <= batch->sizes.size());
  if (batch->extents.size() == batch->sizes.size()) return batch->made(std::move(batch->extents));
  batch->source.create(batch->use, batch->sizes[batch->extents.size()], [batch](Result<Fd> made) {
    if (made.ok()) {
      batch->extents.push_back(*std::move(made));
      return create_next(batch);
    }
    for (Fd& extent : batch->extents) batch->source.free(std::move(extent));
    batch->made(made.error());
  });
}

}  // namespace

void ExtentSource::free(Fd extent) {
  if (!extent.valid()) return;
  std::vector<Fd> one;
  one.push_back(std::move(extent));
  free(std::move(one), [] {});
}

void create_all(ExtentSource& source, ExtentUse use, std::vector<uint64_t> sizes,
                std::function<void(Result<std::vector<Fd>>)> made) {
  create_next(std::make_shared<Batch>(Batch{source, use, std::move(sizes), std::move(made), {}}));
}

}  // namespace djinn::daemon
