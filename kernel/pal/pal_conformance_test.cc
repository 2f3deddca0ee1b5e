// SPDX-License-Identifier: Apache-2.0

// What every DevicePal must do. A new pal is added to Worlds and is correct when all of this
// passes.

#include <gtest/gtest.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "kernel/pal/faulty_pal.h"
#include "kernel/pal/host_pal.h"
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
  DevicePal& pal() { return *host; }
};

struct FaultyWorld {
  std::unique_ptr<HostPal> host = host_pal();
  FaultyPal faulty{*host};
  DevicePal& pal() { return faulty; }
};

ErrorCode code_of(const Status& status) {
  return status ? ErrorCode::kOk : status.error().code;
}

template <typename T>
ErrorCode code_of(const Result<T>& result) {
  return result.ok() ? ErrorCode::kOk : result.error().code;
}

std::vector<std::byte> pattern(size_t bytes, unsigned seed = 1) {
  std::vector<std::byte> out(bytes);
  for (size_t i = 0; i < bytes; ++i)
    out[i] = static_cast<std::byte>((i * 31 + seed * 17) % 251 + 1);
  return out;
}

template <typename World>
class pal_conformance : public testing::Test {
 protected:
  DevicePal& pal() { return world_.pal(); }
  uint64_t page() { return pal().properties().granularity_bytes; }
  Reservation reserve(uint64_t pages) { return pal().reserve(pages * page()).value(); }
  Extent create(uint64_t pages) { return pal().create("djinn-test", pages * page()).value(); }

  World world_;
};

using Worlds = testing::Types<HostWorld, FaultyWorld>;
TYPED_TEST_SUITE(pal_conformance, Worlds);

TYPED_TEST(pal_conformance, granularity_is_a_power_of_two) {
  EXPECT_GE(this->page(), 1u);
  EXPECT_EQ(this->page() & (this->page() - 1), 0u);
  EXPECT_FALSE(this->pal().properties().name.empty());
}

TYPED_TEST(pal_conformance, what_is_copied_in_comes_out) {
  Reservation range = this->reserve(4);
  const Extent extent = this->create(2);
  ASSERT_TRUE(this->pal().commit(extent, 0, 2 * this->page()));
  ASSERT_TRUE(
      this->pal().map(range, this->page(), extent, 0, 2 * this->page(), Access::kReadWrite));
  ASSERT_TRUE(this->pal().populate(range, this->page(), 2 * this->page()));
  const auto in = pattern(this->page() + 100);
  std::vector<std::byte> out(in.size());
  ASSERT_TRUE(this->pal().copy_in(range, this->page() + 13, in));
  ASSERT_TRUE(this->pal().copy_out(range, this->page() + 13, out));
  EXPECT_EQ(in, out);
}

TYPED_TEST(pal_conformance, what_is_copied_inside_is_the_same_and_leaves_its_source) {
  Reservation range = this->reserve(3);
  const Extent extent = this->create(3);
  ASSERT_TRUE(this->pal().map(range, 0, extent, 0, 3 * this->page(), Access::kReadWrite));
  const auto in = pattern(this->page() + 100);
  ASSERT_TRUE(this->pal().copy_in(range, 13, in));
  const uint64_t to = this->page() + 777;
  ASSERT_TRUE(this->pal().copy(range, 13, to, in.size()));
  for (const uint64_t at : {uint64_t{13}, to}) {
    std::vector<std::byte> out(in.size());
    ASSERT_TRUE(this->pal().copy_out(range, at, out));
    EXPECT_EQ(in, out);
  }
}

TYPED_TEST(pal_conformance, a_copy_inside_needs_leave_to_read_and_to_write) {
  Reservation range = this->reserve(3);
  const Extent extent = this->create(3);
  ASSERT_TRUE(this->pal().map(range, 0, extent, 0, this->page(), Access::kRead));
  ASSERT_TRUE(
      this->pal().map(range, this->page(), extent, this->page(), this->page(), Access::kReadWrite));
  EXPECT_TRUE(this->pal().copy(range, 0, this->page(), 100));
  EXPECT_EQ(code_of(this->pal().copy(range, this->page(), 0, 100)), ErrorCode::kPermissionDenied);
  EXPECT_EQ(code_of(this->pal().copy(range, 2 * this->page(), this->page(), 100)),
            ErrorCode::kOutOfRange);
}

