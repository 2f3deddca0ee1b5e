// SPDX-License-Identifier: Apache-2.0

#include "kernel/load/execute.h"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "kernel/base/checked.h"
#include "kernel/base/random.h"
#include "kernel/load/lease.h"
#include "kernel/load/pieces.h"
#include "kernel/pal/huge_pages.h"
#include "kernel/pal/memfd.h"

namespace djinn::load {
namespace {

Error about_file(size_t file, const Error& error, const ExecuteOptions& options) {
  if (options.bad_file != nullptr) *options.bad_file = file;
  return error;
}

// Pages are populated in blocks of this size: that takes few calls, and few pages that nobody
// needed.
constexpr uint64_t kPopulateBytes = pal::kHugePageBytes;
constexpr uint64_t kTouchBytes = 4096;  // of a block that is to be huge: a page
// A unit of this size is large enough to read from a disk at full speed, and small enough to
// overlap.
constexpr uint64_t kDiskPieceBytes = uint64_t{1} << 20;
// These threads work besides the calling one. A disk is busy only while one of them waits for it,
// and at times two of them copy. From the page cache, a plain copy is bound by memory, so more
// threads would not help; a cast is bound by the core.
constexpr size_t kDiskHelpers = 3;

// --- targets ------------------------------------------------------------------------------------

// Holds one extent while it is written. Any thread may write; no two write the same bytes.
class Target {
 public:
  explicit Target(const ExtentTarget& extent)
      : extent_(extent),
        begun_(extent.mapped.size() / pal::kHugePageBytes, false),
        populated_(extent.mapped.size() / kPopulateBytes + 1, false) {
    pal::ask_for_huge_pages(extent.mapped);
  }

  // One thread writes at a time: the kernel lets only one into a file, and the others would spin.
  Status write(std::span<const std::byte> bytes, uint64_t offset) {
    const std::scoped_lock lock(writing_);
    DJINN_CHECK(begin_blocks(offset, bytes.size()));
    while (!bytes.empty()) {
      const ssize_t count =
          ::pwrite(extent_.memfd->get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return system_error("write a model's memory", count < 0 ? errno : ENOSPC);
      bytes = bytes.subspan(static_cast<size_t>(count));
      offset += static_cast<uint64_t>(count);
    }
    return {};
  }

  // Gives the mapped bytes from `offset` on, and makes [offset, offset + bytes) safe to touch.
  Result<std::byte*> touchable(uint64_t offset, uint64_t bytes) {
    const std::scoped_lock lock(mutex_);
    for (uint64_t block = offset / kPopulateBytes; block * kPopulateBytes < offset + bytes;
         ++block) {
      if (populated_[block]) continue;
      const uint64_t start = block * kPopulateBytes;
      const uint64_t length = std::min(kPopulateBytes, extent_.mapped.size() - start);
      DJINN_CHECK(pal::populate_write(extent_.mapped.subspan(start, length)));
      populated_[block] = true;
    }
    return extent_.mapped.data() + offset;
  }

  // Commits what no piece touched: pages of padding. It asks first how much is committed, because
  // committing pages that are there costs a walk over all of them. More than the extent's bytes is
  // committed where the host gives every memfd huge pages, and the last one ends behind the extent:
  // then the sum tells nothing.
  Status commit_rest() {
    struct stat info {};
    if (::fstat(extent_.memfd->get(), &info) != 0) {
      return system_error("look at a model's memory", errno);
    }
    const uint64_t committed_bytes = static_cast<uint64_t>(info.st_blocks) * 512;
    if (committed_bytes == extent_.mapped.size()) return {};
    return pal::commit_ahead(*extent_.memfd, 0, extent_.mapped.size());
  }

 private:
  // Touches each block through the mapping before something is written to it: a write alone takes
  // no huge page. Where the host allows none, this takes one page of the 512.
  Status begin_blocks(uint64_t offset, uint64_t bytes) {
    constexpr uint64_t kBlock = pal::kHugePageBytes;
    const uint64_t end = std::min(begun_.size(), (offset + bytes + kBlock - 1) / kBlock);
    for (uint64_t block = offset / kBlock; block < end; ++block) {
      if (begun_[block]) continue;
      DJINN_CHECK(pal::populate_write(extent_.mapped.subspan(block * kBlock, kTouchBytes)));
      begun_[block] = true;
    }
    return {};
  }

  ExtentTarget extent_;
  std::mutex writing_;
  std::vector<bool> begun_;  // by block of a huge page, but the last if it is none; of writing_
  std::mutex mutex_;
  std::vector<bool> populated_;  // by block; guarded by mutex_
};

Status put_piece(const CopyJob& piece, const std::byte* source, Target& target) {
  if (piece.plain()) return target.write({source, piece.source_bytes()}, piece.extent_offset);
  DJINN_TRY(std::byte* const at, target.touchable(piece.extent_offset, piece.target_bytes()));
  copy_piece(piece, source, at);
  return {};
}

// --- buffers ------------------------------------------------------------------------------------

// Makes page-aligned memory that lives as long as the load.
Result<pal::Mapping> make_buffer(uint64_t bytes) {
  void* const at =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return system_error("make a read buffer", errno);
  return pal::Mapping(static_cast<std::byte*>(at), bytes);
}

// --- the crew -----------------------------------------------------------------------------------

// One load's work is shared by these threads: each takes the next unit, reads it to a buffer of its
// own and uses its pieces. So the disk is busy while bytes are copied, and neither reading nor
// copying is bound to one core.
class Crew {
 public:
  // Uses one piece, whose bytes are at `source`. Any thread may call it.
  using Use = std::function<Status(const CopyJob& piece, const std::byte* source)>;

