// SPDX-License-Identifier: Apache-2.0

#include "kernel/load/execute.h"

#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <deque>
#include <numeric>
#include <thread>

#include "kernel/load/hash.h"
#include "kernel/load/lease.h"
#include "kernel/load/testing.h"
#include "kernel/pal/huge_pages.h"

namespace djinn::load {
namespace {

using srg::Destination;
using srg::LoadPlan;
using testing::code_of;
using ::testing::Each;
using testing::Extents;

constexpr uint64_t kMiB = uint64_t{1} << 20;
const SystemClock kClock;

// Files as a loader holds them, and what it makes of them.
struct Request {
  std::deque<Fd> fds;
  std::vector<SourceFile> files;
  std::vector<SafetensorsIndex> indexes;

  void add(std::string_view content) {
    fds.push_back(testing::temporary_file(content));
    // Old times, so that any write shows in them, however coarse the file system's clock is.
    const timespec long_ago[2] = {{1000, 0}, {1000, 0}};
    EXPECT_EQ(futimens(fds.back().get(), long_ago), 0);
    files.push_back({&fds.back(), *identify(fds.back(), kClock)});
    auto index = read_index(files.back(), kHeadersBytesMax);
    EXPECT_TRUE(index) << index.error().message;
    indexes.push_back(*std::move(index));
  }
  void drop_from_page_cache() const {
    for (const Fd& fd : fds) {
      EXPECT_EQ(fsync(fd.get()), 0);
      EXPECT_EQ(posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
    }
  }
  [[nodiscard]] std::vector<int> flags() const {
    std::vector<int> out;
    for (const Fd& fd : fds) out.push_back(fcntl(fd.get(), F_GETFL));
    return out;
  }
};

size_t entries_of(const char* directory) {
  DIR* const open = opendir(directory);
  size_t count = 0;
  while (readdir(open) != nullptr) ++count;
  closedir(open);
  return count;
}

size_t threads() {
  return entries_of("/proc/self/task");
}

ExecuteOptions options() {
  return {&kClock, true, {}};
}

// Files of a few large and many small tensors, and the bytes of each.
struct Content {
  std::vector<std::pair<std::string, std::string>> tensors;
  std::string file;
};

Content make_content(Random& random, std::string_view prefix, std::span<const uint64_t> sizes) {
  Content content;
  testing::FileBuilder builder;
  for (const uint64_t size : sizes) {
    const std::string name = std::string(prefix) + std::to_string(content.tensors.size());
    content.tensors.emplace_back(name, testing::random_bytes(random, size));
    builder.add(name, "U8", {size}, content.tensors.back().second);
  }
  content.file = builder.finish();
  return content;
}

void expect_holds(const Extents& extents, const srg::ModelManifest& manifest,
                  const Content& content) {
  for (const auto& [name, bytes] : content.tensors) {
    const auto entry = std::find_if(manifest.tensors.begin(), manifest.tensors.end(),
                                    [&, &wanted = name](auto& row) { return row.name == wanted; });
    ASSERT_NE(entry, manifest.tensors.end());
    ASSERT_TRUE(extents.bytes(*entry) == bytes) << name;
  }
}

class Execute : public ::testing::Test {
 protected:
  Execute() {
    const uint64_t large[] = {3 * kMiB + 5, 1, 0, 700'001, 64, 5 * kMiB};
    std::vector<uint64_t> small(300);
    std::iota(small.begin(), small.end(), 1000u);
    first_ = make_content(random_, "large.", large);
    second_ = make_content(random_, "small.", small);
    request_.add(first_.file);
    request_.add(second_.file);
  }

  Random random_{3};
  Content first_;
  Content second_;
  Request request_;
};

TEST_F(Execute, every_tensor_arrives_from_the_page_cache) {
  const auto plan = resolve({}, request_.indexes);
  ASSERT_TRUE(plan);
  const Extents extents(plan->manifest);
  const auto stats = execute(*plan, request_.files, extents.targets, options());
  ASSERT_TRUE(stats) << stats.error().message;
  expect_holds(extents, plan->manifest, first_);
  expect_holds(extents, plan->manifest, second_);
  EXPECT_EQ(stats->files_cached, 2u);
  EXPECT_EQ(stats->read_bytes, plan->written_bytes);
}

// As the kernel has mapped them here.
uint64_t huge_bytes_of(const Extents& extents) {
  const pal::OwnMappings mappings = pal::OwnMappings::open();
  uint64_t bytes = 0;
  for (const pal::Mapping& mapped : extents.mappings) bytes += mappings.huge_bytes(mapped.bytes());
  return bytes;
}

uint64_t bytes_of_whole_blocks(const srg::ModelManifest& manifest) {
  uint64_t bytes = 0;
  for (const uint64_t extent : manifest.extent_bytes)
    bytes += extent - extent % pal::kHugePageBytes;
  return bytes;
}

// Whether whoever asks gets a huge page at this moment.
bool gives_huge_pages() {
  const Fd memfd = *pal::make_memfd("probe", pal::kHugePageBytes);
  const auto mapped = *pal::map_shared(memfd, pal::kHugePageBytes, pal::Access::kReadWrite);
  pal::ask_for_huge_pages(mapped.bytes());
  EXPECT_TRUE(pal::populate_write(mapped.bytes()));
  return pal::OwnMappings::open().huge_bytes(mapped.bytes()) > 0;
}

uint64_t committed_bytes_of(const Extents& extents) {
  uint64_t bytes = 0;
  for (const Fd& memfd : extents.memfds) {
    struct stat info {};
    EXPECT_EQ(fstat(memfd.get(), &info), 0);
    bytes += static_cast<uint64_t>(info.st_blocks) * 512;
  }
  return bytes;
}

TEST_F(Execute, huge_pages_cost_no_memory_and_are_taken_where_the_host_allows_them) {
  const std::string setting = pal::huge_page_setting();
  if (setting == "always" || setting == "within_size" || setting == "force") {
    GTEST_SKIP() << "this host gives huge pages to memory that did not ask: " << setting;
  }
  const auto plan = resolve({}, request_.indexes, 6 * kMiB);
  ASSERT_TRUE(plan);
  const Extents extents(plan->manifest);
  ASSERT_TRUE(execute(*plan, request_.files, extents.targets, options()));
  const uint64_t huge_bytes = huge_bytes_of(extents);
  const std::vector<uint64_t>& sizes = plan->manifest.extent_bytes;
  EXPECT_EQ(committed_bytes_of(extents), std::accumulate(sizes.begin(), sizes.end(), uint64_t{0}));
  EXPECT_LE(huge_bytes, bytes_of_whole_blocks(plan->manifest));
  if (gives_huge_pages()) {
    EXPECT_GT(huge_bytes, 0u);
  } else if (setting != "advise") {
    EXPECT_EQ(huge_bytes, 0u) << setting;
  }
}

TEST_F(Execute, every_tensor_arrives_from_the_disk_and_the_way_is_counted) {
  const auto plan = resolve({}, request_.indexes);
  ASSERT_TRUE(plan);
  request_.drop_from_page_cache();
  const Extents extents(plan->manifest);
  const auto flags = request_.flags();
  const auto stats = execute(*plan, request_.files, extents.targets, options());
  ASSERT_TRUE(stats) << stats.error().message;
  expect_holds(extents, plan->manifest, first_);
  expect_holds(extents, plan->manifest, second_);
  EXPECT_EQ(stats->files_cached + stats->files_direct + stats->files_direct_refused, 2u);
  EXPECT_EQ(request_.flags(), flags);
}

TEST_F(Execute, extents_may_be_many) {
  const auto plan = resolve({}, request_.indexes, 6 * kMiB);
  ASSERT_TRUE(plan);
  ASSERT_GT(plan->manifest.extent_bytes.size(), 1u);
  const Extents extents(plan->manifest);
  ASSERT_TRUE(execute(*plan, request_.files, extents.targets, options()));
  expect_holds(extents, plan->manifest, first_);
  expect_holds(extents, plan->manifest, second_);
}

TEST_F(Execute, every_page_is_committed_and_the_padding_is_zero) {
  const auto plan = resolve({}, request_.indexes);
  ASSERT_TRUE(plan);
  const Extents extents(plan->manifest);
  ASSERT_TRUE(execute(*plan, request_.files, extents.targets, options()));
  struct stat info {};
  ASSERT_EQ(fstat(extents.memfds[0].get(), &info), 0);
  EXPECT_EQ(static_cast<uint64_t>(info.st_blocks) * 512, plan->manifest.extent_bytes[0]);
  const auto& last = *std::max_element(plan->manifest.tensors.begin(), plan->manifest.tensors.end(),
                                       [](auto& a, auto& b) { return a.offset < b.offset; });
  EXPECT_THAT(extents.mappings[0].bytes().subspan(last.offset + last.bytes), Each(std::byte{0}));
}

TEST_F(Execute, equal_files_give_equal_digests) {
  const auto plan = resolve({}, request_.indexes);
  ASSERT_TRUE(plan);
  std::vector<Digest> digests;
  for (int round = 0; round < 2; ++round) {
    const Extents extents(plan->manifest);
    ASSERT_TRUE(execute(*plan, request_.files, extents.targets, options()));
    const std::span<const std::byte> bytes[] = {extents.mappings[0].bytes()};
    auto hasher = ModelHasher::make(plan->manifest, bytes);
    ASSERT_TRUE(hasher);
    while (*hasher->step()) continue;
    digests.push_back(*hasher->finish());
  }
  EXPECT_EQ(digests[0], digests[1]);
}

TEST_F(Execute, sealing_succeeds_once_the_mapping_is_gone) {
  const auto plan = resolve({}, request_.indexes);
  ASSERT_TRUE(plan);
  request_.drop_from_page_cache();
  Extents extents(plan->manifest);
  ASSERT_TRUE(execute(*plan, request_.files, extents.targets, options()));
  extents.mappings.clear();
  EXPECT_TRUE(pal::add_seals(extents.memfds[0], pal::Seals::kWrite));
}

TEST_F(Execute, progress_grows_to_the_whole) {
  const auto plan = resolve({}, request_.indexes);
  ASSERT_TRUE(plan);
  const Extents extents(plan->manifest);
  uint64_t last = 0;
  ExecuteOptions watching = options();
  watching.progress = [&](uint64_t done, uint64_t total) {
    EXPECT_GE(done, last);
    EXPECT_EQ(total, plan->written_bytes);
    last = done;
    return true;
  };
  ASSERT_TRUE(execute(*plan, request_.files, extents.targets, watching));
  EXPECT_EQ(last, plan->written_bytes);
}

TEST_F(Execute, a_second_read_tells_that_it_goes_on) {
  const auto plan = resolve({}, request_.indexes);
  ASSERT_TRUE(plan);
  const Extents extents(plan->manifest);
  const auto times_told_of_all = [&] {
    uint64_t times = 0;
    ExecuteOptions watching = options();
    watching.progress = [&](uint64_t done, uint64_t total) {
      times += done == total ? 1 : 0;
      return true;
    };
    EXPECT_TRUE(execute(*plan, request_.files, extents.targets, watching));
    return times;
  };
  EXPECT_GT(times_told_of_all(), 2u) << "a test has its files open for writing";
}

TEST_F(Execute, a_cancelled_load_leaves_no_thread_descriptor_or_flag) {
  const auto plan = resolve({}, request_.indexes);
  ASSERT_TRUE(plan);
  const Extents extents(plan->manifest);
  const auto flags = request_.flags();
  const size_t threads_before = threads();
  const size_t descriptors_before = entries_of("/proc/self/fd");
  ExecuteOptions cancelling = options();
  cancelling.progress = [](uint64_t, uint64_t) { return false; };
  for (int round = 0; round < 4; ++round) {
    request_.drop_from_page_cache();
    EXPECT_EQ(code_of(execute(*plan, request_.files, extents.targets, cancelling)),
              ErrorCode::kCancelled);
    EXPECT_EQ(request_.flags(), flags);
    EXPECT_EQ(threads(), threads_before);
    EXPECT_EQ(entries_of("/proc/self/fd"), descriptors_before);
  }
}

// Runs a load that does something to the first file after the first unit.
template <typename Change>
ErrorCode code_when_changed(Request& request, bool cached, Change change) {
  const auto plan = resolve({}, request.indexes);
  const Extents extents(plan->manifest);
  if (!cached) request.drop_from_page_cache();
  const auto flags = request.flags();
  ExecuteOptions meddling = options();
  bool first = true;
  meddling.progress = [&](uint64_t, uint64_t) {
    if (std::exchange(first, false)) change(request.fds[0]);
    return true;
  };
  const ErrorCode code = code_of(execute(*plan, request.files, extents.targets, meddling));
  EXPECT_EQ(request.flags(), flags);
  return code;
}

void shrink(const Fd& fd) {
  EXPECT_EQ(ftruncate(fd.get(), 4000), 0);
}
void grow(const Fd& fd) {
  EXPECT_EQ(pwrite(fd.get(), "x", 1, 64 * kMiB), 1);
}
void overwrite(const Fd& fd) {
  EXPECT_EQ(pwrite(fd.get(), "x", 1, 5000), 1);
}

TEST_F(Execute, a_file_that_shrinks_while_it_is_read_is_a_changed_file) {
  EXPECT_EQ(code_when_changed(request_, true, shrink), ErrorCode::kFileChanged);
}
TEST_F(Execute, an_error_tells_which_file_it_is_about) {
  const auto plan = resolve({}, request_.indexes);
  const Extents extents(plan->manifest);
  const size_t last = request_.files.size() - 1;
  ASSERT_GT(last, 0u);
  grow(request_.fds[last]);
  std::atomic<size_t> bad_file = request_.files.size();
  ExecuteOptions telling = options();
  telling.bad_file = &bad_file;
  EXPECT_EQ(code_of(execute(*plan, request_.files, extents.targets, telling)),
            ErrorCode::kFileChanged);
  EXPECT_EQ(bad_file, last);
}
TEST_F(Execute, a_file_that_shrinks_while_it_is_read_from_disk_is_a_changed_file) {
  EXPECT_EQ(code_when_changed(request_, false, shrink), ErrorCode::kFileChanged);
}
TEST_F(Execute, a_file_that_grows_while_it_is_read_is_a_changed_file) {
  EXPECT_EQ(code_when_changed(request_, true, grow), ErrorCode::kFileChanged);
}
TEST_F(Execute, a_file_that_is_overwritten_while_it_is_read_is_a_changed_file) {
  EXPECT_EQ(code_when_changed(request_, true, overwrite), ErrorCode::kFileChanged);
}

// The first file, mapped for writing, with a page that is dirty already: later writes move no time.
class Mapped {
 public:
  explicit Mapped(const Fd& fd)
      : bytes_(static_cast<char*>(
            ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0))) {
    EXPECT_NE(static_cast<void*>(bytes_), MAP_FAILED);
    touch();
  }
  ~Mapped() { ::munmap(bytes_, kBytes); }
  Mapped(const Mapped&) = delete;
  // Changes a byte of a tensor.
  void write() const { bytes_[kAt] = static_cast<char>(bytes_[kAt] ^ 1); }
  void touch() const {
    write();
    write();
  }

