#include "daemon/worker/model_store.h"

#include <sys/stat.h>

#include <utility>

#include "ipc/codec/srg_codec.h"
#include "ipc/limits.h"
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
  const auto elements = checked_product(entry.sizes);
  const auto bytes =
      elements ? checked_mul<uint64_t>(*elements, size_of(entry.dtype)) : std::nullopt;
  if (!bytes || *bytes != entry.bytes) {
    return Error{ErrorCode::kMalformed,
                 "A tensor of the manifest has another size than its bytes."};
  }
  exec::Weight weight{entry.name, entry.dtype, {}, extents[entry.extent].data() + entry.offset};
  for (const uint64_t size : entry.sizes) weight.sizes.push_back(static_cast<int64_t>(size));
  return weight;
}

Result<pal::Reservation> map_extent(Fd fd, uint64_t bytes, pal::DevicePal& pal) {
  DJINN_TRY(const pal::Extent extent, pal.import_extent(std::move(fd), bytes, pal::Seals::kWrite));
  DJINN_TRY(pal::Reservation memory, pal.reserve(bytes));
  DJINN_CHECK(pal.map(memory, 0, extent, 0, bytes, pal::Access::kRead));
  return memory;
}

}  // namespace

Result<std::shared_ptr<const MappedModel>> MappedModel::map(ModelId id, std::vector<Fd> fds,
                                                            pal::DevicePal& pal) {
  if (fds.empty()) return Error{ErrorCode::kMalformed, "A model came without its manifest."};
  DJINN_TRY(const srg::ModelManifest manifest, read_manifest(fds[0]));
  if (manifest.extent_bytes.size() != fds.size() - 1) {
    return Error{ErrorCode::kMalformed, "A model came with another number of extents than it has."};
  }
  std::vector<pal::Reservation> extents;
  for (size_t i = 0; i < manifest.extent_bytes.size(); ++i) {
    DJINN_TRY(pal::Reservation memory,
              map_extent(std::move(fds[i + 1]), manifest.extent_bytes[i], pal));
    extents.push_back(std::move(memory));
  }
  std::vector<exec::Weight> weights;
  for (const srg::TensorEntry& entry : manifest.tensors) {
    DJINN_TRY(exec::Weight weight, weight_of(entry, extents));
    weights.push_back(std::move(weight));
  }
  return std::shared_ptr<const MappedModel>(
      new MappedModel(id, std::move(extents), exec::WeightTable(std::move(weights))));
}

}  // namespace djinn::worker
