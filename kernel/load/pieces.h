// SPDX-License-Identifier: Apache-2.0

// Cuts copy jobs into what one read brings: the unit of the read pipeline.
//
//   piece      a copy job small enough that all its source bytes fit a buffer
//   ReadUnit   consecutive pieces of one file whose bytes one read brings
//   buffer     the bytes of a unit, as they lie in the file
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernel/load/plan.h"

namespace djinn::load {

// A plain read: stays in a core's second-level cache until it is written to its extent.
constexpr uint64_t kPieceBytes = uint64_t{256} << 10;
// For a permuted copy more rows at a time make longer runs in the target.
constexpr uint64_t kPermutedPieceBytes = uint64_t{4} << 20;

// A schedule holds about 100 bytes a piece; as plain pieces these are a terabyte.
constexpr uint64_t kScheduledPiecesMax = 4'000'000;

struct ReadUnit {
  uint32_t file = 0;
  uint64_t offset = 0;  // in the file
  uint64_t bytes = 0;
  uint32_t first_piece = 0;
  uint32_t piece_count = 0;
};

// invariant: a unit's range holds the source bytes of each of its pieces; units are sorted by
// (file, offset); together the pieces are exactly the jobs.
struct ReadSchedule {
  std::vector<CopyJob> pieces;
  std::vector<ReadUnit> units;
  uint64_t unit_bytes_max = 0;
};

// Plain jobs are cut where the file's own multiples of piece_bytes lie, so that their units do not
// overlap even where reads must be aligned. Pure. Errors: kLimitExceeded (kScheduledPiecesMax).
Result<ReadSchedule> schedule_reads(std::span<const CopyJob> jobs,
                                    uint64_t piece_bytes = kPieceBytes,
                                    uint64_t permuted_piece_bytes = kPermutedPieceBytes);

// Copies one piece. source: the bytes from piece.file_offset on; target: those from
// piece.extent_offset on.
void copy_piece(const CopyJob& piece, const std::byte* source, std::byte* target);

// Whether copy_piece() would change nothing.
[[nodiscard]] bool equals_piece(const CopyJob& piece, const std::byte* source,
                                const std::byte* target);

}  // namespace djinn::load
