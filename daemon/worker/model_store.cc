// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/model_store.h"

#include <sys/stat.h>

#include <utility>

#include "ipc/codec/srg_codec.h"
#include "ipc/limits.h"
#include "kernel/base/assert.h"
#include "kernel/base/checked.h"

namespace djinn::worker {
namespace {

Result<uint64_t> size_of_memfd(const Fd& fd) {
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return system_error("look at a memfd", errno);
  return static_cast<uint64_t>(info.st_size);
}

Result<srg::ModelManifest> read_manifest(const Fd& fd) {
  DJINN_TRY(const uint64_t bytes, size_of_memfd(fd));
  if (bytes > limits::kManifestBytes) {
    return Error{ErrorCode::kLimitExceeded, "The model's manifest is larger than its limit."};
  }
  DJINN_TRY(const auto content, pal::read_memfd(fd, bytes));
  return ipc::decode_manifest(content);
}

Result<exec::Weight> weight_of(const srg::TensorEntry& entry,
                               std::span<const pal::Reservation> extents) {
  if (entry.extent >= extents.size() ||
      !range_fits(entry.offset, entry.bytes, extents[entry.extent].size())) {
    return Error{ErrorCode::kMalformed, "A tensor of the manifest lies outside its extent."};
  }
  exec::Weight weight{
      entry.name, entry.dtype, {}, extents[entry.extent].data() + entry.offset, entry.form};
  for (const uint64_t size : entry.sizes) weight.sizes.push_back(static_cast<int64_t>(size));
  DJINN_TRY(const uint64_t bytes, exec::bytes_of(weight));
  if (bytes != entry.bytes) {
    return Error{ErrorCode::kMalformed,
                 "A tensor of the manifest has another size than its bytes."};
  }
  return weight;
}

Status map_extent(Fd fd, pal::Reservation& memory, pal::DevicePal& pal) {
  const uint64_t bytes = memory.size();
  DJINN_TRY(const pal::Extent extent, pal.import_extent(std::move(fd), bytes, pal::Seals::kWrite));
  return pal.map(memory, 0, extent, 0, bytes, pal::Access::kRead);
}

// Maps all extents, or none.
Status map_extents(std::vector<Fd> fds, std::span<pal::Reservation> extents, pal::DevicePal& pal) {
  if (extents.size() != fds.size() - 1) {
    return Error{ErrorCode::kMalformed, "A model came with another number of extents than it has."};
  }
  for (size_t i = 0; i < extents.size(); ++i) {
    const Status mapped = map_extent(std::move(fds[i + 1]), extents[i], pal);
    if (mapped) continue;
    while (i-- > 0) DJINN_ASSERT(pal.unmap(extents[i], 0, extents[i].size()).ok());
    return mapped;
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<MappedModel>> MappedModel::map(ModelId id, std::vector<Fd> fds, bool parked,
                                                      pal::DevicePal& pal) {
  if (fds.empty()) return Error{ErrorCode::kMalformed, "A model came without its manifest."};
  DJINN_TRY(const srg::ModelManifest manifest, read_manifest(fds[0]));
  std::vector<pal::Reservation> extents;
  for (const uint64_t bytes : manifest.extent_bytes) {
    // A device's copy is of whole granules.
    const auto whole = align_up(bytes, pal.properties().granularity_bytes);
    if (!whole) return Error{ErrorCode::kMalformed, "An extent of the manifest is too large."};
    DJINN_TRY(pal::Reservation memory, pal.reserve(*whole));
    extents.push_back(std::move(memory));
  }
  if (!parked) DJINN_CHECK(map_extents(std::move(fds), extents, pal));
  std::vector<exec::Weight> weights;
  for (const srg::TensorEntry& entry : manifest.tensors) {
    DJINN_TRY(exec::Weight weight, weight_of(entry, extents));
    weights.push_back(std::move(weight));
  }
  return std::shared_ptr<MappedModel>(
      new MappedModel(id, parked, std::move(extents), exec::WeightTable(std::move(weights))));
}

Status MappedModel::map_again(std::vector<Fd> fds, pal::DevicePal& pal) {
  const std::lock_guard lock(mutex_);
  if (!parked_) return {};
  DJINN_CHECK(map_extents(std::move(fds), extents_, pal));
  parked_ = false;
  return {};
}

bool MappedModel::park(pal::DevicePal& pal) {
  const std::lock_guard lock(mutex_);
  if (uses_ > 0) return false;
  if (std::exchange(parked_, true)) return true;
  for (pal::Reservation& extent : extents_) {
    DJINN_ASSERT(pal.unmap(extent, 0, extent.size()).ok());
  }
  return true;
}

bool MappedModel::parked() const {
  const std::lock_guard lock(mutex_);
  return parked_;
}

bool MappedModel::use() {
  const std::lock_guard lock(mutex_);
  if (parked_) return false;
  ++uses_;
  return true;
}

void MappedModel::end_use() {
  const std::lock_guard lock(mutex_);
  DJINN_ASSERT(uses_ > 0 && !parked_);
  --uses_;
}

}  // namespace djinn::worker
