// SPDX-License-Identifier: Apache-2.0

#include "kernel/load/identity.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernel/load/testing.h"

namespace djinn::load {
namespace {

using testing::code_of;

constexpr int64_t kSecond = 1'000'000'000;

FileIdentity settled_file() {
  return {8, 1, 4711, 1 << 20, 100 * kSecond, 100 * kSecond, true, 200 * kSecond, {}, true};
}

bool within(const FileIdentity& resident, const FileIdentity& opened) {
  return same_within_domain(std::span(&resident, 1), std::span(&opened, 1));
}

bool across(const FileIdentity& resident, const FileIdentity& opened) {
  return same_across_domains(std::span(&resident, 1), std::span(&opened, 1));
}

TEST(Identity, a_later_look_at_the_same_file_is_the_same_file) {
  FileIdentity later = settled_file();
  later.read_at_ns += kSecond;
  EXPECT_TRUE(unchanged(settled_file(), later));
  EXPECT_TRUE(within(settled_file(), later));
  EXPECT_TRUE(across(settled_file(), later));
}

TEST(Identity, any_differing_field_makes_another_file) {
  const auto differs = [](auto change) {
    FileIdentity other = settled_file();
    change(other);
    EXPECT_FALSE(unchanged(settled_file(), other));
    EXPECT_FALSE(within(settled_file(), other));
    EXPECT_FALSE(across(settled_file(), other));
  };
  differs([](FileIdentity& file) { ++file.device_major; });
  differs([](FileIdentity& file) { ++file.device_minor; });
  differs([](FileIdentity& file) { ++file.inode; });
  differs([](FileIdentity& file) { ++file.bytes; });
  differs([](FileIdentity& file) { ++file.mtime_ns; });
  differs([](FileIdentity& file) { ++file.ctime_ns; });
}

TEST(Identity, times_prove_nothing_where_somebody_may_have_written) {
  FileIdentity written = settled_file();
  written.unwritten = false;
  EXPECT_TRUE(unchanged(settled_file(), written));
  EXPECT_FALSE(within(written, settled_file()));
  EXPECT_FALSE(within(settled_file(), written));
  EXPECT_FALSE(across(written, settled_file()));
  EXPECT_FALSE(across(settled_file(), written));
}

TEST(Identity, fewer_more_or_reordered_files_are_another_model) {
  FileIdentity second = settled_file();
  second.inode = 2;
  const FileIdentity both[] = {settled_file(), second};
  const FileIdentity reversed[] = {second, settled_file()};
  EXPECT_TRUE(same_within_domain(both, both));
  EXPECT_FALSE(same_within_domain(both, std::span(both).first(1)));
  EXPECT_FALSE(same_within_domain(std::span(both).first(1), both));
  EXPECT_FALSE(same_within_domain(both, reversed));
}

TEST(Identity, between_domains_only_block_devices_count) {
  FileIdentity file = settled_file();
  file.on_block_device = false;
  EXPECT_TRUE(within(file, file));
  EXPECT_FALSE(across(file, file));
}

TEST(Identity, between_domains_the_file_was_settled_when_it_was_read) {
  FileIdentity file = settled_file();
  file.ctime_ns = 198 * kSecond;
  EXPECT_TRUE(across(file, file));
  ++file.ctime_ns;
  EXPECT_TRUE(within(file, file));
  EXPECT_FALSE(across(file, file));
  file.ctime_ns = 300 * kSecond;  // a clock that was set back
  EXPECT_FALSE(across(file, file));
  file.ctime_ns = -1;
  EXPECT_FALSE(across(file, file));
}

TEST(Identity, what_nobody_can_change_was_settled) {
  FileIdentity young = settled_file();
  EXPECT_TRUE(were_settled(std::span(&young, 1)));
  young.ctime_ns = static_cast<int64_t>(young.read_at_ns);
  EXPECT_FALSE(were_settled(std::span(&young, 1)));
  young.content = Digest{};
  EXPECT_TRUE(were_settled(std::span(&young, 1)));
}

TEST(Identity, the_resident_models_reading_counts_not_the_second_opening) {
  FileIdentity resident = settled_file();
  resident.read_at_ns = 101 * kSecond;
  EXPECT_FALSE(across(resident, settled_file()));
  EXPECT_TRUE(across(settled_file(), resident));
}

TEST(Identity, a_file_is_told_by_what_fstat_says) {
  const Fd file = testing::temporary_file("12345");
  struct stat info {};
  ASSERT_EQ(fstat(file.get(), &info), 0);
  const auto identity = identify(file, SystemClock());
  ASSERT_TRUE(identity) << identity.error().message;
  EXPECT_EQ(identity->inode, info.st_ino);
  EXPECT_EQ(identity->bytes, 5u);
  EXPECT_EQ(identity->mtime_ns, info.st_mtim.tv_sec * kSecond + info.st_mtim.tv_nsec);
  EXPECT_EQ(identity->ctime_ns, info.st_ctim.tv_sec * kSecond + info.st_ctim.tv_nsec);
  EXPECT_GE(identity->read_at_ns + kSecond, static_cast<uint64_t>(identity->ctime_ns));
}

TEST(Identity, memory_is_not_a_block_device) {
  const auto memfd = pal::make_memfd("file", 4096);
  const auto identity = identify(*memfd, SystemClock());
  ASSERT_TRUE(identity) << identity.error().message;
  EXPECT_FALSE(identity->on_block_device);
}

std::optional<Digest> content(std::string_view text, bool sealed) {
  const auto bytes = std::as_bytes(std::span(text));
  const auto memfd =
      sealed ? pal::make_sealed_memfd("file", bytes) : pal::make_memfd("file", bytes.size());
  const auto found = content_of(*memfd, bytes.size());
  EXPECT_TRUE(found) << found.error().message;
  return found ? *found : std::nullopt;
}

TEST(Identity, only_a_file_that_nobody_can_change_has_a_content) {
  EXPECT_TRUE(content("weights", true));
  EXPECT_FALSE(content("weights", false));
  EXPECT_FALSE(*content_of(testing::temporary_file("weights"), 7));
}

TEST(Identity, a_memfd_of_holes_is_hashed_by_nobody) {
  constexpr uint64_t kBytes = uint64_t{1} << 50;
  const auto memfd = pal::make_memfd("file", kBytes);
  ASSERT_TRUE(memfd.ok());
  ASSERT_TRUE(pal::seal_content(*memfd).ok());
  const auto found = content_of(*memfd, kBytes);
  ASSERT_TRUE(found.ok());
  EXPECT_FALSE(*found);
}

TEST(Identity, equal_content_is_one_file_within_a_domain_alone) {
  FileIdentity first = settled_file();
  FileIdentity second = settled_file();
  ++second.inode;
  first.content = second.content = content("weights", true);
  EXPECT_TRUE(within(first, second));
  EXPECT_FALSE(across(FileIdentity{.content = first.content}, second));
  second.content = content("weightz", true);
  EXPECT_FALSE(within(first, second));
  second.content = {};
  EXPECT_FALSE(within(first, second));
}

TEST(Identity, what_is_no_readable_regular_file_is_refused) {
  const auto code = [](int fd) { return code_of(identify(Fd(fd), SystemClock())); };
  EXPECT_EQ(code(open("/proc/self/exe", O_PATH | O_CLOEXEC)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(open("/dev/null", O_RDONLY | O_CLOEXEC)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(open("/dev/null", O_WRONLY | O_CLOEXEC)), ErrorCode::kPermissionDenied);
  EXPECT_EQ(code(eventfd(0, EFD_CLOEXEC)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(-1), ErrorCode::kSystem);
}

}  // namespace
}  // namespace djinn::load
