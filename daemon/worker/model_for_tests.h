// SPDX-License-Identifier: Apache-2.0

// TestModel: a model as djinnd hands it to a worker: two extents, each with one tensor of four
// float32, "w" and "v".
#pragma once

#include <array>
#include <vector>

#include "ipc/codec/srg_codec.h"
#include "kernel/base/ids.h"
#include "kernel/pal/memfd.h"
#include "kernel/srg/load_plan.h"

namespace djinn::worker {

struct TestModel {
  static constexpr uint64_t kExtentBytes = 4096;
  static constexpr ModelId kId{11};

  srg::ModelManifest manifest{
      {kExtentBytes, kExtentBytes},
      {{"v", DType::kFloat32, {4}, 1, 64, 16}, {"w", DType::kFloat32, {2, 2}, 0, 0, 16}}};
  std::array<float, 4> w{1, 2, 3, 4};
  std::array<float, 4> v{5, 6, 7, 8};

  // The manifest alone if it is parked.
  [[nodiscard]] std::vector<Fd> fds(bool parked = false) const {
    std::vector<Fd> fds;
    fds.push_back(*pal::make_sealed_memfd("manifest", ipc::encode(manifest)));
    if (parked) return fds;
    fds.push_back(extent(w, 0));
    fds.push_back(extent(v, 64));
    return fds;
  }
  static Fd extent(const std::array<float, 4>& numbers, uint64_t offset) {
    std::vector<std::byte> bytes(kExtentBytes);
    memcpy(bytes.data() + offset, numbers.data(), sizeof numbers);
    return *pal::make_sealed_memfd("extent", bytes);
  }
};

}  // namespace djinn::worker