 private:
  static constexpr size_t kBytes = 64 * 1024;
  static constexpr size_t kAt = 5000;
  char* bytes_;
};

// As a loader has it: not open for writing.
void reopen_for_reading(Request& request, size_t index = 0) {
  const std::string path = "/proc/self/fd/" + std::to_string(request.fds[index].get());
  request.fds[index] = Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(request.fds[index].valid());
}

TEST_F(Execute, a_file_that_is_written_through_a_mapping_while_it_is_read_is_torn) {
  const Mapped mapped(request_.fds[0]);
  reopen_for_reading(request_);
  request_.files[0].identity = *identify(request_.fds[0], kClock);
  const auto write = [&](const Fd&) { mapped.write(); };
  EXPECT_EQ(code_when_changed(request_, true, write), ErrorCode::kFileChanged);
}

TEST_F(Execute, a_file_that_is_mapped_for_writing_and_not_written_is_read) {
  const Mapped mapped(request_.fds[0]);
  reopen_for_reading(request_);
  request_.files[0].identity = *identify(request_.fds[0], kClock);
  EXPECT_EQ(code_when_changed(request_, true, [](const Fd&) {}), ErrorCode::kOk);
}

// No lease is given meanwhile: the files are another user's. Of this thread alone.
class WithoutLeases {
 public:
  WithoutLeases() {
    if (::geteuid() != 0) return;
    // Linux: the raw call is of one thread, glibc's of all.
    if (::syscall(SYS_setresuid, -1, kNobody, -1) != 0) return;
    holds_ = true;
  }
  ~WithoutLeases() {
    if (!holds_) return;
    EXPECT_EQ(::syscall(SYS_setresuid, -1, 0, -1), 0);
  }
  WithoutLeases(const WithoutLeases&) = delete;
  [[nodiscard]] bool hold() const { return holds_; }

