// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/slab_content.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernel/base/assert.h"

namespace djinn::exec {

void SlabContent::zero(std::span<std::byte> range) {
  if (memory_ == nullptr) {
    std::memset(range.data(), 0, range.size());
  } else {
    memory_->zero(range.data(), range.size());
  }
}

void SlabContent::make_clean(std::span<std::byte> slab, uint64_t begin, uint64_t end,
                             uint64_t owner) {
  DJINN_ASSERT(begin <= end && end <= slab.size());
  const auto has_all = [&](const Part& part) {
    return part.owner == owner && part.begin <= begin && end <= part.end;
  };
  if (begin == end || std::ranges::any_of(parts_, has_all)) return;
  next_.clear();
  Part own{begin, end, owner};
  for (const Part& part : parts_) {
    const uint64_t from = std::max(part.begin, begin), to = std::min(part.end, end);
    if (part.owner == owner && part.end >= begin && part.begin <= end) {
      own = {std::min(own.begin, part.begin), std::max(own.end, part.end), owner};
      continue;
    }
    if (from < to) zero(slab.subspan(from, to - from));
    if (part.begin < std::min(part.end, begin)) {
      next_.push_back({part.begin, std::min(part.end, begin), part.owner});
    }
    if (std::max(part.begin, end) < part.end) {
      next_.push_back({std::max(part.begin, end), part.end, part.owner});
    }
  }
  next_.push_back(own);
  std::ranges::sort(next_, {}, &Part::begin);
  std::swap(parts_, next_);
}

}  // namespace djinn::exec
