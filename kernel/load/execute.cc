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
#include "kernel/load/pieces.h"
#include "kernel/pal/memfd.h"

namespace djinn::load {
namespace {

// Pages are populated in blocks of this size: a few calls, and little that nobody needed.
constexpr uint64_t kPopulateBytes = uint64_t{2} << 20;
// A unit that is read from a disk: large enough for its full speed, small enough to overlap.
constexpr uint64_t kDiskPieceBytes = uint64_t{1} << 20;
// Threads besides the calling one. A disk has something to do only while one of them waits for it,
// and two copy at times. From the page cache a plain copy is bound by memory: another thread would
// only cost; a cast is bound by the core.
constexpr size_t kDiskHelpers = 3;

// --- targets ------------------------------------------------------------------------------------

// One extent while it is written. Any thread; no two write the same bytes.
class Target {
 public:
  explicit Target(const ExtentTarget& extent)
      : extent_(extent), populated_(extent.mapped.size() / kPopulateBytes + 1, false) {}

  // One writer at a time: the kernel lets only one into a file, and the others would spin for it.
  Status write(std::span<const std::byte> bytes, uint64_t offset) {
    const std::scoped_lock lock(writing_);
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

  // The mapped bytes from offset on, with [offset, offset + bytes) safe to touch.
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

  // Commits what no piece touched: pages of padding. Asks first, because committing pages that are
  // there costs a walk over all of them.
  Status commit_rest() {
    struct stat info {};
    if (::fstat(extent_.memfd->get(), &info) != 0) {
      return system_error("look at a model's memory", errno);
    }
    const uint64_t committed_bytes = static_cast<uint64_t>(info.st_blocks) * 512;
    if (committed_bytes >= extent_.mapped.size()) return {};
    return pal::commit_ahead(*extent_.memfd, 0, extent_.mapped.size());
  }

 private:
  ExtentTarget extent_;
  std::mutex writing_;
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

// Page-aligned memory that lives as long as the load.
Result<pal::Mapping> make_buffer(uint64_t bytes) {
  void* const at =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return system_error("make a read buffer", errno);
  return pal::Mapping(static_cast<std::byte*>(at), bytes);
}

// --- the crew -----------------------------------------------------------------------------------

// One load's work, shared by the threads that do it: each takes the next unit, reads it to a buffer
// of its own and puts its pieces in place. So a disk is busy while bytes are copied, and neither
// reading nor copying is bound to one core.
class Crew {
 public:
  Crew(const ReadSchedule& schedule, std::vector<SourceReader>& sources,
       std::deque<Target>& targets, uint64_t total_bytes, const ExecuteOptions& options)
      : schedule_(schedule),
        sources_(sources),
        targets_(targets),
        total_bytes_(total_bytes),
        options_(options) {}
  ~Crew() { DJINN_ASSERT(helpers_.empty()); }
  Crew(const Crew&) = delete;

  // On the calling thread, and on so many more.
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

  // An error of one thread stops all.
  Status work_or_stop(bool reporting) {
    Status status = work(reporting);
    if (!status) stopped_ = true;
    return status;
  }

  Status work(bool reporting) {
    const uint64_t bytes = schedule_.unit_bytes_max + 2 * kDirectAlignment;
    DJINN_TRY(const pal::Mapping buffer, make_buffer(*align_up(bytes, kDirectAlignment)));
    for (size_t i = next_unit_++; i < schedule_.units.size() && !stopped_; i = next_unit_++) {
      DJINN_CHECK(move_unit(schedule_.units[i], buffer.bytes()));
      if (reporting) DJINN_CHECK(report());
    }
    return {};
  }

  Status move_unit(const ReadUnit& unit, std::span<std::byte> buffer) {
    DJINN_TRY(const std::byte* const bytes,
              sources_[unit.file].read(unit.offset, unit.bytes, buffer));
    const auto pieces = std::span(schedule_.pieces).subspan(unit.first_piece, unit.piece_count);
    for (const CopyJob& piece : pieces) {
      DJINN_CHECK(
          put_piece(piece, bytes + (piece.file_offset - unit.offset), targets_[piece.extent]));
      done_bytes_ += piece.written_bytes();
    }
    return {};
  }

  // Calling thread only: tells what is new.
  Status report() {
    const uint64_t done = done_bytes_;
    if (!options_.progress || done == reported_bytes_) return {};
    reported_bytes_ = done;
    if (options_.progress(done, total_bytes_)) return {};
    return Error{ErrorCode::kCancelled, "The load was cancelled."};
  }

  const ReadSchedule& schedule_;
  std::vector<SourceReader>& sources_;
  std::deque<Target>& targets_;
  const uint64_t total_bytes_;
  const ExecuteOptions& options_;

  std::atomic<size_t> next_unit_ = 0;
  std::atomic<uint64_t> done_bytes_ = 0;
  std::atomic<bool> stopped_ = false;
  uint64_t reported_bytes_ = 0;  // calling thread only
  std::deque<Helper> helpers_;   // which stay where they are
};

// --- the load -----------------------------------------------------------------------------------

Status check_arguments(const ReadPlan& plan, std::span<const SourceFile> files,
                       std::span<const ExtentTarget> targets) {
  const auto& extents = plan.manifest.extent_bytes;
  const bool extents_fit =
      std::equal(extents.begin(), extents.end(), targets.begin(), targets.end(),
                 [](uint64_t bytes, const ExtentTarget& target) {
                   return target.memfd != nullptr && target.mapped.size() == bytes;
                 });
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

Status check_unchanged(std::span<const SourceFile> files, const Clock& clock) {
  for (const SourceFile& file : files) DJINN_CHECK(check_unchanged(file, clock));
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
  DJINN_CHECK(check_unchanged(files, *options.clock));
  DJINN_TRY(std::vector<SourceReader> sources, open_sources(files, options.direct));
  const bool from_disk = any_from_disk(sources);
  DJINN_TRY(const ReadSchedule schedule,
            schedule_reads(plan.jobs, from_disk ? kDiskPieceBytes : kPieceBytes));
  std::deque<Target> places;
  for (const ExtentTarget& target : targets) places.emplace_back(target);
  Crew crew(schedule, sources, places, plan.written_bytes, options);
  DJINN_CHECK(crew.run(from_disk ? kDiskHelpers : all_plain(plan) ? 0 : 1));
  for (Target& place : places) DJINN_CHECK(place.commit_rest());
  DJINN_CHECK(check_unchanged(files, *options.clock));
  return stats_of(sources, schedule);
}

}  // namespace djinn::load
