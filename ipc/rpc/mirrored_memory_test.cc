// SPDX-License-Identifier: Apache-2.0

#include "ipc/rpc/mirrored_memory.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernel/base/random.h"

namespace djinn::rpc {
namespace {

using ipc::StagingRange;

constexpr uint64_t kStaging = 8192;

TEST(Pieces, are_apart_short_and_cover_what_lies_in_the_slab_and_nothing_else) {
  Random random(5);
  for (int round = 0; round < 500; ++round) {
    std::vector<StagingRange> ranges(random.below(8));
    for (StagingRange& range : ranges) range = {random.below(300), random.below(300)};
    const uint64_t staging = 1 + random.below(500);
    const uint64_t most = 1 + random.below(64);
    std::vector<int> wanted(700);
    for (const StagingRange& range : ranges) {
      if (range.offset + range.bytes > staging) continue;
      std::fill_n(wanted.begin() + static_cast<long>(range.offset), range.bytes, 1);
    }
    std::vector<int> got(wanted.size());
    const auto pieces = pieces_of(ranges, staging, most);
    for (const StagingRange& piece : pieces) {
      EXPECT_GT(piece.bytes, 0u);
      EXPECT_LE(piece.bytes, most);
      for (uint64_t i = 0; i < piece.bytes; ++i) ++got[piece.offset + i];
    }
    EXPECT_EQ(got, wanted);
    EXPECT_EQ(bytes_of(pieces), static_cast<uint64_t>(std::ranges::count(wanted, 1)));
  }
}

TEST(Pieces, a_range_whose_end_cannot_be_told_is_left_out) {
  EXPECT_TRUE(pieces_of({{UINT64_MAX, 2}, {1, UINT64_MAX}}, kStaging, 64).empty());
}

TEST(MirroredMemory, staging_lies_where_session_memory_has_it) {
  MirroredMemory one = MirroredMemory::make(kStaging).value();
  const std::vector<std::byte> bytes(100, std::byte{7});
  ASSERT_TRUE(one.write(kStaging - bytes.size(), bytes));
  const MirroredMemory other =
      MirroredMemory::adopt(one.fd().duplicate().value(), kStaging).value();
  EXPECT_EQ(other.read({kStaging - bytes.size(), bytes.size()}).value(), bytes);
  EXPECT_EQ(other.read({0, 1}).value(), std::vector{std::byte{0}});
  const uint64_t end = ipc::SessionLayout::bytes(kStaging);
  EXPECT_EQ(pal::read_memfd(one.fd(), bytes.size(), end - bytes.size()).value(), bytes);
}

TEST(MirroredMemory, what_is_not_session_memory_of_that_size_is_refused) {
  const MirroredMemory one = MirroredMemory::make(kStaging).value();
  EXPECT_FALSE(MirroredMemory::adopt(one.fd().duplicate().value(), kStaging * 2));
  EXPECT_FALSE(MirroredMemory::adopt(one.fd().duplicate().value(), UINT64_MAX));
  Fd unsealed = pal::make_memfd("unsealed", ipc::SessionLayout::bytes(kStaging)).value();
  EXPECT_FALSE(MirroredMemory::adopt(std::move(unsealed), kStaging));
}

}  // namespace
}  // namespace djinn::rpc
