// SPDX-License-Identifier: Apache-2.0

#include "kernel/load/pieces.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>

#include "kernel/base/int8_rows.h"
#include "kernel/load/cast.h"
#include "kernel/load/int8_row.h"

namespace djinn::load {
namespace {

// To skip this many bytes is worth a read of its own.
constexpr uint64_t kGapBytes = uint64_t{64} << 10;

// --- cutting ------------------------------------------------------------------------------------

// If a job is permuted, its target is not walked in the order of its source.
bool permuted(const CopyJob& job) {
  return std::adjacent_find(job.loops.begin(), job.loops.end(), [](const Loop& a, const Loop& b) {
           return a.target_stride < b.target_stride;
         }) != job.loops.end();
}

// Gives the part [start, start + count) of a job's outermost loop.
CopyJob part_of_loop(const CopyJob& job, uint64_t start, uint64_t count) {
  CopyJob part = job;
  part.file_offset += start * job.loops[0].source_stride;
  part.extent_offset += start * job.loops[0].target_stride;
  if (count == 1) {
    part.loops.erase(part.loops.begin());
  } else {
    part.loops[0].size = count;
  }
  return part;
}

Status add_piece(CopyJob piece, std::vector<CopyJob>& out) {
  if (out.size() == kScheduledPiecesMax) {
    return Error{
        ErrorCode::kLimitExceeded,
        "The load plan reads the files in too many pieces. Slice outer dimensions only, or "
        "load whole tensors."};
  }
  out.push_back(std::move(piece));
  return {};
}

Status cut_plain(const CopyJob& job, uint64_t piece_bytes, std::vector<CopyJob>& out) {
  const uint64_t bytes = job.source_bytes();
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t at = job.file_offset + done;
    const uint64_t count = std::min(bytes - done, piece_bytes - at % piece_bytes);
    out.push_back({job.file,
                   job.extent,
                   at,
                   job.extent_offset + done,
                   DType::kUInt8,
                   DType::kUInt8,
                   {{count, 1, 1}},
                   0});
    done += count;
  }
  return {};
}

// Gives how many turns of the outermost loop one piece may take; 1 if the gaps between turns are
// better not read.
uint64_t turns_per_piece(const CopyJob& job, uint64_t piece_bytes) {
  const Loop& outer = job.loops[0];
  const uint64_t turn_bytes = job.source_bytes() - (outer.size - 1) * outer.source_stride;
  if (turn_bytes > piece_bytes || outer.source_stride - turn_bytes >= kGapBytes) return 1;
  return (piece_bytes - turn_bytes) / outer.source_stride + 1;
}

// Recursion is as deep as the job has loops.
Status cut_shaped(const CopyJob& job, uint64_t piece_bytes, std::vector<CopyJob>& out) {
  // A row that becomes int8 is not cut, however long it is.
  if (job.source_bytes() <= piece_bytes || job.loops.empty()) {
    return add_piece(job, out);
  }
  const uint64_t turns = turns_per_piece(job, piece_bytes);
  for (uint64_t start = 0; start < job.loops[0].size; start += turns) {
    const uint64_t count = std::min(turns, job.loops[0].size - start);
    DJINN_CHECK(cut_shaped(part_of_loop(job, start, count), piece_bytes, out));
  }
  return {};
}

// --- grouping -----------------------------------------------------------------------------------

// Tells whether a unit can take the piece too, in one read of at most piece_bytes and without a
// large gap.
bool joins(const ReadUnit& unit, const CopyJob& piece, uint64_t piece_bytes) {
  const uint64_t unit_end = unit.offset + unit.bytes;
  const uint64_t end = std::max(unit_end, piece.file_offset + piece.source_bytes());
  return unit.file == piece.file && end - unit.offset <= piece_bytes &&
         piece.file_offset < unit_end + kGapBytes &&
         unit.offset / piece_bytes == (end - 1) / piece_bytes;
}

void group(ReadSchedule& schedule, uint64_t piece_bytes) {
  for (uint32_t i = 0; i < schedule.pieces.size(); ++i) {
    const CopyJob& piece = schedule.pieces[i];
    auto& units = schedule.units;
    if (units.empty() || !joins(units.back(), piece, piece_bytes)) {
      units.push_back({piece.file, piece.file_offset, 0, i, 0});
    }
    ReadUnit& unit = units.back();
    const uint64_t end = piece.file_offset + piece.source_bytes();
    unit.bytes = std::max(unit.bytes, end - unit.offset);
    ++unit.piece_count;
    schedule.unit_bytes_max = std::max(schedule.unit_bytes_max, unit.bytes);
  }
}

// --- copying ------------------------------------------------------------------------------------

// The short side of a tile has this many elements: a cache line of float32.
constexpr uint64_t kTileElements = 16;

struct Block {
  ElementCopy copy;
  const std::byte* source;
  std::byte* target;
};

Block advanced(const Block& block, const Loop& loop, uint64_t turns) {
  return {block.copy, block.source + turns * loop.source_stride,
          block.target + turns * loop.target_stride};
}

void copy_run(const Block& block, const Loop& loop) {
  block.copy(block.source, loop.source_stride, block.target, loop.target_stride, loop.size);
}

// Copies two loops whose order in the source is not that of the target. Runs go along the target,
// and a tile of runs stays in the cache until its source lines are used up.
void copy_transposed(const Block& block, const Loop& runs, const Loop& across) {
  constexpr uint64_t kRunElements = 256;
  for (uint64_t i = 0; i < across.size; i += kTileElements) {
    const uint64_t tile = std::min(kTileElements, across.size - i);
    for (uint64_t start = 0; start < runs.size; start += kRunElements) {
      const Loop run{std::min(kRunElements, runs.size - start), runs.source_stride,
                     runs.target_stride};
      for (uint64_t j = i; j < i + tile; ++j) {
        copy_run(advanced(advanced(block, across, j), runs, start), run);
      }
    }
  }
}

void copy_loops(const Block& block, std::span<const Loop> loops) {
  if (loops.empty()) return copy_run(block, {1, 0, 0});
  if (loops.size() == 1) return copy_run(block, loops[0]);
  if (loops.size() == 2 && loops[0].target_stride < loops[1].target_stride) {
    return copy_transposed(block, loops[0], loops[1]);
  }
  for (uint64_t i = 0; i < loops[0].size; ++i) {
    copy_loops(advanced(block, loops[0], i), loops.subspan(1));
  }
}

// --- rows that become int8 -----------------------------------------------------------------------

// Calls use(), for each row, with where it begins in source and target.
template <typename Use>
void for_each_row(const CopyJob& piece, Use use) {
  DJINN_ASSERT(piece.columns > 0 && piece.loops.size() <= 1);
  const Loop rows = piece.loops.empty() ? Loop{1, 0, 0} : piece.loops[0];
  for (uint64_t row = 0; row < rows.size; ++row) {
    use(row * rows.source_stride, row * rows.target_stride);
  }
}

void copy_rows(const CopyJob& piece, const std::byte* source, std::byte* target) {
  for_each_row(piece, [&](uint64_t from, uint64_t to) {
    make_int8_row(source + from, piece.from, piece.to, piece.columns, target + to);
  });
}

bool equals_rows(const CopyJob& piece, const std::byte* source, const std::byte* target) {
  std::vector<std::byte> made(int8_row_bytes(piece.columns));
  bool same = true;
  for_each_row(piece, [&](uint64_t from, uint64_t to) {
    if (!same) return;
    make_int8_row(source + from, piece.from, piece.to, piece.columns, made.data());
    same = std::memcmp(made.data(), target + to, made.size()) == 0;
  });
  return same;
}

// --- comparing ----------------------------------------------------------------------------------

struct Comparison {
  ElementCopy copy;
  uint64_t width;  // bytes of an element in the target
  const std::byte* source;
  const std::byte* target;
};

bool equals_run(const Comparison& at, const Loop& loop) {
  constexpr uint64_t kBufferBytes = 4096;
  std::array<std::byte, kBufferBytes> made;
  const uint64_t at_once = kBufferBytes / at.width;
  for (uint64_t done = 0; done < loop.size; done += at_once) {
    const uint64_t count = std::min(at_once, loop.size - done);
    at.copy(at.source + done * loop.source_stride, loop.source_stride, made.data(), at.width,
            count);
    for (uint64_t i = 0; i < count; ++i) {
      const std::byte* const there = at.target + (done + i) * loop.target_stride;
      if (std::memcmp(made.data() + i * at.width, there, at.width) != 0) return false;
    }
  }
  return true;
}

bool equals_loops(const Comparison& at, std::span<const Loop> loops) {
  if (loops.empty()) return equals_run(at, {1, 0, 0});
  if (loops.size() == 1) return equals_run(at, loops[0]);
  for (uint64_t i = 0; i < loops[0].size; ++i) {
    const Comparison next{at.copy, at.width, at.source + i * loops[0].source_stride,
                          at.target + i * loops[0].target_stride};
    if (!equals_loops(next, loops.subspan(1))) return false;
  }
  return true;
}

}  // namespace