TYPED_TEST(pal_conformance, new_memory_is_zero) {
  Reservation range = this->reserve(1);
  const Extent extent = this->create(1);
  ASSERT_TRUE(this->pal().map(range, 0, extent, 0, this->page(), Access::kRead));
  std::vector<std::byte> out(this->page(), std::byte{1});
  ASSERT_TRUE(this->pal().copy_out(range, 0, out));
  EXPECT_EQ(out, std::vector<std::byte>(this->page()));
}

TYPED_TEST(pal_conformance, one_extent_mapped_twice_is_the_same_memory) {
  Reservation range = this->reserve(2);
  const Extent extent = this->create(1);
  ASSERT_TRUE(this->pal().map(range, 0, extent, 0, this->page(), Access::kReadWrite));
  ASSERT_TRUE(this->pal().map(range, this->page(), extent, 0, this->page(), Access::kRead));
  const auto in = pattern(100);
  std::vector<std::byte> out(100);
  ASSERT_TRUE(this->pal().copy_in(range, 7, in));
  ASSERT_TRUE(this->pal().copy_out(range, this->page() + 7, out));
  EXPECT_EQ(in, out);
}

TYPED_TEST(pal_conformance, memory_survives_unmapping_and_is_mapped_elsewhere) {
  Reservation range = this->reserve(4);
  const Extent extent = this->create(2);
  const auto in = pattern(this->page());
  ASSERT_TRUE(this->pal().map(range, 0, extent, 0, 2 * this->page(), Access::kReadWrite));
  ASSERT_TRUE(this->pal().copy_in(range, this->page(), in));
  ASSERT_TRUE(this->pal().unmap(range, 0, 2 * this->page()));
  ASSERT_TRUE(
      this->pal().map(range, 3 * this->page(), extent, this->page(), this->page(), Access::kRead));
  std::vector<std::byte> out(in.size());
  ASSERT_TRUE(this->pal().copy_out(range, 3 * this->page(), out));
  EXPECT_EQ(in, out);
}

TYPED_TEST(pal_conformance, extents_outlive_the_reservation) {
  const Extent extent = this->create(1);
  const auto in = pattern(50);
  {
    Reservation range = this->reserve(1);
    ASSERT_TRUE(this->pal().map(range, 0, extent, 0, this->page(), Access::kReadWrite));
    ASSERT_TRUE(this->pal().copy_in(range, 0, in));
  }
  Reservation range = this->reserve(1);
  ASSERT_TRUE(this->pal().map(range, 0, extent, 0, this->page(), Access::kRead));
  std::vector<std::byte> out(50);
  ASSERT_TRUE(this->pal().copy_out(range, 0, out));
  EXPECT_EQ(in, out);
}

TYPED_TEST(pal_conformance, a_moved_reservation_keeps_its_addresses) {
  Reservation range = this->reserve(2);
  std::byte* const data = range.data();
  const Extent extent = this->create(1);
  ASSERT_TRUE(this->pal().map(range, 0, extent, 0, this->page(), Access::kReadWrite));
  Reservation moved = std::move(range);
  EXPECT_EQ(moved.data(), data);
  EXPECT_TRUE(this->pal().unmap(moved, 0, this->page()));
}

TYPED_TEST(pal_conformance, mapped_ranges_never_overlap) {
  Reservation range = this->reserve(6);
  const Extent extent = this->create(6);
  const uint64_t page = this->page();
  ASSERT_TRUE(this->pal().map(range, 2 * page, extent, 0, 2 * page, Access::kRead));
  const std::array<std::pair<uint64_t, uint64_t>, 5> overlaps{
      {{2, 2}, {1, 2}, {3, 1}, {3, 3}, {0, 6}}};
  for (const auto& [offset, pages] : overlaps) {
    EXPECT_EQ(
        code_of(this->pal().map(range, offset * page, extent, 0, pages * page, Access::kRead)),
        ErrorCode::kAlreadyExists);
  }
  EXPECT_TRUE(this->pal().map(range, 0, extent, 0, 2 * page, Access::kRead));
  EXPECT_TRUE(this->pal().map(range, 4 * page, extent, 0, 2 * page, Access::kRead));
}

