// SPDX-License-Identifier: Apache-2.0

// The memory of models: djinnd makes the extents, a loader fills them, djinnd seals them.
//
//   extent     memory of a fixed size that a loader fills; once sealed nobody may write it
//   manifest   which tensor lies where, as its loader wrote it into sealed memory of its own
//
// invariant: a model is visible only when its extents are sealed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "daemon/djinnd/models/model.h"
#include "kernel/base/fd.h"
#include "kernel/base/result.h"

namespace djinn::daemon {

// The sum of what a loader asked for; nothing if that is not within the limits.
[[nodiscard]] std::optional<uint64_t> total_of(const std::vector<uint64_t>& sizes);
// The model has none yet. sizes: of these extents, with a total.
void give_extents(Model& model, std::vector<Fd> extents, const std::vector<uint64_t>& sizes);

// What the loader that filled them says of them, which it may say of all at most.
void note_huge_pages(Model& model, const ipc::Loaded& loaded);

// What a loader gave as manifest has so many bytes. Errors: those of size_of_sealed; kLoaderLost.
[[nodiscard]] Result<uint64_t> size_of_manifest(const Fd& manifest);
// From the offset, as much as one reply carries. Errors: those of pal::read_memfd.
[[nodiscard]] Result<std::vector<std::byte>> part_of_manifest(const Model& model, uint64_t offset);

}  // namespace djinn::daemon
