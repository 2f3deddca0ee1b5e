// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/workers/gpu_extents.h"

#include <utility>

namespace djinn::daemon {

// What workers ask for is not to be trusted.
void GpuExtents::create(ExtentUse, uint64_t bytes, Made made) {
  if (bytes == 0 || bytes % granularity_bytes() != 0) {
    return made(Error{ErrorCode::kInvalidArgument, "A GPU's memory comes in whole granules."});
  }
  gpu_.order(ipc::CreateExtent{bytes}, {}, [made = std::move(made)](Result<MoverAnswer> answer) {
    if (!answer) return made(answer.error());
    made(std::move(answer->extent));
  });
}

Status GpuExtents::seal(const Fd&) {
  return {};
}

Status GpuExtents::check_sealed(const Fd& extent, uint64_t bytes) const {
  if (is_extent_of_gpu(extent, bytes)) return {};
  return Error{ErrorCode::kInvalidArgument, "The descriptor is none of a GPU's memory."};
}

void GpuExtents::free(std::vector<Fd> extents, std::function<void()> freed) {
  gpu_.work().close(std::move(extents), std::move(freed));
}

void GpuExtents::decommit(std::span<const Fd> /*extents*/, std::function<void(bool)> done) {
  gpu_.work().run([] { return false; }, std::move(done));
}

}  // namespace djinn::daemon