TYPED_TEST(pal_conformance, ranges_outside_reservation_or_extent_are_refused) {
  Reservation range = this->reserve(2);
  const Extent extent = this->create(2);
  const uint64_t page = this->page(), top = UINT64_MAX - page + 1;
  DevicePal& pal = this->pal();
  EXPECT_EQ(code_of(pal.map(range, 2 * page, extent, 0, page, Access::kRead)),
            ErrorCode::kOutOfRange);
  EXPECT_EQ(code_of(pal.map(range, 0, extent, page, 2 * page, Access::kRead)),
            ErrorCode::kOutOfRange);
  EXPECT_EQ(code_of(pal.map(range, top, extent, 0, 2 * page, Access::kRead)),
            ErrorCode::kOutOfRange);
  EXPECT_EQ(code_of(pal.map(range, 0, extent, top, 2 * page, Access::kRead)),
            ErrorCode::kOutOfRange);
  EXPECT_EQ(code_of(pal.commit(extent, page, 2 * page)), ErrorCode::kOutOfRange);
  EXPECT_EQ(code_of(pal.decommit(extent, page, 2 * page)), ErrorCode::kOutOfRange);
}

TYPED_TEST(pal_conformance, offsets_and_sizes_off_the_granularity_are_refused) {
  if (this->page() == 1) GTEST_SKIP() << "any offset is aligned";
  Reservation range = this->reserve(2);
  const Extent extent = this->create(2);
  DevicePal& pal = this->pal();
  EXPECT_EQ(code_of(pal.reserve(1)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(pal.reserve(0)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(pal.create("x", this->page() + 1)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(pal.create("x", 0)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(pal.map(range, 1, extent, 0, this->page(), Access::kRead)),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(pal.map(range, 0, extent, 0, 1, Access::kRead)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(pal.commit(extent, 1, this->page())), ErrorCode::kInvalidArgument);
}

TYPED_TEST(pal_conformance, only_a_whole_mapping_is_unmapped_or_protected) {
  Reservation range = this->reserve(3);
  const Extent extent = this->create(2);
  const uint64_t page = this->page();
  ASSERT_TRUE(this->pal().map(range, 0, extent, 0, 2 * page, Access::kRead));
  EXPECT_EQ(code_of(this->pal().unmap(range, 0, page)), ErrorCode::kNotFound);
  EXPECT_EQ(code_of(this->pal().unmap(range, page, page)), ErrorCode::kNotFound);
  EXPECT_EQ(code_of(this->pal().unmap(range, 2 * page, page)), ErrorCode::kNotFound);
  EXPECT_EQ(code_of(this->pal().protect(range, 0, page, Access::kRead)), ErrorCode::kNotFound);
  EXPECT_TRUE(this->pal().unmap(range, 0, 2 * page));
  EXPECT_EQ(code_of(this->pal().unmap(range, 0, 2 * page)), ErrorCode::kNotFound);
}

TYPED_TEST(pal_conformance, access_is_checked_at_every_copy) {
  Reservation range = this->reserve(2);
  const Extent extent = this->create(1);
  const uint64_t page = this->page();
  DevicePal& pal = this->pal();
  std::vector<std::byte> bytes(page);
  ASSERT_TRUE(pal.map(range, 0, extent, 0, page, Access::kRead));
  EXPECT_EQ(code_of(pal.copy_in(range, 0, bytes)), ErrorCode::kPermissionDenied);
  EXPECT_EQ(code_of(pal.zero(range, 0, page)), ErrorCode::kPermissionDenied);
  EXPECT_EQ(code_of(pal.populate(range, 0, page)), ErrorCode::kPermissionDenied);
  ASSERT_TRUE(pal.protect(range, 0, page, Access::kNone));
  EXPECT_EQ(code_of(pal.copy_out(range, 0, bytes)), ErrorCode::kPermissionDenied);
  ASSERT_TRUE(pal.protect(range, 0, page, Access::kReadWrite));
  EXPECT_TRUE(pal.copy_in(range, 0, bytes));
  EXPECT_EQ(code_of(pal.copy_in(range, 1, bytes)), ErrorCode::kOutOfRange);
  EXPECT_EQ(code_of(pal.copy_out(range, page, bytes)), ErrorCode::kOutOfRange);
}

TYPED_TEST(pal_conformance, zero_clears_exactly_its_range) {
  Reservation range = this->reserve(1);
  const Extent extent = this->create(1);
  ASSERT_TRUE(this->pal().map(range, 0, extent, 0, this->page(), Access::kReadWrite));
  auto bytes = pattern(this->page());
  ASSERT_TRUE(this->pal().copy_in(range, 0, bytes));
  ASSERT_TRUE(this->pal().zero(range, 5, 90));
  std::fill(bytes.begin() + 5, bytes.begin() + 95, std::byte{0});
  std::vector<std::byte> out(bytes.size());
  ASSERT_TRUE(this->pal().copy_out(range, 0, out));
  EXPECT_EQ(out, bytes);
}

TYPED_TEST(pal_conformance, an_exported_extent_is_the_same_memory_and_lives_on_alone) {
  Reservation range = this->reserve(2);
  const uint64_t page = this->page();
  auto original = std::make_unique<Extent>(this->create(1));
  ASSERT_TRUE(this->pal().map(range, 0, *original, 0, page, Access::kReadWrite));
  ASSERT_TRUE(this->pal().copy_in(range, 0, pattern(page)));
  auto fd = this->pal().export_extent(*original);
  ASSERT_TRUE(fd);
  ASSERT_TRUE(this->pal().unmap(range, 0, page));
  original.reset();
  const auto imported = this->pal().import_extent(std::move(fd).value(), page, Seals::kNone);
  ASSERT_TRUE(imported);
  ASSERT_TRUE(this->pal().map(range, page, *imported, 0, page, Access::kRead));
  std::vector<std::byte> out(page);
  ASSERT_TRUE(this->pal().copy_out(range, page, out));
  EXPECT_EQ(out, pattern(page));
}

TYPED_TEST(pal_conformance, an_import_is_distrusted) {
  const Extent extent = this->create(2);
  DevicePal& pal = this->pal();
  const auto import = [&](Fd fd, uint64_t bytes, Seals seals) {
    return code_of(pal.import_extent(std::move(fd), bytes, seals));
  };
  const auto exported = [&] { return pal.export_extent(extent).value(); };
  EXPECT_EQ(import(exported(), this->page(), Seals::kNone), ErrorCode::kOutOfRange);
  EXPECT_EQ(import(exported(), 3 * this->page(), Seals::kNone), ErrorCode::kOutOfRange);
  EXPECT_EQ(import(Fd(), 2 * this->page(), Seals::kNone), ErrorCode::kInvalidArgument);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const Fd write_end(ends[1]);
  EXPECT_EQ(import(Fd(ends[0]), 2 * this->page(), Seals::kNone), ErrorCode::kInvalidArgument);
  if (pal.properties().enforces_seals) {
    EXPECT_EQ(import(exported(), 2 * this->page(), Seals::kWrite), ErrorCode::kInvalidArgument);
  }
}

TYPED_TEST(pal_conformance, an_import_that_could_shrink_is_refused) {
  if (!this->pal().properties().enforces_seals) GTEST_SKIP() << "this device has no seals";
  Fd growable = make_memfd("djinn-test", this->page()).value();
  EXPECT_EQ(code_of(this->pal().import_extent(std::move(growable), this->page(), Seals::kNone)),
            ErrorCode::kInvalidArgument);
}

TYPED_TEST(pal_conformance, a_sealed_extent_cannot_be_written_by_anybody) {
  if (!this->pal().properties().enforces_seals) GTEST_SKIP() << "this device has no seals";
  Reservation range = this->reserve(2);
  const Extent extent = this->create(1);
  const uint64_t page = this->page();
  DevicePal& pal = this->pal();
  ASSERT_TRUE(pal.map(range, 0, extent, 0, page, Access::kReadWrite));
  ASSERT_TRUE(pal.copy_in(range, 0, pattern(page)));
  EXPECT_EQ(code_of(pal.seal(extent, Seals::kWrite)), ErrorCode::kBusy);
  ASSERT_TRUE(pal.unmap(range, 0, page));
  ASSERT_TRUE(pal.seal(extent, Seals::kWrite));

  EXPECT_EQ(code_of(pal.map(range, 0, extent, 0, page, Access::kReadWrite)),
            ErrorCode::kPermissionDenied);
  ASSERT_TRUE(pal.map(range, 0, extent, 0, page, Access::kRead));
  EXPECT_EQ(code_of(pal.protect(range, 0, page, Access::kReadWrite)), ErrorCode::kPermissionDenied);
  EXPECT_EQ(code_of(pal.decommit(extent, 0, page)), ErrorCode::kPermissionDenied);
  std::vector<std::byte> out(page);
  ASSERT_TRUE(pal.copy_out(range, 0, out));
  EXPECT_EQ(out, pattern(page));
  EXPECT_TRUE(pal.import_extent(pal.export_extent(extent).value(), page, Seals::kWrite));
}

TYPED_TEST(pal_conformance, a_read_only_mapping_made_before_the_seal_delays_it_too) {
  if (!this->pal().properties().enforces_seals) GTEST_SKIP() << "this device has no seals";
  Reservation range = this->reserve(1);
  const Extent extent = this->create(1);
  ASSERT_TRUE(this->pal().map(range, 0, extent, 0, this->page(), Access::kRead));
  EXPECT_EQ(code_of(this->pal().seal(extent, Seals::kWrite)), ErrorCode::kBusy);
  ASSERT_TRUE(this->pal().unmap(range, 0, this->page()));
  EXPECT_TRUE(this->pal().seal(extent, Seals::kWrite));
}

TYPED_TEST(pal_conformance, decommitted_memory_is_zero_and_can_be_committed_again) {
  Reservation range = this->reserve(2);
  const Extent extent = this->create(2);
  const uint64_t page = this->page();
  DevicePal& pal = this->pal();
  ASSERT_TRUE(pal.commit(extent, 0, 2 * page));
  ASSERT_TRUE(pal.map(range, 0, extent, 0, 2 * page, Access::kReadWrite));
  ASSERT_TRUE(pal.copy_in(range, 0, pattern(2 * page)));
  const Status gone = pal.decommit(extent, page, page);
  if (code_of(gone) == ErrorCode::kUnsupported)
    GTEST_SKIP() << "extents of this device have no parts";
  ASSERT_TRUE(gone);
  ASSERT_TRUE(pal.commit(extent, page, page));
  auto expected = pattern(2 * page);
  std::fill(expected.begin() + static_cast<ptrdiff_t>(page), expected.end(), std::byte{0});
  std::vector<std::byte> out(2 * page);
  ASSERT_TRUE(pal.copy_out(range, 0, out));
  EXPECT_EQ(out, expected);
}

TYPED_TEST(pal_conformance, commit_keeps_what_is_there) {
  Reservation range = this->reserve(2);
  const Extent extent = this->create(2);
  ASSERT_TRUE(this->pal().map(range, 0, extent, 0, 2 * this->page(), Access::kReadWrite));
  ASSERT_TRUE(this->pal().copy_in(range, 0, pattern(this->page())));
  ASSERT_TRUE(this->pal().commit(extent, 0, 2 * this->page()));
  std::vector<std::byte> out(this->page());
  ASSERT_TRUE(this->pal().copy_out(range, 0, out));
  EXPECT_EQ(out, pattern(this->page()));
}

TYPED_TEST(pal_conformance, what_goes_out_of_scope_leaves_nothing_behind) {
  const ProcessState before = read_process_state();
  {
    Reservation range = this->reserve(8);
    const Extent extent = this->create(2);
    ASSERT_TRUE(this->pal().map(range, 0, extent, 0, this->page(), Access::kReadWrite));
    ASSERT_TRUE(this->pal().map(range, 4 * this->page(), extent, 0, this->page(), Access::kRead));
    range = this->reserve(2);  // releases the first, mappings included
    const uint64_t reserved = kCountsReserved ? 2 * this->page() : 0;
    EXPECT_EQ(read_process_state().reserved_bytes, before.reserved_bytes + reserved);
  }
  EXPECT_EQ(read_process_state(), before);
}

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
