// SPDX-License-Identifier: Apache-2.0

// The host's memory is a correct pal (pal_conformance_for_tests.h), FaultyPal fails as it is told,
// and what only the host does.

#include <gtest/gtest.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "kernel/pal/chunk_pal.h"
#include "kernel/pal/faulty_pal.h"
#include "kernel/pal/host_pal.h"
#include "kernel/pal/pal_conformance_for_tests.h"
#include "kernel/pal/pal_values_for_tests.h"
#include "kernel/pal/process_state.h"

namespace djinn::pal {
namespace {

std::unique_ptr<HostPal> host_pal() {
  auto pal = HostPal::make();
  EXPECT_TRUE(pal);
  return std::move(pal).value();
}

struct HostWorld {
  std::unique_ptr<HostPal> host = host_pal();
  std::string absent() { return {}; }
  DevicePal& pal() { return *host; }
  ProcessState state() { return read_process_state(); }
};

struct FaultyWorld {
  std::unique_ptr<HostPal> host = host_pal();
  FaultyPal faulty{*host};
  std::string absent() { return {}; }
  DevicePal& pal() { return faulty; }
  ProcessState state() { return read_process_state(); }
};

struct ChunkWorld {
  std::unique_ptr<ChunkPal> chunks = ChunkPal::make("fake:0", 64 << 10).value();
  std::string absent() { return {}; }
  DevicePal& pal() { return *chunks; }
  ProcessState state() { return read_process_state(); }
};

using Worlds = testing::Types<HostWorld, FaultyWorld, ChunkWorld>;
INSTANTIATE_TYPED_TEST_SUITE_P(host, pal_conformance, Worlds);

// --- one fault at a time
// ---------------------------------------------------------------------------

// Every call of the seam once or more, as a loader and then a worker make them.
Status whole_life(DevicePal& pal) {
  const uint64_t page = pal.properties().granularity_bytes;
  DJINN_TRY(Reservation range, pal.reserve(8 * page));
  DJINN_TRY(Extent extent, pal.create("djinn-test", 4 * page));
  DJINN_CHECK(pal.commit(extent, 0, 2 * page));
  DJINN_CHECK(pal.map(range, 0, extent, 0, 4 * page, Access::kReadWrite));
  DJINN_CHECK(pal.populate(range, 0, 2 * page));
  DJINN_CHECK(pal.copy_in(range, 0, pattern(page)));
  DJINN_CHECK(pal.zero(range, 0, 10));
  DJINN_CHECK(pal.decommit(extent, page, page));
  DJINN_CHECK(pal.protect(range, 0, 4 * page, Access::kRead));
  DJINN_CHECK(pal.unmap(range, 0, 4 * page));
  DJINN_CHECK(pal.seal(extent, Seals::kWrite));
  DJINN_TRY(Fd fd, pal.export_extent(extent));
  DJINN_TRY(Extent imported, pal.import_extent(std::move(fd), 4 * page, Seals::kWrite));
  DJINN_CHECK(pal.map(range, 4 * page, imported, 0, 4 * page, Access::kRead));
  std::vector<std::byte> out(page);
  DJINN_CHECK(pal.copy_out(range, 4 * page, out));
  return pal.unmap(range, 4 * page, 4 * page);
}

TEST(faulty_pal, every_single_fault_comes_out_typed_and_leaves_nothing_behind) {
  const auto host = host_pal();
  FaultyPal pal(*host);
  ASSERT_TRUE(whole_life(pal));
  const uint64_t calls = pal.calls();
  ASSERT_EQ(calls, 16u);
  const ProcessState before = read_process_state();
  for (uint64_t n = 1; n <= calls; ++n) {
    pal.fail_call(n, {ErrorCode::kDeviceLost, "planted"});
    EXPECT_EQ(code_of(whole_life(pal)), ErrorCode::kDeviceLost) << "call " << n;
    EXPECT_EQ(pal.calls(), n);
    EXPECT_EQ(read_process_state(), before) << "call " << n;
  }
  pal.fail_call(calls + 1, {ErrorCode::kDeviceLost, "planted"});
  EXPECT_TRUE(whole_life(pal));
}

TEST(faulty_pal, the_call_after_a_fault_works) {
  const auto host = host_pal();
  FaultyPal pal(*host);
  pal.fail_call(1, {ErrorCode::kOutOfMemory, "planted"});
  const uint64_t page = pal.properties().granularity_bytes;
  EXPECT_EQ(code_of(pal.reserve(page)), ErrorCode::kOutOfMemory);
  EXPECT_TRUE(pal.reserve(page));
}

// --- the host alone
// --------------------------------------------------------------------------------

AvailableMemory memory_of(std::string_view meminfo) {
  return AvailableMemory(
      make_sealed_memfd("djinn-test", std::as_bytes(std::span(meminfo))).value());
}

uint64_t allocated_bytes(const Extent& extent) {
  struct stat info {};
  EXPECT_EQ(::fstat(extent.fd.get(), &info), 0);
  return static_cast<uint64_t>(info.st_blocks) * 512;
}

TEST(host_pal, memory_that_the_machine_lacks_is_refused_before_any_page_is_taken) {
  HostPal pal(memory_of("MemAvailable: 66560 kB\n"));  // 65 MiB: 1 MiB over the headroom
  const Extent extent = pal.create("djinn-test", 8u << 20).value();
  EXPECT_EQ(code_of(pal.commit(extent, 0, 2u << 20)), ErrorCode::kOutOfMemory);
  EXPECT_EQ(allocated_bytes(extent), 0u);
  EXPECT_TRUE(pal.commit(extent, 0, 1u << 20));
}

TEST(host_pal, committing_again_needs_no_memory) {
  HostPal rich(memory_of("MemAvailable: 1048576 kB\n"));
  HostPal poor(memory_of("MemAvailable: 1 kB\n"));
  const Extent extent = rich.create("djinn-test", 8u << 20).value();
  Reservation range = rich.reserve(8u << 20).value();
  ASSERT_TRUE(rich.map(range, 0, extent, 0, 8u << 20, Access::kReadWrite));
  ASSERT_TRUE(rich.commit(extent, 4096, 1u << 20));
  ASSERT_TRUE(rich.populate(range, 4096, 1u << 20));
  EXPECT_TRUE(poor.commit(extent, 4096, 1u << 20));
  EXPECT_EQ(code_of(poor.commit(extent, 0, 1u << 20)), ErrorCode::kOutOfMemory);
}

TEST(host_pal, an_extent_may_be_larger_than_the_machine_while_it_is_sparse) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer leaves no room for 16 TiB of addresses";
#endif
  const auto pal = host_pal();
  const auto extent = pal->create("djinn-test", uint64_t{1} << 44);
  ASSERT_TRUE(extent);
  Reservation range = pal->reserve(uint64_t{1} << 44).value();
  EXPECT_TRUE(pal->map(range, 0, *extent, 0, uint64_t{1} << 44, Access::kReadWrite));
  EXPECT_EQ(allocated_bytes(*extent), 0u);
}

TEST(host_pal, a_reservation_that_takes_anothers_place_releases_it) {
  const auto pal = host_pal();
  const uint64_t page = pal->properties().granularity_bytes;
  const ProcessState before = read_process_state();
  Reservation range = pal->reserve(8 * page).value();
  range = pal->reserve(2 * page).value();
  const uint64_t reserved = kCountsReserved ? 2 * page : 0;
  EXPECT_EQ(read_process_state().reserved_bytes, before.reserved_bytes + reserved);
}

TEST(host_pal, an_unmapped_range_faults) {
  const auto pal = host_pal();
  const uint64_t page = pal->properties().granularity_bytes;
  Reservation range = pal->reserve(page).value();
  const Extent extent = pal->create("djinn-test", page).value();
  ASSERT_TRUE(pal->map(range, 0, extent, 0, page, Access::kReadWrite));
  ASSERT_TRUE(pal->unmap(range, 0, page));
  EXPECT_DEATH(*static_cast<volatile std::byte*>(range.data()) = std::byte{1}, "");
}

}  // namespace
}  // namespace djinn::pal
