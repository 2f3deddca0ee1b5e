#include "kernel/load/execute.h"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <optional>
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
constexpr size_t kBuffers = 4;

// --- targets ------------------------------------------------------------------------------------

// One extent while it is written.
class Target {
 public:
  explicit Target(const ExtentTarget& extent)
      : extent_(extent), populated_(extent.mapped.size() / kPopulateBytes + 1, false) {}

  Status write(std::span<const std::byte> bytes, uint64_t offset) {
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

  Status commit_all() { return pal::commit_ahead(*extent_.memfd, 0, extent_.mapped.size()); }

 private:
  ExtentTarget extent_;
  std::vector<bool> populated_;  // by block
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

// What a read brought: the unit's bytes, somewhere in a buffer.
using Filled = Result<const std::byte*>;

// Everything that one load reads with. Used by one thread at a time.
struct Sources {
  std::vector<SourceReader> readers;

  Filled read(const ReadUnit& unit, std::span<std::byte> buffer) {
    return readers[unit.file].read(unit.offset, unit.bytes, buffer);
  }
};

// --- one unit after the other -------------------------------------------------------------------

using TakeUnit = std::function<Status(const ReadUnit&, const std::byte* bytes)>;

Status run_in_turn(std::span<const ReadUnit> units, Sources& sources, uint64_t buffer_bytes,
                   const TakeUnit& take) {
  DJINN_TRY(const pal::Mapping buffer, make_buffer(buffer_bytes));
  for (const ReadUnit& unit : units) {
    DJINN_TRY(const std::byte* const bytes, sources.read(unit, buffer.bytes()));
    DJINN_CHECK(take(unit, bytes));
  }
  return {};
}

// --- reading ahead on a second thread -----------------------------------------------------------

// A ring of buffers: the reader thread fills them in the order of the units, the caller empties
// them. invariant: taken_ <= filled_ <= taken_ + kBuffers, both counting units.
class ReadAhead {
 public:
  ReadAhead(std::span<const ReadUnit> units, Sources& sources) : units_(units), sources_(sources) {}
  ~ReadAhead() { join(); }
  ReadAhead(const ReadAhead&) = delete;

  Status start(uint64_t buffer_bytes) {
    for (auto& buffer : buffers_) {
      DJINN_TRY(buffer, make_buffer(buffer_bytes));
    }
    const int error = ::pthread_create(&thread_, nullptr, &ReadAhead::main, this);
    if (error != 0) return system_error("start a reading thread", error);
    running_ = true;
    return {};
  }

  // The bytes of the next unit; they stay valid until release().
  Filled next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return filled_ > taken_; });
    return *results_[taken_ % kBuffers];
  }

  void release() {
    const std::scoped_lock lock(mutex_);
    ++taken_;
    changed_.notify_all();
  }

 private:
  static void* main(void* self) {
    static_cast<ReadAhead*>(self)->fill_all();
    return nullptr;
  }

  void fill_all() {
    for (size_t i = 0; i < units_.size() && wait_for_room(i); ++i) {
      Filled filled = sources_.read(units_[i], buffers_[i % kBuffers].bytes());
      const bool failed = !filled.ok();
      const std::scoped_lock lock(mutex_);
      results_[i % kBuffers] = std::move(filled);
      ++filled_;
      changed_.notify_all();
      if (failed) return;
    }
  }

  bool wait_for_room(size_t unit) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_ || unit < taken_ + kBuffers; });
    return !stopped_;
  }

  void join() {
    if (!running_) return;
    {
      const std::scoped_lock lock(mutex_);
      stopped_ = true;
      changed_.notify_all();
    }
    ::pthread_join(thread_, nullptr);
  }

  std::span<const ReadUnit> units_;
  Sources& sources_;
  std::array<pal::Mapping, kBuffers> buffers_;
  pthread_t thread_{};
  bool running_ = false;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::array<std::optional<Filled>, kBuffers> results_;
  size_t filled_ = 0;
  size_t taken_ = 0;
  bool stopped_ = false;
};

