// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/models/extents.h"

#include <algorithm>
#include <utility>

#include "daemon/djinnd/loop/sealed.h"
#include "ipc/limits.h"
#include "kernel/base/assert.h"
#include "kernel/base/checked.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon {

std::optional<uint64_t> total_of(const std::vector<uint64_t>& sizes) {
  if (sizes.empty() || sizes.size() > limits::kModelExtents) return std::nullopt;
  uint64_t total = 0;
  for (const uint64_t size : sizes) {
    const auto sum = checked_add(total, size);
    if (size == 0 || !sum) return std::nullopt;
    total = *sum;
  }
  return total;
}

void give_extents(Model& model, std::vector<Fd> extents, const std::vector<uint64_t>& sizes) {
  DJINN_ASSERT(model.phase == ModelPhase::kLoading && model.extents.empty());
  DJINN_ASSERT(extents.size() == sizes.size());
  model.extents = std::move(extents);
  model.extent_bytes = sizes;
  model.bytes = total_of(sizes).value();
}

void note_huge_pages(Model& model, const ipc::Loaded& loaded) {
  DJINN_ASSERT(model.phase == ModelPhase::kLoading && !model.extents.empty());
  model.huge_bytes = std::min(loaded.huge_bytes, model.bytes);
}

Result<uint64_t> size_of_manifest(const Fd& manifest) {
  DJINN_TRY(const uint64_t bytes,
            size_of_sealed(manifest, limits::kManifestBytes, "manifest of a model"));
  if (bytes == 0) return Error{ErrorCode::kLoaderLost, "The loader gave no manifest."};
  return bytes;
}

Result<std::vector<std::byte>> part_of_manifest(const Model& model, uint64_t offset) {
  const uint64_t left = model.manifest_bytes - std::min(model.manifest_bytes, offset);
  return pal::read_memfd(model.manifest, std::min<uint64_t>(left, limits::kManifestPartBytes),
                         offset);
}

}  // namespace djinn::daemon
