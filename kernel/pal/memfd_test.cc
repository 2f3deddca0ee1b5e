// SPDX-License-Identifier: Apache-2.0

#include "kernel/pal/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <thread>
#include <utility>

#include "kernel/base/thread_state_for_tests.h"
#include "kernel/pal/process_state.h"

namespace djinn::pal {
namespace {

constexpr uint64_t kBytes = 64 * 1024;

Fd memfd(uint64_t bytes = kBytes, Seals seals = Seals::kNone) {
  auto fd = make_memfd("djinn-test", bytes, seals);
  EXPECT_TRUE(fd) << fd.error().message;
  return std::move(fd).value();
}

uint64_t committed_bytes(const Fd& fd) {
  struct stat info {};
  EXPECT_EQ(::fstat(fd.get(), &info), 0);
  return static_cast<uint64_t>(info.st_blocks) * 512;
}

ErrorCode code_in(const Status& status) {
  return status ? ErrorCode::kOk : status.error().code;
}

TEST(memfd, a_new_one_is_zero_and_uncommitted) {
  const Fd fd = memfd();
  EXPECT_EQ(committed_bytes(fd), 0u);
  const auto content = read_memfd(fd, kBytes);
  ASSERT_TRUE(content);
  EXPECT_TRUE(
      std::all_of(content->begin(), content->end(), [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_EQ(committed_bytes(fd), 0u);
}

TEST(memfd, two_mappings_share_bytes_and_close_themselves) {
  const ProcessState before = read_process_state();
  {
    const Fd fd = memfd();
    const auto writer = map_shared(fd, kBytes, Access::kReadWrite);
    const auto reader = map_shared(fd, kBytes, Access::kRead);
    ASSERT_TRUE(writer && reader);
    writer->data()[kBytes - 1] = std::byte{7};
    EXPECT_EQ(reader->data()[kBytes - 1], std::byte{7});
    EXPECT_EQ(read_process_state().memfd_mapped_bytes, before.memfd_mapped_bytes + 2 * kBytes);
  }
  EXPECT_EQ(read_process_state(), before);
}

TEST(memfd, a_moved_mapping_is_unmapped_once) {
  const ProcessState before = read_process_state();
  const Fd fd = memfd();
  auto first = map_shared(fd, kBytes, Access::kRead);
  auto other = map_shared(fd, kBytes, Access::kRead);
  ASSERT_TRUE(first && other);
  Mapping moved = std::move(first).value();
  moved = std::move(other).value();
  EXPECT_EQ(read_process_state().memfd_mappings, before.memfd_mappings + 1);
  moved.reset();
  EXPECT_FALSE(moved.valid());
  EXPECT_EQ(read_process_state().memfd_mappings, before.memfd_mappings);
}

TEST(memfd, a_mapping_of_no_bytes_is_refused) {
  EXPECT_EQ(map_shared(memfd(), 0, Access::kRead).error().code, ErrorCode::kInvalidArgument);
}

TEST(memfd, a_size_beyond_the_file_system_is_refused) {
  EXPECT_EQ(make_memfd("x", UINT64_MAX).error().code, ErrorCode::kInvalidArgument);
}

TEST(memfd, a_failed_make_leaves_no_descriptor) {
  const ProcessState before = read_process_state();
  EXPECT_FALSE(make_memfd(std::string(300, 'x'), kBytes));
  EXPECT_EQ(read_process_state(), before);
}

// As the kernel holds pages for moments itself: a pipe has one of the memfd's.
class HeldPage {
 public:
  explicit HeldPage(const Fd& memfd) {
    loff_t start = 0;
    EXPECT_EQ(::pipe2(pipe_.data(), O_CLOEXEC), 0);
    EXPECT_EQ(::splice(memfd.get(), &start, pipe_[1], nullptr, 1, 0), 1);
  }
  ~HeldPage() { let_go(); }
  void let_go() {
    for (int& end : pipe_) {
      if (end >= 0) ::close(std::exchange(end, -1));
    }
  }

 private:
  std::array<int, 2> pipe_{-1, -1};
};

bool sleeps(pid_t thread) {
  const char state = state_of(thread);
  return state == 'D' || state == 'S';
}

TEST(memfd, content_is_sealed_once_nobody_holds_a_page_of_it) {
  const std::string content(4096, 'a');
  const Fd fd = memfd();
  ASSERT_EQ(::pwrite(fd.get(), content.data(), content.size(), 0), 4096);
  HeldPage held(fd);
  std::atomic<pid_t> sealing{0};
  Status sealed = Error{ErrorCode::kInternal, ""};
  std::thread sealer([&] {
    sealing = ::gettid();
    sealed = seal_content(fd);
  });
  while (sealing == 0 || !sleeps(sealing)) std::this_thread::yield();
  // Who is second waits until the first was refused.
  EXPECT_EQ(code_in(add_seals(fd, Seals::kWrite)), ErrorCode::kBusy);
  held.let_go();
  sealer.join();
  EXPECT_TRUE(sealed) << sealed.error().message;
}

TEST(memfd, a_write_seal_is_refused_while_a_writer_is_left_and_final_afterwards) {
  const Fd fd = memfd();
  auto writer = map_shared(fd, kBytes, Access::kReadWrite);
  ASSERT_TRUE(writer);
  EXPECT_EQ(code_in(add_seals(fd, Seals::kWrite)), ErrorCode::kBusy);
  writer->reset();
  EXPECT_EQ(code_in(add_seals(fd, Seals::kWrite)), ErrorCode::kOk);

  EXPECT_FALSE(map_shared(fd, kBytes, Access::kReadWrite));
  EXPECT_EQ(::pwrite(fd.get(), "x", 1, 0), -1);
  EXPECT_EQ(::ftruncate(fd.get(), 0), -1);
  EXPECT_FALSE(decommit(fd, 0, kBytes));
  EXPECT_TRUE(map_sealed(fd, kBytes));
}

TEST(memfd, a_descriptor_reopened_through_proc_cannot_write_a_sealed_one_either) {
  const Fd fd = memfd(kBytes, Seals::kWrite);
  const Fd again(::open(("/proc/self/fd/" + std::to_string(fd.get())).c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(again.valid());
  EXPECT_EQ(::pwrite(again.get(), "x", 1, 0), -1);
  EXPECT_FALSE(map_shared(again, kBytes, Access::kReadWrite));
}

TEST(memfd, shared_memory_cannot_be_sealed_by_the_other_side) {
  const Fd fd = memfd(kBytes, Seals::kShared);
  EXPECT_EQ(code_in(add_seals(fd, Seals::kWrite)), ErrorCode::kPermissionDenied);
  EXPECT_EQ(::ftruncate(fd.get(), 0), -1);
  EXPECT_EQ(::ftruncate(fd.get(), 2 * kBytes), -1);
}

TEST(memfd, sealed_content_is_read_back) {
  std::vector<std::byte> content(100'001);
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<std::byte>(i * 7);
  const auto fd = make_sealed_memfd("djinn-test", content);
  ASSERT_TRUE(fd);
  EXPECT_TRUE(verify_memfd(*fd, content.size(), Seals::kWrite));
  EXPECT_EQ(read_memfd(*fd, content.size()).value(), content);
  const auto mapped = map_sealed(*fd, content.size());
  ASSERT_TRUE(mapped);
  EXPECT_EQ(::memcmp(mapped->data(), content.data(), content.size()), 0);
}

TEST(memfd, empty_content_is_content) {
  const auto fd = make_sealed_memfd("djinn-test", {});
  ASSERT_TRUE(fd);
  EXPECT_TRUE(verify_memfd(*fd, 0, Seals::kWrite));
  EXPECT_TRUE(read_memfd(*fd, 0)->empty());
}

TEST(memfd, reading_behind_the_end_is_an_error) {
  EXPECT_EQ(read_memfd(memfd(), kBytes + 1).error().code, ErrorCode::kOutOfRange);
  EXPECT_EQ(read_memfd(memfd(), kBytes, 1).error().code, ErrorCode::kOutOfRange);
}

TEST(memfd, is_read_from_any_offset) {
  const Fd fd = memfd();
  ASSERT_EQ(::pwrite(fd.get(), "abc", 3, 4096), 3);
  const auto content = read_memfd(fd, 2, 4097);
  ASSERT_TRUE(content);
  EXPECT_EQ(::memcmp(content->data(), "bc", 2), 0);
}

TEST(commit_ahead, allocates_exactly_the_range_and_keeps_content) {
  const Fd fd = memfd();
  ASSERT_EQ(::pwrite(fd.get(), "abc", 3, 4096), 3);
  EXPECT_TRUE(commit_ahead(fd, 4096, 8192));
  EXPECT_TRUE(commit_ahead(fd, 4096, 8192));
  EXPECT_EQ(committed_bytes(fd), 8192u);
  char text[3];
  ASSERT_EQ(::pread(fd.get(), text, 3, 4096), 3);
  EXPECT_EQ(std::string(text, 3), "abc");
}

TEST(commit_ahead, never_grows_the_memfd) {
  const Fd fd = memfd();
  EXPECT_EQ(code_in(commit_ahead(fd, kBytes, 1)), ErrorCode::kOutOfRange);
  EXPECT_EQ(code_in(commit_ahead(fd, UINT64_MAX, 2)), ErrorCode::kOutOfRange);
  EXPECT_TRUE(commit_ahead(fd, kBytes, 0));
}

// Were the refusal broken, the kernel would look for a process to kill: it is to be this one.
void volunteer_for_the_oom_killer() {
  const Fd score(::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
  ASSERT_EQ(::write(score.get(), "1000", 4), 4);
}

TEST(commit_ahead, more_than_the_machine_has_is_an_error_at_the_door) {
  ASSERT_NO_FATAL_FAILURE(volunteer_for_the_oom_killer());
  const Fd fd = memfd(uint64_t{1} << 50);
  EXPECT_EQ(code_in(commit_ahead(fd, 0, uint64_t{1} << 50)), ErrorCode::kOutOfMemory);
  EXPECT_EQ(committed_bytes(fd), 0u);
}

TEST(decommit, gives_pages_back_and_leaves_zeros) {
  const Fd fd = memfd();
  ASSERT_EQ(::pwrite(fd.get(), "abc", 3, 4096), 3);
  EXPECT_TRUE(decommit(fd, 0, kBytes));
  EXPECT_EQ(committed_bytes(fd), 0u);
  EXPECT_EQ(read_memfd(fd, kBytes).value()[4096], std::byte{0});
}

TEST(populate_write, commits_what_is_mapped) {
  const Fd fd = memfd();
  const auto mapped = map_shared(fd, kBytes, Access::kReadWrite);
  ASSERT_TRUE(mapped);
  EXPECT_TRUE(populate_write(mapped->bytes().first(8192)));
  EXPECT_EQ(committed_bytes(fd), 8192u);
}

TEST(populate_write, a_page_that_cannot_be_had_is_an_error_and_no_signal) {
  const Fd fd = memfd(4096);
  const auto mapped = map_shared(fd, 2 * 4096, Access::kReadWrite);  // half of it behind the end
  ASSERT_TRUE(mapped);
  EXPECT_EQ(code_in(populate_write(mapped->bytes())), ErrorCode::kOutOfMemory);
}

TEST(verify_memfd, accepts_what_was_promised_and_more) {
  EXPECT_TRUE(verify_memfd(memfd(), kBytes, Seals::kNone));
  EXPECT_TRUE(verify_memfd(memfd(kBytes, Seals::kWrite), kBytes, Seals::kShared));
}

TEST(verify_memfd, refuses_missing_seals_and_wrong_sizes) {
  EXPECT_EQ(code_in(verify_memfd(memfd(), kBytes, Seals::kSize)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_in(verify_memfd(memfd(kBytes, Seals::kShared), kBytes, Seals::kWrite)),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_in(verify_memfd(memfd(), kBytes + 1, Seals::kNone)), ErrorCode::kOutOfRange);
  EXPECT_EQ(code_in(verify_memfd(memfd(), kBytes - 1, Seals::kNone)), ErrorCode::kOutOfRange);
}

TEST(verify_memfd, refuses_every_other_kind_of_descriptor) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const Fd read_end(ends[0]), write_end(ends[1]);
  char path[] = "/tmp/djinn-memfd-test-XXXXXX";
  const Fd file(::mkostemp(path, O_CLOEXEC));
  ASSERT_TRUE(file.valid());
  ::unlink(path);
  const Fd directory(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const Fd unsealable(::memfd_create("x", MFD_CLOEXEC));
  for (const Fd* fd : {&read_end, &write_end, &file, &directory, &null, &unsealable}) {
    EXPECT_EQ(code_in(verify_memfd(*fd, 0, Seals::kNone)), ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(code_in(verify_memfd(Fd(), 0, Seals::kNone)), ErrorCode::kInvalidArgument);
}

TEST(verify_memfd, refuses_a_file_on_tmpfs) {
  const Fd file(::open("/dev/shm", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600));
  if (!file.valid()) GTEST_SKIP() << "no tmpfs at /dev/shm";
  EXPECT_EQ(code_in(verify_memfd(file, 0, Seals::kNone)), ErrorCode::kInvalidArgument);
}

TEST(verify_memfd, refuses_a_memfd_that_cannot_be_read) {
  const Fd fd = memfd(kBytes, Seals::kShared);
  const std::string path = "/proc/self/fd/" + std::to_string(fd.get());
  const Fd path_only(::open(path.c_str(), O_PATH | O_CLOEXEC));
  const Fd write_only(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(path_only.valid() && write_only.valid());
  EXPECT_EQ(code_in(verify_memfd(path_only, kBytes, Seals::kShared)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_in(verify_memfd(write_only, kBytes, Seals::kShared)), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace djinn::pal
