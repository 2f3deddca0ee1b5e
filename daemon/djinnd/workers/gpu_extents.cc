// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/workers/gpu_extents.h"

#include <utility>

#include "kernel/base/assert.h"

namespace djinn::daemon {

void GpuExtents::create(ExtentUse use, uint64_t bytes, Made made) {
  DJINN_ASSERT(use == ExtentUse::kWeights && bytes % granularity_bytes() == 0);
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