  Crew(const ReadSchedule& schedule, std::span<const ReadUnit> units,
       std::vector<SourceReader>& sources, Use use, uint64_t total_bytes,
       const ExecuteOptions& options)
      : schedule_(schedule),
        units_(units),
        sources_(sources),
        use_(std::move(use)),
        total_bytes_(total_bytes),
        options_(options) {}
  ~Crew() { DJINN_ASSERT(helpers_.empty()); }
  Crew(const Crew&) = delete;

  // Works on the calling thread and on `helpers` more.
  Status run(size_t helpers) {
    Status status = start_helpers(helpers);
    if (status) status = work_or_stop(true);
    for (Helper& helper : helpers_) {
      ::pthread_join(helper.thread, nullptr);
      if (status) status = std::move(helper.status);
    }
    helpers_.clear();
    return status ? report() : status;
  }

 private:
  struct Helper {
    Crew* crew;
    pthread_t thread;
    Status status;  // the helper's until it is joined
  };

  static void* help(void* argument) {
    auto* const helper = static_cast<Helper*>(argument);
    helper->status = helper->crew->work_or_stop(false);
    return nullptr;
  }

  Status start_helpers(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      Helper& helper = helpers_.emplace_back(Helper{this, {}, {}});
      const int error = ::pthread_create(&helper.thread, nullptr, &Crew::help, &helper);
      if (error == 0) continue;
      helpers_.pop_back();
      stopped_ = true;
      return system_error("start a reading thread", error);
    }
    return {};
  }

  // An error on one thread stops all threads.
  Status work_or_stop(bool reporting) {
    Status status = work(reporting);
    if (!status) stopped_ = true;
    return status;
  }

  Status work(bool reporting) {
    const uint64_t bytes = schedule_.unit_bytes_max + 2 * kDirectAlignment;
    DJINN_TRY(const pal::Mapping buffer, make_buffer(*align_up(bytes, kDirectAlignment)));
    for (size_t i = next_unit_++; i < units_.size() && !stopped_; i = next_unit_++) {
      DJINN_CHECK(take_unit(units_[i], buffer.bytes()));
      if (reporting) DJINN_CHECK(report());
    }
    return {};
  }

  Status take_unit(const ReadUnit& unit, std::span<std::byte> buffer) {
    const auto read = sources_[unit.file].read(unit.offset, unit.bytes, buffer);
    if (!read) return about_file(unit.file, read.error(), options_);
    const std::byte* const bytes = *read;
    const auto pieces = std::span(schedule_.pieces).subspan(unit.first_piece, unit.piece_count);
    for (const CopyJob& piece : pieces) {
      DJINN_CHECK(use_(piece, bytes + (piece.file_offset - unit.offset)));
      done_bytes_ += piece.written_bytes();
    }
    return {};
  }

