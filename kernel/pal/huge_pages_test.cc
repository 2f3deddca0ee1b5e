// SPDX-License-Identifier: Apache-2.0

#include "kernel/pal/huge_pages.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "kernel/pal/host_pal.h"

#ifndef MADV_COLLAPSE  // Linux 6.1
#define MADV_COLLAPSE 25
#endif

namespace djinn::pal {
namespace {

constexpr uint64_t kPageBytes = 4096;

bool begins_a_block(const std::byte* at) {
  return reinterpret_cast<uint64_t>(at) % kHugePageBytes == 0;
}

uint64_t allocated_bytes(const Fd& memfd) {
  struct stat info {};
  EXPECT_EQ(::fstat(memfd.get(), &info), 0);
  return static_cast<uint64_t>(info.st_blocks) * 512;
}

uint64_t total_of(std::span<const std::byte> bytes) {
  uint64_t total = 0;
  for (size_t at = 0; at < bytes.size(); at += kPageBytes) total += std::to_integer<int>(bytes[at]);
  return total;
}

// Makes the block huge whatever the host's setting is, which not every kernel does.
bool collapse(std::span<std::byte> block) {
  return populate_write(block).ok() && ::madvise(block.data(), block.size(), MADV_COLLAPSE) == 0;
}

// --- addresses

TEST(reserve_addresses, what_holds_a_block_begins_at_a_multiple_of_its_size) {
  for (const uint64_t bytes :
       {kHugePageBytes, kHugePageBytes + 1, 5 * kHugePageBytes - kPageBytes}) {
    const auto one = reserve_addresses(bytes);
    const auto another = reserve_addresses(bytes);
    ASSERT_TRUE(one.ok() && another.ok());
    EXPECT_TRUE(begins_a_block(one->data()) && begins_a_block(another->data())) << bytes;
    EXPECT_EQ(one->size(), bytes);
  }
}

TEST(reserve_addresses, no_bytes_and_too_many_are_errors) {
  EXPECT_EQ(reserve_addresses(0).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(reserve_addresses(UINT64_MAX).error().code, ErrorCode::kOutOfMemory);
}

TEST(reserve_addresses, nothing_is_left_behind_or_taken_from_a_neighbour) {
  // A neighbour that lost a page would fault here.
  for (uint64_t pages = 500; pages < 530; ++pages) {
    const Fd memfd = *make_memfd("test", pages * kPageBytes);
    auto one = *map_shared(memfd, pages * kPageBytes, Access::kReadWrite);
    auto other = *map_shared(memfd, pages * kPageBytes, Access::kReadWrite);
    one.bytes().back() = std::byte{7};
    EXPECT_EQ(other.bytes().back(), std::byte{7});
    one.reset();
    EXPECT_EQ(other.bytes().back(), std::byte{7});
  }
}

// --- what the kernel tells

TEST(own_mappings, huge_pages_are_counted_in_the_range_alone) {
  constexpr uint64_t kBytes = 2 * kHugePageBytes + kPageBytes;
  const OwnMappings mappings = OwnMappings::open();
  const Fd memfd = *make_memfd("test", kBytes, Seals::kSize);
  Mapping writable = *map_shared(memfd, kBytes, Access::kReadWrite);
  EXPECT_EQ(mappings.huge_bytes(writable.bytes()), 0u);
  if (!collapse(writable.bytes().subspan(kHugePageBytes, kHugePageBytes))) {
    GTEST_SKIP() << "this kernel gives no huge page to who asks for one by MADV_COLLAPSE";
  }
  ASSERT_TRUE(populate_write(writable.bytes()));
  EXPECT_EQ(mappings.huge_bytes(writable.bytes()), kHugePageBytes);
  const Mapping beside = *map_shared(memfd, kBytes, Access::kRead);
  EXPECT_EQ(mappings.huge_bytes(beside.bytes()), 0u) << "of it nothing was touched";

  writable.bytes()[kHugePageBytes] = std::byte{1};
  writable.reset();
  const Mapping shared = *map_shared(memfd, kBytes, Access::kRead);
  EXPECT_EQ(total_of(shared.bytes()), 1u);
  EXPECT_EQ(mappings.huge_bytes(shared.bytes()), kHugePageBytes);
}

TEST(own_mappings, a_sealed_extent_that_a_pal_maps_is_mapped_by_huge_pages) {
  const OwnMappings mappings = OwnMappings::open();
  const auto pal = *HostPal::make();
  // The kernel by itself would align addresses for a multiple of the size.
  Extent extent = *pal->create("test", 3 * kHugePageBytes + kPageBytes);
  {
    const Mapping writable = *map_shared(extent.fd, extent.bytes, Access::kReadWrite);
    if (!collapse(writable.bytes().subspan(0, kHugePageBytes))) {
      GTEST_SKIP() << "this kernel gives no huge page to who asks for one by MADV_COLLAPSE";
    }
    ASSERT_TRUE(populate_write(writable.bytes()));
  }
  ASSERT_TRUE(seal_content(extent.fd));
  Reservation reservation = *pal->reserve(extent.bytes);
  ASSERT_TRUE(pal->map(reservation, 0, extent, 0, extent.bytes, Access::kRead));
  const std::span<const std::byte> bytes(reservation.data(), reservation.size());
  EXPECT_EQ(total_of(bytes), 0u);
  EXPECT_EQ(mappings.huge_bytes(bytes), kHugePageBytes);
  const Mapping sealed = *map_sealed(extent.fd, extent.bytes);
  EXPECT_EQ(total_of(sealed.bytes()), 0u);
  EXPECT_EQ(mappings.huge_bytes(sealed.bytes()), kHugePageBytes);
}

// --- asking

TEST(ask_for_huge_pages, no_touch_commits_more_than_the_memfd_has) {
  for (const uint64_t bytes : {75 * kPageBytes, kHugePageBytes + 75 * kPageBytes}) {
    const Fd memfd = *make_memfd("test", bytes);
    const Mapping mapped = *map_shared(memfd, bytes, Access::kReadWrite);
    ask_for_huge_pages(mapped.bytes());
    if (huge_page_setting() == "always" || huge_page_setting() == "force") {
      GTEST_SKIP() << "this host gives huge pages to memory that did not ask";
    }
    ASSERT_TRUE(populate_write(mapped.bytes().last(kPageBytes)));
    EXPECT_EQ(allocated_bytes(memfd), kPageBytes);
    ASSERT_TRUE(populate_write(mapped.bytes()));
    EXPECT_EQ(allocated_bytes(memfd), bytes);
  }
}

TEST(ask_for_huge_pages, one_touch_takes_a_block_where_the_host_allows_it) {
  const std::string setting = huge_page_setting();
  if (setting != "advise" && setting != "always") {
    GTEST_SKIP() << "this host allows shared memory no huge pages: " << setting;
  }
  const Fd memfd = *make_memfd("test", 2 * kHugePageBytes);
  const Mapping mapped = *map_shared(memfd, 2 * kHugePageBytes, Access::kReadWrite);
  ask_for_huge_pages(mapped.bytes());
  ASSERT_TRUE(populate_write(mapped.bytes().first(kPageBytes)));
  if (allocated_bytes(memfd) == kPageBytes) GTEST_SKIP() << "the host has no huge page left";
  EXPECT_EQ(allocated_bytes(memfd), kHugePageBytes);
  EXPECT_EQ(OwnMappings::open().huge_bytes(mapped.bytes()), kHugePageBytes);
}

// --- the setting

class Setting : public testing::Test {
 protected:
  Setting() {
    std::string made = testing::TempDir() + "huge-XXXXXX";
    directory_ = ::mkdtemp(made.data());
    std::filesystem::create_directory(directory_ + "/hugepages-2048kB");
  }
  ~Setting() override { std::filesystem::remove_all(directory_); }

  void write(const char* name, std::string_view text) {
    const Fd file(::open((directory_ + name).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600));
    EXPECT_EQ(::write(file.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void set_general(const char* text) { write("/shmem_enabled", text); }
  void set_own(const char* text) { write("/hugepages-2048kB/shmem_enabled", text); }

  std::string directory_;
};

TEST_F(Setting, it_is_the_word_in_brackets) {
  set_general("always within_size [advise] never deny force\n");
  EXPECT_EQ(huge_page_setting(directory_), "advise");
}
TEST_F(Setting, that_of_the_size_goes_before_the_general_one_unless_it_inherits) {
  set_general("always within_size [advise] never deny force\n");
  set_own("always inherit within_size advise [never]\n");
  EXPECT_EQ(huge_page_setting(directory_), "never");
  set_own("always [inherit] within_size advise never\n");
  EXPECT_EQ(huge_page_setting(directory_), "advise");
}
TEST_F(Setting, a_kernel_without_it_is_told_as_nothing) {
  EXPECT_EQ(huge_page_setting(directory_), "");
  set_general("always never\n");
  EXPECT_EQ(huge_page_setting(directory_), "");
  set_general("]always[ never\n");
  EXPECT_EQ(huge_page_setting(directory_), "");
}

}  // namespace
}  // namespace djinn::pal
