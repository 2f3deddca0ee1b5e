// SPDX-License-Identifier: Apache-2.0

#include "kernel/load/pieces.h"

#include <gmock/gmock.h>
#include <string.h>

#include <algorithm>
#include <numeric>

#include "kernel/base/checked.h"
#include "kernel/base/random.h"
#include "kernel/load/testing.h"

namespace djinn::load {
namespace {

// Bytes of a file, and what jobs should make of them, one element at a time.
struct World {
  std::string file;
  std::string target;
};

void copy_naively(const CopyJob& job, const World& world, std::string& target) {
  std::vector<uint64_t> at(job.loops.size(), 0);
  for (uint64_t count = job.written_bytes() / size_of(job.to); count > 0; --count) {
    uint64_t from = job.file_offset;
    uint64_t to = job.extent_offset;
    for (size_t i = 0; i < at.size(); ++i) {
      from += at[i] * job.loops[i].source_stride;
      to += at[i] * job.loops[i].target_stride;
    }
    memcpy(target.data() + to, world.file.data() + from, size_of(job.from));
    for (size_t i = at.size(); i-- > 0 && ++at[i] == job.loops[i].size;) at[i] = 0;
  }
}

// Runs a schedule as the pipeline does, with buffers that hold nothing but a unit's bytes.
std::string copy_by_schedule(const ReadSchedule& schedule, const World& world) {
  std::string target = world.target;
  for (const ReadUnit& unit : schedule.units) {
    const std::vector<char> buffer(
        world.file.begin() + static_cast<ptrdiff_t>(unit.offset),
        world.file.begin() + static_cast<ptrdiff_t>(unit.offset + unit.bytes));
    for (uint32_t i = unit.first_piece; i < unit.first_piece + unit.piece_count; ++i) {
      const CopyJob& piece = schedule.pieces[i];
      EXPECT_TRUE(range_fits(piece.file_offset - unit.offset, piece.source_bytes(), unit.bytes));
      const auto* const source = reinterpret_cast<const std::byte*>(buffer.data());
      copy_piece(piece, source + (piece.file_offset - unit.offset),
                 reinterpret_cast<std::byte*>(target.data()) + piece.extent_offset);
    }
  }
  return target;
}

// A job over a contiguous tensor of random rank: sliced, and perhaps permuted in its target.
CopyJob random_job(Random& random, uint64_t file_offset, uint64_t extent_offset) {
  const DType dtypes[] = {DType::kUInt8, DType::kFloat16, DType::kFloat32, DType::kInt64};
  CopyJob job{0, 0, file_offset, extent_offset, dtypes[random.below(4)], DType::kInvalid, {}};
  job.to = job.from;
  const size_t rank = random.below(4);
  uint64_t source_stride = size_of(job.from);
  for (size_t i = 0; i < rank; ++i) {
    const uint64_t size = 2 + random.below(40);
    job.loops.insert(job.loops.begin(), Loop{1 + random.below(size), source_stride, 0});
    source_stride *= size;
  }
  std::vector<size_t> order(rank);
  std::iota(order.begin(), order.end(), 0u);
  if (rank >= 2 && random.below(2) == 0) std::swap(order[rank - 1], order[rank - 2]);
  uint64_t target_stride = size_of(job.to);
  for (size_t i = rank; i-- > 0;) {
    job.loops[order[i]].target_stride = target_stride;
    target_stride *= job.loops[order[i]].size + random.below(2);
  }
  std::erase_if(job.loops, [](const Loop& loop) { return loop.size == 1; });
  return job;
}

bool equals_by_schedule(const ReadSchedule& schedule, const std::string& file,
                        const std::string& target) {
  return std::ranges::all_of(schedule.pieces, [&](const CopyJob& piece) {
    return equals_piece(piece, testing::bytes_of(file).data() + piece.file_offset,
                        testing::bytes_of(target).data() + piece.extent_offset);
  });
}

// What was copied is equal, and one changed byte of it is not; a byte of a gap is nobody's.
void expect_told_apart(const ReadSchedule& schedule, const std::string& file, std::string target,
                       Random& random) {
  ASSERT_TRUE(equals_by_schedule(schedule, file, target));
  // A gap is what keeps the background, whatever that is.
  const std::string on_zeros = copy_by_schedule(schedule, {file, std::string(target.size(), '0')});
  const std::string on_ones = copy_by_schedule(schedule, {file, std::string(target.size(), '1')});
  const uint64_t at = random.below(target.size());
  target[at] = static_cast<char>(target[at] ^ 1);
  EXPECT_EQ(equals_by_schedule(schedule, file, target), on_zeros[at] != on_ones[at]);
}

TEST(Pieces, cut_jobs_copy_what_whole_jobs_copy) {
  Random random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<CopyJob> jobs;
    uint64_t file_bytes = random.below(100);
    uint64_t target_bytes = 0;
    for (uint64_t count = 1 + random.below(6); count > 0; --count) {
      jobs.push_back(random_job(random, file_bytes, target_bytes));
      file_bytes += jobs.back().source_bytes() + random.below(200);
      target_bytes += jobs.back().target_bytes() + random.below(64);
    }
    const World world{testing::random_bytes(random, file_bytes), std::string(target_bytes, '-')};
    std::string expected = world.target;
    for (const CopyJob& job : jobs) copy_naively(job, world, expected);
    const auto schedule = schedule_reads(jobs, 64 + random.below(5000), 64 + random.below(5000));
    ASSERT_TRUE(schedule);
    ASSERT_EQ(copy_by_schedule(*schedule, world), expected) << "round " << round;
    expect_told_apart(*schedule, world.file, expected, random);
  }
}

TEST(Pieces, plain_units_follow_the_files_grid_and_never_overlap) {
  const CopyJob first{0, 0, 100, 0, DType::kFloat32, DType::kFloat32, {{1000, 4, 4}}};
  const CopyJob second{0, 0, 4100, 4032, DType::kInt8, DType::kInt8, {{50, 1, 1}}};
  const CopyJob jobs[] = {first, second};
  const auto schedule = schedule_reads(jobs, 1024);
  ASSERT_TRUE(schedule);
  ASSERT_EQ(schedule->units.size(), 5u);
  uint64_t end = 100;
  for (const ReadUnit& unit : schedule->units) {
    EXPECT_EQ(unit.offset, end);
    EXPECT_EQ(unit.offset / 1024, (unit.offset + unit.bytes - 1) / 1024);
    end = unit.offset + unit.bytes;
  }
  EXPECT_EQ(end, 4150u);
  EXPECT_EQ(schedule->units.back().piece_count, 2u);
}

TEST(Pieces, wide_gaps_are_not_read) {
  constexpr uint64_t kRow = uint64_t{1} << 20;
  const CopyJob column{0, 0, 0, 0, DType::kUInt8, DType::kUInt8, {{8, kRow, 100}, {100, 1, 1}}};
  const auto schedule = schedule_reads(std::span(&column, 1), 4 << 20);
  ASSERT_TRUE(schedule);
  uint64_t read = 0;
  for (const ReadUnit& unit : schedule->units) read += unit.bytes;
  EXPECT_EQ(read, 800u);
}

TEST(Pieces, once_a_plan_of_endless_pieces_is_refused) {
  const CopyJob sparse{
      0, 0, 0, 0, DType::kUInt8, DType::kUInt8, {{kScheduledPiecesMax + 1, uint64_t{1} << 20, 1}}};
  EXPECT_EQ(testing::code_of(schedule_reads(std::span(&sparse, 1))), ErrorCode::kLimitExceeded);
}

}  // namespace
}  // namespace djinn::load
