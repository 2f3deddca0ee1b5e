// SPDX-License-Identifier: Apache-2.0

// The read pipeline: makes a resolved plan's bytes.
//
//   SourceFile     where bytes come from (source.h)
//   ExtentTarget   where they go: an extent's memfd, and its writable mapping
//   LoadStats      how they came, for logs and djinnctl: a slower path is never silent
//
// Units are read to a buffer and copied from there. Plain pieces are written to the memfd, which
// costs a page fault for each 2 MiB, and zeroes no small page that is filled at once; all others
// are copied through the mapping, whose pages are populated ahead, so that no touch can meet a
// machine without memory. Where a disk or a cast is in the way, several threads share the units.
//
// The whole of a loader is: identify each file, read_index each, resolve, make and map the extents
// of the manifest, execute, unmap, seal; then ModelHasher at idle priority.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>

#include "kernel/base/clock.h"
#include "kernel/base/fd.h"
#include "kernel/base/result.h"
#include "kernel/load/plan.h"
#include "kernel/load/source.h"

namespace djinn::load {

struct ExtentTarget {
  const Fd* memfd = nullptr;
  std::span<std::byte> mapped;  // writable and shared; of the manifest's size for this extent
};

struct LoadStats {
  uint64_t read_bytes = 0;    // from files, gaps that were read over included
  uint32_t files_cached = 0;  // by how they were read; see ReadMode
  uint32_t files_direct = 0;
  uint32_t files_direct_refused = 0;  // the slower path: through the page cache from the disk
};

struct ExecuteOptions {
  const Clock* clock = nullptr;  // required
  bool direct = true;            // false: never O_DIRECT
  // Called after units on the calling thread, with bytes written so far and ReadPlan's
  // written_bytes; with all of them while a file is read a second time. False cancels the load.
  std::function<bool(uint64_t done_bytes, uint64_t total_bytes)> progress;
  // Told which file an error is about, where it is about one; or null.
  std::atomic<size_t>* bad_file = nullptr;
};

// Fills the extents, which are fresh (all zero), and commits every page of them: in huge pages
// where the host allows that (kernel/pal/huge_pages.h) and has some. Blocks; uses at most three
// threads besides the caller's, which have ended when this returns. On an error the extents hold
// anything and are to be dropped; the descriptors' flags are back as they were.
//
// Files of which it is not proven that nobody had them open for writing (lease.h) are read a second
// time: what is not the same then was torn.
//
// Errors: kFileChanged (a file is not what it was when identified, before or after, or torn), kIo,
// kOutOfMemory (extents or buffers), kCancelled, kInvalidArgument (targets that do not fit the
// manifest, fewer files than the plan reads), kLimitExceeded (see schedule_reads).
Result<LoadStats> execute(const ReadPlan& plan, std::span<const SourceFile> files,
                          std::span<const ExtentTarget> targets, const ExecuteOptions& options);

// Whether the files hold what execute() would fill the extents with. Reads all of them, but for
// models that differ much, which a few places tell; seed: where those lie, so that nobody learns
// from the time how much of another's model they have guessed. extents: of the manifest's sizes.
// Errors: as execute().
Result<bool> compare(const ReadPlan& plan, std::span<const SourceFile> files,
                     std::span<const std::span<const std::byte>> extents,
                     const ExecuteOptions& options, uint64_t seed);

}  // namespace djinn::load