Result<ReadSchedule> schedule_reads(std::span<const CopyJob> jobs, uint64_t piece_bytes,
                                    uint64_t permuted_piece_bytes) {
  ReadSchedule schedule;
  for (const CopyJob& job : jobs) {
    if (job.plain()) {
      DJINN_CHECK(cut_plain(job, piece_bytes, schedule.pieces));
    } else {
      DJINN_CHECK(
          cut_shaped(job, permuted(job) ? permuted_piece_bytes : piece_bytes, schedule.pieces));
    }
  }
  std::stable_sort(schedule.pieces.begin(), schedule.pieces.end(),
                   [](const CopyJob& a, const CopyJob& b) {
                     return std::tuple(a.file, a.file_offset) < std::tuple(b.file, b.file_offset);
                   });
  group(schedule, piece_bytes);
  return schedule;
}

void copy_piece(const CopyJob& piece, const std::byte* source, std::byte* target) {
  if (piece.columns > 0) return copy_rows(piece, source, target);
  const auto copy = element_copy(piece.from, piece.to);
  DJINN_ASSERT(copy.ok());  // resolve() refused all others
  copy_loops({*copy, source, target}, piece.loops);
}

bool equals_piece(const CopyJob& piece, const std::byte* source, const std::byte* target) {
  if (piece.plain()) return std::memcmp(source, target, piece.source_bytes()) == 0;
  if (piece.columns > 0) return equals_rows(piece, source, target);
  const auto copy = element_copy(piece.from, piece.to);
  DJINN_ASSERT(copy.ok());  // resolve() refused all others
  return equals_loops({*copy, size_of(piece.to), source, target}, piece.loops);
}

}  // namespace djinn::load
