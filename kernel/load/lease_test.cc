// SPDX-License-Identifier: Apache-2.0

#include "kernel/load/lease.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <thread>

#include "kernel/load/testing.h"

namespace djinn::load {
namespace {

// The file again, under a description of its own.
Fd opened_again(const Fd& file, int flags, bool expected = true) {
  const std::string path = "/proc/self/fd/" + std::to_string(file.get());
  Fd again(::open(path.c_str(), flags | O_CLOEXEC));
  EXPECT_EQ(again.valid(), expected);
  return again;
}

class LeaseOfAFile : public ::testing::Test {
 protected:
  void SetUp() override {
    Fd written = testing::temporary_file(std::string(8192, 'x'));
    read_ = opened_again(written, O_RDONLY);
    written.reset();
    if (!ReadLease::take(read_).held()) GTEST_SKIP() << "NO LEASES ON THIS FILE SYSTEM";
  }

  Fd read_;
};

TEST_F(LeaseOfAFile, is_refused_while_somebody_has_it_open_for_writing) {
  Fd writer = opened_again(read_, O_RDWR);
  EXPECT_FALSE(ReadLease::take(read_).held());
  EXPECT_TRUE(ReadLease::take(read_).written());
  writer.reset();
  EXPECT_TRUE(ReadLease::take(read_).held());
}

TEST_F(LeaseOfAFile, is_refused_while_it_is_mapped_for_writing_and_open_nowhere) {
  Fd writer = opened_again(read_, O_RDWR);
  void* const mapped = ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, writer.get(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  writer.reset();
  EXPECT_TRUE(ReadLease::take(read_).written());
  ASSERT_EQ(::munmap(mapped, 8192), 0);
  EXPECT_FALSE(ReadLease::take(read_).written());
}

// Whoever shares the description says which signal that would be.
TEST_F(LeaseOfAFile, has_the_kernel_signal_nobody) {
  const ReadLease lease = ReadLease::take(read_);
  EXPECT_EQ(::fcntl(read_.get(), F_GETOWN), 0);
  ASSERT_EQ(::fcntl(read_.get(), F_SETSIG, SIGKILL), 0);
  EXPECT_FALSE(opened_again(read_, O_WRONLY | O_NONBLOCK, false).valid()) << "the lease is broken";
}

TEST_F(LeaseOfAFile, ends_at_the_first_look_after_somebody_wants_to_write) {
  ReadLease lease = ReadLease::take(read_);
  ASSERT_TRUE(lease.held());
  std::thread writer([this] { opened_again(read_, O_WRONLY); });  // it waits for the look
  while (lease.held()) std::this_thread::yield();
  writer.join();
  EXPECT_TRUE(lease.written());
  EXPECT_FALSE(lease.held()) << "it does not come back";
}

TEST_F(LeaseOfAFile, that_was_let_go_of_holds_up_nobody) {
  ReadLease::take(read_).release();
  EXPECT_TRUE(opened_again(read_, O_WRONLY | O_NONBLOCK).valid());
}

TEST_F(LeaseOfAFile, proves_that_nobody_writes_on_a_disk_and_not_in_memory) {
  FileIdentity identity = *identify(read_, SystemClock());
  EXPECT_EQ(is_unwritten(read_, identity), identity.on_block_device);
  const Fd writer = opened_again(read_, O_RDWR);
  EXPECT_FALSE(is_unwritten(read_, identity));
  const auto memfd = pal::make_memfd("file", 4096);
  EXPECT_FALSE(is_unwritten(*memfd, *identify(*memfd, SystemClock())));
}

}  // namespace
}  // namespace djinn::load