 private:
  static constexpr uid_t kNobody = 65534;
  bool holds_ = false;
};

TEST_F(Execute, what_is_written_through_a_mapping_is_torn_where_no_lease_is_to_be_had) {
  const Mapped mapped(request_.fds[0]);
  for (size_t i = 0; i < request_.fds.size(); ++i) reopen_for_reading(request_, i);
  request_.files[0].identity = *identify(request_.fds[0], kClock);
  const WithoutLeases nobody;
  if (!nobody.hold()) GTEST_SKIP() << "NEEDS ROOT, to be another user";
  ASSERT_FALSE(ReadLease::take(request_.fds[0]).held());
  ASSERT_FALSE(ReadLease::take(request_.fds[0]).written()) << "nobody tells it";
  const auto write = [&](const Fd&) { mapped.write(); };
  EXPECT_EQ(code_when_changed(request_, true, write), ErrorCode::kFileChanged);
  EXPECT_EQ(code_when_changed(request_, true, [](const Fd&) {}), ErrorCode::kOk);
}

// Before the kernel itself ends the lease, which takes 45 s.
bool may_be_written_soon(const Fd& file) {
  const std::string path = "/proc/self/fd/" + std::to_string(file.get());
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!Fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK)).valid()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST_F(Execute, a_writer_does_not_wait_for_a_read_that_does_not_return) {
  reopen_for_reading(request_);
  request_.files[0].identity = *identify(request_.fds[0], kClock);
  if (!ReadLease::take(request_.fds[0]).held()) GTEST_SKIP() << "NO LEASE IS TO BE HAD HERE";
  // The thread that reads is held up meanwhile, as a disk may do it.
  const auto write = [](const Fd& file) { EXPECT_TRUE(may_be_written_soon(file)); };
  EXPECT_EQ(code_when_changed(request_, true, write), ErrorCode::kOk);
}

// Whether the files, of which one has changed by so much, are told to be those of the extents.
bool equal_when(Request& request, const Fd& file, const std::string& change) {
  for (SourceFile& one : request.files) one.identity = *identify(*one.fd, kClock);
  const auto plan = resolve({}, request.indexes);
  const Extents extents(plan->manifest);
  EXPECT_TRUE(execute(*plan, request.files, extents.targets, options()));
  std::vector<std::span<const std::byte>> resident;
  for (const ExtentTarget& target : extents.targets) resident.emplace_back(target.mapped);
  EXPECT_EQ(::pwrite(file.get(), change.data(), change.size(), kMiB),
            static_cast<ssize_t>(change.size()));
  std::vector<SourceFile> now = request.files;
  for (SourceFile& one : now) one.identity = *identify(*one.fd, kClock);
  const auto same = compare(*plan, now, resident, options(), 11);
  EXPECT_TRUE(same) << same.error().message;
  return same && *same;
}

TEST_F(Execute, files_are_compared_with_extents_to_the_last_byte) {
  EXPECT_TRUE(equal_when(request_, request_.fds[0], ""));
  const std::string there = first_.file.substr(kMiB, 1);
  EXPECT_TRUE(equal_when(request_, request_.fds[0], there));
  EXPECT_FALSE(equal_when(request_, request_.fds[0], {static_cast<char>(there[0] ^ 0x10)}));
}

TEST_F(Execute, a_file_that_changed_since_it_was_identified_is_not_read) {
  const auto plan = resolve({}, request_.indexes);
  const Extents extents(plan->manifest);
  overwrite(request_.fds[1]);
  EXPECT_EQ(code_of(execute(*plan, request_.files, extents.targets, options())),
            ErrorCode::kFileChanged);
}

TEST_F(Execute, extents_and_files_that_are_not_the_plans_are_refused) {
  const auto plan = resolve({}, request_.indexes);
  Extents extents(plan->manifest);
  EXPECT_EQ(code_of(execute(*plan, request_.files, {}, options())), ErrorCode::kInvalidArgument);
  const auto one_file = std::span(request_.files).first(1);
  EXPECT_EQ(code_of(execute(*plan, one_file, extents.targets, options())),
            ErrorCode::kInvalidArgument);
  extents.targets[0].mapped = extents.targets[0].mapped.first(4096);
  EXPECT_EQ(code_of(execute(*plan, request_.files, extents.targets, options())),
            ErrorCode::kInvalidArgument);
}

// --- shaped plans -------------------------------------------------------------------------------

// A float32 matrix whose element (r, c) is r * 1000 + c, as a tensor of a file.
std::string matrix_bytes(uint64_t rows, uint64_t columns) {
  std::vector<float> out;
  for (uint64_t r = 0; r < rows; ++r) {
    for (uint64_t c = 0; c < columns; ++c) out.push_back(static_cast<float>(r * 1000 + c));
  }
  return {reinterpret_cast<const char*>(out.data()), out.size() * sizeof(float)};
}

std::vector<float> floats(const std::string& bytes) {
  std::vector<float> out(bytes.size() / sizeof(float));
  memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

class ExecuteShaped : public ::testing::TestWithParam<bool> {
 protected:
  static constexpr uint64_t kRows = 1500;
  static constexpr uint64_t kColumns = 900;

  ExecuteShaped() {
    testing::FileBuilder builder;
    builder.add("odd", "U8", {3}, "abc");  // the matrix then lies at an odd place
    builder.add("matrix", "F32", {kRows, kColumns}, matrix_bytes(kRows, kColumns));
    request_.add(builder.finish());
  }

  std::string load(Destination destination) {
    const LoadPlan plan{{std::move(destination)}, {}};
    const auto resolved = resolve(plan, request_.indexes);
    EXPECT_TRUE(resolved) << resolved.error().message;
    if (GetParam()) request_.drop_from_page_cache();
    const Extents extents(resolved->manifest);
    const auto stats = execute(*resolved, request_.files, extents.targets, options());
    EXPECT_TRUE(stats) << stats.error().message;
    return extents.bytes(resolved->manifest.tensors[0]);
  }

  Request request_;
};

TEST_P(ExecuteShaped, a_transposed_matrix) {
  const auto out =
      floats(load({"t", DType::kFloat32, {kColumns, kRows}, 0, {{0, "matrix", {}, true}}}));
  for (uint64_t c = 0; c < kColumns; ++c) {
    for (uint64_t r = 0; r < kRows; ++r) {
      ASSERT_EQ(out[c * kRows + r], static_cast<float>(r * 1000 + c)) << r << ", " << c;
    }
  }
}

TEST_P(ExecuteShaped, sliced_columns) {
  const auto out =
      floats(load({"t", DType::kFloat32, {kRows, 7}, 0, {{0, "matrix", {{1, 11, 7}}, false}}}));
  for (uint64_t r = 0; r < kRows; ++r) {
    for (uint64_t c = 0; c < 7; ++c) {
      ASSERT_EQ(out[r * 7 + c], static_cast<float>(r * 1000 + c + 11));
    }
  }
}

TEST_P(ExecuteShaped, a_cast_matrix) {
  const std::string out =
      load({"t", DType::kFloat64, {kRows, kColumns}, 0, {{0, "matrix", {}, false}}});
  for (uint64_t i = 0; i < kRows * kColumns; ++i) {
    double value = 0;
    memcpy(&value, out.data() + i * sizeof value, sizeof value);
    ASSERT_EQ(value, static_cast<double>(i / kColumns * 1000 + i % kColumns));
  }
}

TEST_P(ExecuteShaped, halves_swapped_along_the_inner_dimension) {
  const uint64_t half = kColumns / 2;
  const auto out = floats(
      load({"t",
            DType::kFloat32,
            {kRows, kColumns},
            1,
            {{0, "matrix", {{1, half, half}}, false}, {0, "matrix", {{1, 0, half}}, false}}}));
  for (uint64_t r = 0; r < kRows; ++r) {
    for (uint64_t c = 0; c < kColumns; ++c) {
      ASSERT_EQ(out[r * kColumns + c], static_cast<float>(r * 1000 + (c + half) % kColumns));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(From, ExecuteShaped, ::testing::Values(false, true),
                         [](const auto& from) { return from.param ? "disk" : "page_cache"; });

}  // namespace
}  // namespace djinn::load