  // Tells new progress. Only the calling thread may do this.
  Status report() {
    const uint64_t done = done_bytes_;
    if (!options_.progress || done == reported_bytes_) return {};
    reported_bytes_ = done;
    if (options_.progress(done, total_bytes_)) return {};
    return Error{ErrorCode::kCancelled, "The load was cancelled."};
  }

  const ReadSchedule& schedule_;
  const std::span<const ReadUnit> units_;
  std::vector<SourceReader>& sources_;
  const Use use_;
  const uint64_t total_bytes_;
  const ExecuteOptions& options_;

  std::atomic<size_t> next_unit_ = 0;
  std::atomic<uint64_t> done_bytes_ = 0;
  std::atomic<bool> stopped_ = false;
  uint64_t reported_bytes_ = 0;  // calling thread only
  std::deque<Helper> helpers_;   // which stay where they are
};

// --- the load -----------------------------------------------------------------------------------

bool fits(const ExtentTarget& target, uint64_t bytes) {
  return target.memfd != nullptr && target.mapped.size() == bytes;
}
bool fits(std::span<const std::byte> extent, uint64_t bytes) {
  return extent.size() == bytes;
}

template <typename Extent>
Status check_arguments(const ReadPlan& plan, std::span<const SourceFile> files,
                       std::span<const Extent> extents) {
  const bool extents_fit =
      std::ranges::equal(extents, plan.manifest.extent_bytes,
                         [](const Extent& extent, uint64_t bytes) { return fits(extent, bytes); });
  if (!extents_fit) {
    return Error{ErrorCode::kInvalidArgument, "The extents are not those of the manifest."};
  }
  const bool files_fit = std::all_of(plan.jobs.begin(), plan.jobs.end(), [&](const CopyJob& job) {
    return job.file < files.size() &&
           range_fits(job.file_offset, job.source_bytes(), files[job.file].identity.bytes);
  });
  if (files_fit) return {};
  return Error{ErrorCode::kInvalidArgument, "The files are not those of the plan."};
}

Status check_unchanged(std::span<const SourceFile> files, const ExecuteOptions& options) {
  for (size_t i = 0; i < files.size(); ++i) {
    const Status same = check_unchanged(files[i], *options.clock);
    if (!same) return about_file(i, same.error(), options);
  }
  return {};
}

Result<std::vector<SourceReader>> open_sources(std::span<const SourceFile> files, bool direct) {
  std::vector<SourceReader> sources;
  for (const SourceFile& file : files) {
    DJINN_TRY(SourceReader reader, SourceReader::make(file, direct));
    sources.push_back(std::move(reader));
  }
  return sources;
}

bool any_from_disk(const std::vector<SourceReader>& sources) {
  return std::any_of(sources.begin(), sources.end(),
                     [](const SourceReader& reader) { return reader.mode() != ReadMode::kCached; });
}

bool all_plain(const ReadPlan& plan) {
  return std::all_of(plan.jobs.begin(), plan.jobs.end(),
                     [](const CopyJob& job) { return job.plain(); });
}

size_t helpers_for(const ReadPlan& plan, bool from_disk) {
  return from_disk ? kDiskHelpers : all_plain(plan) ? 0 : 1;
}

// This many units, at random places, are enough to tell apart models that differ in much.
constexpr size_t kSampleUnits = 16;

std::vector<ReadUnit> sample_of(const std::vector<ReadUnit>& units, uint64_t seed) {
  if (units.size() <= kSampleUnits) return units;
  Random random(seed);
  std::vector<ReadUnit> sample;
  while (sample.size() < kSampleUnits) sample.push_back(units[random.below(units.size())]);
  return sample;
}

// Takes leases, for as long as the files are read, on all files that allow one. Gives false if
// somebody else serves one of the files: there a lease proves nothing, and that server could hold
// up those who write the other files.
Result<bool> take_leases(std::span<const SourceFile> files, WatchedLeases& leases) {
  const bool answered = std::ranges::all_of(files, [](const SourceFile& file) {
    return file.identity.content || always_answers(*file.fd, file.identity);
  });
  if (!answered) return false;
  std::vector<const Fd*> changeable;
  for (const SourceFile& file : files) {
    if (!file.identity.content) changeable.push_back(file.fd);
  }
  DJINN_CHECK(leases.take(changeable));
  return true;
}

// Everything was read once. If the bytes are the same when they are read again, they were so
// together at one moment between the two readings.
Status check_not_torn(const ReadPlan& plan, std::span<const SourceFile> files,
                      std::span<const ExtentTarget> targets, const ExecuteOptions& options) {
  std::vector<std::span<const std::byte>> extents;
  for (const ExtentTarget& target : targets) extents.emplace_back(target.mapped);
  ExecuteOptions again = options;
  if (options.progress) {
    again.progress = [&](uint64_t, uint64_t total) { return options.progress(total, total); };
  }
  DJINN_TRY(const bool same, compare(plan, files, extents, again, 0));
  if (same) return {};
  return Error{ErrorCode::kFileChanged,
               "The file was written while it was read, so what was read is torn. Load it again "
               "when its writer is done."};
}

LoadStats stats_of(const std::vector<SourceReader>& sources, const ReadSchedule& schedule) {
  LoadStats stats;
  for (const ReadUnit& unit : schedule.units) stats.read_bytes += unit.bytes;
  for (const SourceReader& reader : sources) {
    if (reader.mode() == ReadMode::kCached) ++stats.files_cached;
    if (reader.mode() == ReadMode::kDirect) ++stats.files_direct;
    if (reader.mode() == ReadMode::kBuffered) ++stats.files_direct_refused;
  }
  return stats;
}

}  // namespace

Result<LoadStats> execute(const ReadPlan& plan, std::span<const SourceFile> files,
                          std::span<const ExtentTarget> targets, const ExecuteOptions& options) {
  DJINN_ASSERT(options.clock != nullptr);
  DJINN_CHECK(check_arguments(plan, files, targets));
  WatchedLeases leases;
  DJINN_TRY(const bool leased, take_leases(files, leases));
  DJINN_CHECK(check_unchanged(files, options));
  DJINN_TRY(std::vector<SourceReader> sources, open_sources(files, options.direct));
  const bool from_disk = any_from_disk(sources);
  DJINN_TRY(const ReadSchedule schedule,
            schedule_reads(plan.jobs, from_disk ? kDiskPieceBytes : kPieceBytes));
  std::deque<Target> places;
  for (const ExtentTarget& target : targets) places.emplace_back(target);
  const auto put = [&](const CopyJob& piece, const std::byte* source) {
    return put_piece(piece, source, places[piece.extent]);
  };
  Crew crew(schedule, schedule.units, sources, put, plan.written_bytes, options);
  DJINN_CHECK(crew.run(helpers_for(plan, from_disk)));
  for (Target& place : places) DJINN_CHECK(place.commit_rest());
  DJINN_CHECK(check_unchanged(files, options));
  const LoadStats stats = stats_of(sources, schedule);
  if (!leased || !leases.end_held()) {
    DJINN_CHECK(check_not_torn(plan, files, targets, options));
  }
  return stats;
}

Result<bool> compare(const ReadPlan& plan, std::span<const SourceFile> files,
                     std::span<const std::span<const std::byte>> extents,
                     const ExecuteOptions& options, uint64_t seed) {
  DJINN_ASSERT(options.clock != nullptr);
  DJINN_CHECK(check_arguments(plan, files, extents));
  DJINN_CHECK(check_unchanged(files, options));
  DJINN_TRY(std::vector<SourceReader> sources, open_sources(files, options.direct));
  const bool from_disk = any_from_disk(sources);
  DJINN_TRY(const ReadSchedule schedule,
            schedule_reads(plan.jobs, from_disk ? kDiskPieceBytes : kPieceBytes));
  std::atomic<bool> same = true;
  const auto look = [&](const CopyJob& piece, const std::byte* source) -> Status {
    if (!equals_piece(piece, source, extents[piece.extent].data() + piece.extent_offset)) {
      same = false;
    }
    return {};
  };
  const std::vector<ReadUnit> sample = sample_of(schedule.units, seed);
  DJINN_CHECK(Crew(schedule, sample, sources, look, plan.written_bytes, options).run(0));
  if (same) {
    Crew crew(schedule, schedule.units, sources, look, plan.written_bytes, options);
    DJINN_CHECK(crew.run(helpers_for(plan, from_disk)));
  }
  DJINN_CHECK(check_unchanged(files, options));
  return same;
}

}  // namespace djinn::load