Status run_reading_ahead(std::span<const ReadUnit> units, Sources& sources, uint64_t buffer_bytes,
                         const TakeUnit& take) {
  ReadAhead ahead(units, sources);
  DJINN_CHECK(ahead.start(buffer_bytes));
  for (const ReadUnit& unit : units) {
    DJINN_TRY(const std::byte* const bytes, ahead.next());
    DJINN_CHECK(take(unit, bytes));
    ahead.release();
  }
  return {};
}

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

Result<Sources> open_sources(std::span<const SourceFile> files, bool direct) {
  Sources sources;
  for (const SourceFile& file : files) {
    DJINN_TRY(SourceReader reader, SourceReader::make(file, direct));
    sources.readers.push_back(std::move(reader));
  }
  return sources;
}

bool any_from_disk(const Sources& sources) {
  return std::any_of(sources.readers.begin(), sources.readers.end(),
                     [](const SourceReader& reader) { return reader.mode() != ReadMode::kCached; });
}

LoadStats stats_of(const Sources& sources, const ReadSchedule& schedule) {
  LoadStats stats;
  for (const ReadUnit& unit : schedule.units) stats.read_bytes += unit.bytes;
  for (const SourceReader& reader : sources.readers) {
    if (reader.mode() == ReadMode::kCached) ++stats.files_cached;
    if (reader.mode() == ReadMode::kDirect) ++stats.files_direct;
    if (reader.mode() == ReadMode::kBuffered) ++stats.files_direct_refused;
  }
  return stats;
}

Status take_unit(const ReadSchedule& schedule, const ReadUnit& unit, const std::byte* bytes,
                 std::vector<Target>& targets, uint64_t& done_bytes) {
  const auto pieces = std::span(schedule.pieces).subspan(unit.first_piece, unit.piece_count);
  for (const CopyJob& piece : pieces) {
    const std::byte* const source = bytes + (piece.file_offset - unit.offset);
    DJINN_CHECK(put_piece(piece, source, targets[piece.extent]));
    done_bytes += piece.written_bytes();
  }
  return {};
}

Status run_schedule(const ReadSchedule& schedule, Sources& sources, std::vector<Target>& targets,
                    const ReadPlan& plan, const ExecuteOptions& options) {
  uint64_t done_bytes = 0;
  const TakeUnit take = [&](const ReadUnit& unit, const std::byte* bytes) -> Status {
    DJINN_CHECK(take_unit(schedule, unit, bytes, targets, done_bytes));
    if (!options.progress || options.progress(done_bytes, plan.written_bytes)) return {};
    return Error{ErrorCode::kCancelled, "The load was cancelled."};
  };
  const bool all_plain = std::all_of(plan.jobs.begin(), plan.jobs.end(),
                                     [](const CopyJob& job) { return job.plain(); });
  const uint64_t buffer_bytes =
      *align_up(schedule.unit_bytes_max + 2 * kDirectAlignment, kDirectAlignment);
  // From the page cache a plain copy is bound by memory: a second thread would only cost.
  const bool in_turn = all_plain && !any_from_disk(sources);
  return (in_turn ? run_in_turn : run_reading_ahead)(schedule.units, sources, buffer_bytes, take);
}

}  // namespace

Result<LoadStats> execute(const ReadPlan& plan, std::span<const SourceFile> files,
                          std::span<const ExtentTarget> targets, const ExecuteOptions& options) {
  DJINN_ASSERT(options.clock != nullptr);
  DJINN_CHECK(check_arguments(plan, files, targets));
  DJINN_CHECK(check_unchanged(files, *options.clock));
  DJINN_TRY(Sources sources, open_sources(files, options.direct));
  DJINN_TRY(const ReadSchedule schedule,
            schedule_reads(plan.jobs, any_from_disk(sources) ? kDiskPieceBytes : kPieceBytes));
  std::vector<Target> places(targets.begin(), targets.end());
  DJINN_CHECK(run_schedule(schedule, sources, places, plan, options));
  for (Target& place : places) DJINN_CHECK(place.commit_all());
  DJINN_CHECK(check_unchanged(files, *options.clock));
  return stats_of(sources, schedule);
}

}  // namespace djinn::load
