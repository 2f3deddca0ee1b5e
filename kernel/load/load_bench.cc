// SPDX-License-Identifier: Apache-2.0

// These are the two figures of loading: from the page cache against a memcpy into a fresh memfd,
// and from the disk against plain O_DIRECT reads. Both arms alternate within one run and the order
// turns each time, so that a busy machine or a throttled disk moves both; a figure is the median of
// the ratios.
//
//   DJINN_BENCH_DIR       where the file is made (default: TMPDIR, then /tmp)
//   DJINN_BENCH_WARM_MIB  size for the page cache (default: 2048, or 512 with less than 8 GiB free)
//   DJINN_BENCH_COLD_MIB  size for the disk (default: 512)

#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernel/base/random.h"
#include "kernel/load/execute.h"
#include "kernel/load/plan.h"
#include "kernel/load/source.h"
#include "kernel/pal/memfd.h"

namespace djinn::load {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kTensorBytes = 32 * kMiB;  // a projection of a 4096-wide model in bf16
constexpr int kRounds = 7;
constexpr int kColdRounds = 21;  // disks are moodier than memory

const SystemClock kClock;

// --- the file -----------------------------------------------------------------------------------

uint64_t setting_mib(const char* name, uint64_t otherwise) {
  const char* const text = getenv(name);
  uint64_t value = otherwise;
  if (text != nullptr) std::from_chars(text, text + strlen(text), value);
  return value;
}

uint64_t free_memory() {
  struct sysinfo info {};
  sysinfo(&info);
  return (info.freeram + info.bufferram) * uint64_t{info.mem_unit};
}

std::string header_of(uint64_t tensors) {
  std::string header = "{";
  for (uint64_t i = 0; i < tensors; ++i) {
    if (i > 0) header += ",";
    header += "\"layers." + std::to_string(i) + R"(.weight":{"dtype":"BF16","shape":[4096,4096],)" +
              R"("data_offsets":[)" + std::to_string(i * kTensorBytes) + "," +
              std::to_string((i + 1) * kTensorBytes) + "]}";
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string length;
  for (int shift = 0; shift < 64; shift += 8) {
    length.push_back(static_cast<char>(header.size() >> shift));
  }
  return length + header;
}

bool append(const Fd& fd, std::string_view bytes) {
  return write(fd.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
}

std::string random_block() {
  Random random(1);
  std::string block(kMiB, '\0');
  for (char& c : block) c = static_cast<char>(random.next());
  return block;
}

// Makes a safetensors file of about this size, unlinked and open for reading.
std::optional<Fd> make_file(uint64_t mib) {
  const char* directory = getenv("DJINN_BENCH_DIR");
  if (directory == nullptr) directory = getenv("TMPDIR");
  std::string path = std::string(directory != nullptr ? directory : "/tmp") + "/djinn-bench-XXXXXX";
  Fd fd(mkstemp(path.data()));
  unlink(path.c_str());
  const std::string block = random_block();
  bool written = fd.valid() && append(fd, header_of(mib * kMiB / kTensorBytes));
  for (uint64_t i = 0; written && i < mib; ++i) written = append(fd, block);
  if (!written || fsync(fd.get()) != 0) return std::nullopt;
  // The file is opened for reading only, as a loader has it: a file that somebody has open for
  // writing is read twice.
  const std::string again = "/proc/self/fd/" + std::to_string(fd.get());
  return Fd(open(again.c_str(), O_RDONLY | O_CLOEXEC));
}

void drop_from_page_cache(const Fd& fd) {
  posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
}

bool bring_into_page_cache(const Fd& fd, uint64_t bytes) {
  std::vector<char> block(kMiB);
  for (uint64_t at = 0; at < bytes; at += kMiB) {
    if (pread(fd.get(), block.data(), kMiB, static_cast<off_t>(at)) <= 0) return false;
  }
  return true;
}

// --- the arms -----------------------------------------------------------------------------------

using Arm = std::function<bool()>;

struct Prepared {
  SourceFile file;
  ReadPlan plan;
};

Result<Prepared> prepare(const Fd& fd) {
  Prepared out;
  out.file.fd = &fd;
  DJINN_TRY(out.file.identity, identify(fd, kClock));
  DJINN_TRY(const SafetensorsIndex index, read_index(out.file, kHeadersBytesMax));
  DJINN_TRY(out.plan, resolve({}, std::span(&index, 1)));
  return out;
}

// Holds an extent, so that no arm measures how long freeing it takes.
struct Memory {
  Fd memfd;
  pal::Mapping mapping;
};

Result<Memory> make_memory(uint64_t bytes) {
  Memory out;
  DJINN_TRY(out.memfd, pal::make_memfd("extent", bytes, pal::Seals::kSize));
  DJINN_TRY(out.mapping, pal::map_shared(out.memfd, bytes, pal::Access::kReadWrite));
  return out;
}

Status load_once(const Prepared& prepared, Memory& memory) {
  DJINN_TRY(memory, make_memory(prepared.plan.manifest.extent_bytes[0]));
  const ExtentTarget target{&memory.memfd, memory.mapping.bytes()};
  const auto stats = execute(prepared.plan, std::span(&prepared.file, 1), std::span(&target, 1),
                             {&kClock, true, {}});
  return stats ? Status() : Status(stats.error());
}

Status copy_once(std::span<const std::byte> from, Memory& memory) {
  DJINN_TRY(memory, make_memory(from.size()));
  memcpy(memory.mapping.data(), from.data(), from.size());
  benchmark::ClobberMemory();
  return {};
}

bool read_directly(const Fd& fd, uint64_t bytes, std::byte* buffer) {
  const int flags = fcntl(fd.get(), F_GETFL);
  if (fcntl(fd.get(), F_SETFL, flags | O_DIRECT) != 0) return false;
  bool complete = true;
  for (uint64_t at = 0; complete && at < bytes; at += kMiB) {
    complete = pread(fd.get(), buffer, kMiB, static_cast<off_t>(at)) > 0;
  }
  return fcntl(fd.get(), F_SETFL, flags) == 0 && complete;
}

// --- alternating --------------------------------------------------------------------------------

double seconds_of(const Arm& arm, bool& succeeded) {
  const uint64_t start = kClock.monotonic_ns();
  succeeded = arm() && succeeded;
  return static_cast<double>(kClock.monotonic_ns() - start) * 1e-9;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Times both arms kRounds times. The benchmark's time is that of the first arm, and the counter is
// its speed compared with the second. `before` runs untimed ahead of each arm.
void alternate(benchmark::State& state, uint64_t bytes, const Arm& first, const Arm& second,
               const std::function<void()>& before, const char* counter) {
  before();
  bool succeeded = first() && second();  // untimed: the guest's memory has been touched once
  std::vector<double> ratios;
  bool turned = false;
  for (auto _ : state) {
    double seconds[2] = {};
    for (const int arm : {turned ? 1 : 0, turned ? 0 : 1}) {
      before();
      seconds[arm] = seconds_of(arm == 0 ? first : second, succeeded);
    }
    turned = !turned;
    state.SetIterationTime(seconds[0]);
    ratios.push_back(seconds[1] / seconds[0]);
  }
  if (!succeeded) return state.SkipWithError("an arm failed");
  state.counters[counter] = median(ratios);
  state.SetBytesProcessed(static_cast<int64_t>(bytes) * state.iterations());
}

void load_from_page_cache(benchmark::State& state) {
  const uint64_t mib =
      setting_mib("DJINN_BENCH_WARM_MIB", free_memory() >= 8192 * kMiB ? 2048 : 512);
  const auto fd = make_file(mib);
  if (!fd || !bring_into_page_cache(*fd, mib * kMiB)) return state.SkipWithError("no file");
  const auto prepared = prepare(*fd);
  const auto warm = pal::make_memfd("warm", mib * kMiB);
  if (!prepared || !warm) return state.SkipWithError("no model");
  const auto source = pal::map_shared(*warm, mib * kMiB, pal::Access::kReadWrite);
  if (!source) return state.SkipWithError("no memory");
  memset(source->data(), 1, source->size());
  Memory memory;
  alternate(
      state, mib * kMiB, [&] { return load_once(*prepared, memory).ok(); },
      [&] { return copy_once(source->bytes(), memory).ok(); }, [&] { memory = {}; }, "of_memcpy");
}

void load_cold(benchmark::State& state) {
  const uint64_t mib = setting_mib("DJINN_BENCH_COLD_MIB", 512);
  const auto fd = make_file(mib);
  if (!fd) return state.SkipWithError("no file");
  const auto prepared = prepare(*fd);
  const auto memfd = pal::make_memfd("buffer", kMiB);
  if (!prepared || !memfd) return state.SkipWithError("no model");
  const auto buffer = pal::map_shared(*memfd, kMiB, pal::Access::kReadWrite);
  if (!buffer) return state.SkipWithError("no memory");
  Memory memory;
  const auto before = [&] {
    memory = {};
    drop_from_page_cache(*fd);
  };
  alternate(
      state, mib * kMiB, [&] { return load_once(*prepared, memory).ok(); },
      [&] { return read_directly(*fd, mib * kMiB, buffer->data()); }, before, "of_direct_reads");
}

BENCHMARK(load_from_page_cache)
    ->Name("load/page_cache")
    ->UseManualTime()
    ->Iterations(kRounds)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(load_cold)
    ->Name("load/cold")
    ->UseManualTime()
    ->Iterations(kColdRounds)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace djinn::load

BENCHMARK_MAIN();
