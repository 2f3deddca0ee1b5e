// SPDX-License-Identifier: Apache-2.0

// From a load plan and the files' indexes to what to copy where: names and shapes are gone, byte
// ranges and strides are left.
//
//   CopyJob    one strided block: elements at a file's offset, to a place in an extent; or rows of
//              them, each of which becomes int8 there
//   Loop       one dimension of a job; strides are bytes
//   ReadPlan   the manifest that the model will have, and the jobs that make its bytes
//
// invariants of a resolved plan: each job's reads lie inside its file and its writes inside its
// extent; no byte is written by two jobs; every byte of every tensor is written by one; jobs are
// sorted by (file, file_offset); loops are sorted by falling source stride, none of size 1, none
// that could be merged with its neighbour; no loop means one element. Of rows that become int8
// there is the loop over rows, or none for one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernel/base/alignment.h"
#include "kernel/base/dtype.h"
#include "kernel/base/result.h"
#include "kernel/load/safetensors.h"
#include "kernel/srg/load_plan.h"

namespace djinn::load {

constexpr uint64_t kExtentGranule = 4096;  // extents are whole pages
constexpr uint64_t kExtentBytesMax = uint64_t{64} << 30;
constexpr uint32_t kPiecesMax = 4'000'000;  // a plan; four full files, each tensor on its own

struct Loop {
  uint64_t size = 0;
  uint64_t source_stride = 0;
  uint64_t target_stride = 0;
  friend bool operator==(const Loop&, const Loop&) = default;
};

struct CopyJob {
  uint32_t file = 0;
  uint32_t extent = 0;
  uint64_t file_offset = 0;    // of the first element, which no other element of the job precedes
  uint64_t extent_offset = 0;  // likewise
  DType from = DType::kInvalid;
  DType to = DType::kInvalid;
  std::vector<Loop> loops;
  uint64_t columns = 0;  // of rows that become int8 (int8_row.h); 0: elements are copied

  // Bytes from the first element's begin to the last one's end.
  [[nodiscard]] uint64_t source_bytes() const;
  [[nodiscard]] uint64_t target_bytes() const;
  // Bytes of its elements in the extent, gaps left out.
  [[nodiscard]] uint64_t written_bytes() const;
  // The bytes are copied as they lie, without gaps.
  [[nodiscard]] bool plain() const;
  friend bool operator==(const CopyJob&, const CopyJob&) = default;
};

struct ReadPlan {
  srg::ModelManifest manifest;
  std::vector<CopyJob> jobs;
  uint64_t written_bytes = 0;  // sum over jobs: what progress is measured against
};

// Pure. An empty plan takes every tensor of every file under its own name. Tensors are laid out in
// the order in which their first bytes lie in the files, aligned to kTensorAlignment, in as few
// extents as extent_bytes_max (a multiple of kExtentGranule) allows; the layout depends on nothing
// else. Extent sizes are multiples of kExtentGranule.
//
// Errors: kNotFound (file or tensor), kAlreadyExists (a name twice: destinations, aliases, tensors
// of two files), kInvalidArgument (no tensor at all, a destination without pieces or dtype, a slice
// of a dimension twice, transposition below two dimensions), kOutOfRange (slice or concatenation
// outside the dimensions, overflow), kShapeMismatch (pieces that do not give the destination's
// sizes), kUnsupported (cast; int8 of what is no matrix of floats of 16 or 32 bits, or whose rows
// do not lie dense in the files), kLimitExceeded (pieces, dimensions, a tensor larger than an
// extent, srg::kInt8ColumnsMax).
Result<ReadPlan> resolve(const srg::LoadPlan& plan, std::span<const SafetensorsIndex> files,
                         uint64_t extent_bytes_max = kExtentBytesMax);

}  // namespace djinn::load
