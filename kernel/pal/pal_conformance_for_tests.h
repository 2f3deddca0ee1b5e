// SPDX-License-Identifier: Apache-2.0

// What every DevicePal must do: a pal is correct when all of this passes on it.
//
//   World    makes one pal for one test:
//              std::string absent()     why there is none here: the test is skipped; "" otherwise
//              DevicePal& pal()
//              ProcessState state()     what has to be as before when nothing is left behind
//
// What a device has not, its properties say; no test asks which device it is.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernel/pal/device_pal.h"
#include "kernel/pal/memfd.h"
#include "kernel/pal/pal_values_for_tests.h"
#include "kernel/pal/process_state.h"

namespace djinn::pal {

template <typename World>
class pal_conformance : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = world_.absent(); !why.empty()) GTEST_SKIP() << why;
  }

  DevicePal& pal() { return world_.pal(); }
  uint64_t page() { return pal().properties().granularity_bytes; }
  bool has_parts() { return pal().properties().extents_have_parts; }
  ProcessState state() { return world_.state(); }
  // A test whose pal fails goes on with nothing, and the tests after it with the pal.
  Reservation reserve(uint64_t pages) { return or_nothing(pal().reserve(pages * page())); }
  Extent create(uint64_t pages) { return or_nothing(pal().create("djinn-test", pages * page())); }
  template <typename T>
  static T or_nothing(Result<T> result) {
    EXPECT_TRUE(succeeded(result));
    return result.ok() ? std::move(result).value() : T();
  }

  World world_;
};

TYPED_TEST_SUITE_P(pal_conformance);

TYPED_TEST_P(pal_conformance, granularity_is_a_power_of_two) {
  EXPECT_GE(this->page(), 1u);
  EXPECT_EQ(this->page() & (this->page() - 1), 0u);
  EXPECT_FALSE(this->pal().properties().name.empty());
}

TYPED_TEST_P(pal_conformance, what_is_copied_in_comes_out) {
  Reservation range = this->reserve(4);
  const Extent extent = this->create(2);
  ASSERT_TRUE(succeeded(this->pal().commit(extent, 0, 2 * this->page())));
  ASSERT_TRUE(succeeded(
      this->pal().map(range, this->page(), extent, 0, 2 * this->page(), Access::kReadWrite)));
  ASSERT_TRUE(succeeded(this->pal().populate(range, this->page(), 2 * this->page())));
  const auto in = pattern(this->page() + 100);
  std::vector<std::byte> out(in.size());
  ASSERT_TRUE(succeeded(this->pal().copy_in(range, this->page() + 13, in)));
  ASSERT_TRUE(succeeded(this->pal().copy_out(range, this->page() + 13, out)));
  EXPECT_EQ(in, out);
}

TYPED_TEST_P(pal_conformance, what_is_copied_inside_is_the_same_and_leaves_its_source) {
  Reservation range = this->reserve(3);
  const Extent extent = this->create(3);
  ASSERT_TRUE(
      succeeded(this->pal().map(range, 0, extent, 0, 3 * this->page(), Access::kReadWrite)));
  const auto in = pattern(this->page() + 100);
  ASSERT_TRUE(succeeded(this->pal().copy_in(range, 13, in)));
  const uint64_t to = this->page() + 777;
  ASSERT_TRUE(succeeded(this->pal().copy(range, 13, to, in.size())));
  for (const uint64_t at : {uint64_t{13}, to}) {
    std::vector<std::byte> out(in.size());
    ASSERT_TRUE(succeeded(this->pal().copy_out(range, at, out)));
    EXPECT_EQ(in, out);
  }
}

TYPED_TEST_P(pal_conformance, a_copy_inside_needs_leave_to_read_and_to_write) {
  Reservation range = this->reserve(3);
  const Extent first = this->create(1), second = this->create(1);
  ASSERT_TRUE(succeeded(this->pal().map(range, 0, first, 0, this->page(), Access::kRead)));
  ASSERT_TRUE(
      succeeded(this->pal().map(range, this->page(), second, 0, this->page(), Access::kReadWrite)));
  EXPECT_TRUE(succeeded(this->pal().copy(range, 0, this->page(), 100)));
  EXPECT_EQ(code_of(this->pal().copy(range, this->page(), 0, 100)), ErrorCode::kPermissionDenied);
  EXPECT_EQ(code_of(this->pal().copy(range, 2 * this->page(), this->page(), 100)),
            ErrorCode::kOutOfRange);
}

TYPED_TEST_P(pal_conformance, new_memory_is_zero) {
  Reservation range = this->reserve(1);
  const Extent extent = this->create(1);
  ASSERT_TRUE(succeeded(this->pal().map(range, 0, extent, 0, this->page(), Access::kRead)));
  std::vector<std::byte> out(this->page(), std::byte{1});
  ASSERT_TRUE(succeeded(this->pal().copy_out(range, 0, out)));
  EXPECT_EQ(out, std::vector<std::byte>(this->page()));
}

TYPED_TEST_P(pal_conformance, one_extent_mapped_twice_is_the_same_memory) {
  Reservation range = this->reserve(2);
  const Extent extent = this->create(1);
  ASSERT_TRUE(succeeded(this->pal().map(range, 0, extent, 0, this->page(), Access::kReadWrite)));
  ASSERT_TRUE(
      succeeded(this->pal().map(range, this->page(), extent, 0, this->page(), Access::kRead)));
  const auto in = pattern(100);
  std::vector<std::byte> out(100);
  ASSERT_TRUE(succeeded(this->pal().copy_in(range, 7, in)));
  ASSERT_TRUE(succeeded(this->pal().copy_out(range, this->page() + 7, out)));
  EXPECT_EQ(in, out);
}

TYPED_TEST_P(pal_conformance, memory_survives_unmapping_and_is_mapped_elsewhere) {
  Reservation range = this->reserve(4);
  const Extent extent = this->create(2);
  const auto in = pattern(this->page());
  ASSERT_TRUE(
      succeeded(this->pal().map(range, 0, extent, 0, 2 * this->page(), Access::kReadWrite)));
  ASSERT_TRUE(succeeded(this->pal().copy_in(range, this->page(), in)));
  ASSERT_TRUE(succeeded(this->pal().unmap(range, 0, 2 * this->page())));
  ASSERT_TRUE(succeeded(
      this->pal().map(range, 2 * this->page(), extent, 0, 2 * this->page(), Access::kRead)));
  std::vector<std::byte> out(in.size());
  ASSERT_TRUE(succeeded(this->pal().copy_out(range, 3 * this->page(), out)));
  EXPECT_EQ(in, out);
}

TYPED_TEST_P(pal_conformance, a_part_of_an_extent_is_mapped_or_refused) {
  Reservation range = this->reserve(4);
  const Extent extent = this->create(2);
  const auto in = pattern(this->page());
  ASSERT_TRUE(
      succeeded(this->pal().map(range, 0, extent, 0, 2 * this->page(), Access::kReadWrite)));
  ASSERT_TRUE(succeeded(this->pal().copy_in(range, this->page(), in)));
  const auto map_half = [&](uint64_t extent_offset) {
    return this->pal().map(range, 3 * this->page(), extent, extent_offset, this->page(),
                           Access::kRead);
  };
  if (!this->has_parts()) {
    EXPECT_EQ(code_of(map_half(0)), ErrorCode::kUnsupported);
    EXPECT_EQ(code_of(map_half(this->page())), ErrorCode::kUnsupported);
    return;
  }
  ASSERT_TRUE(succeeded(map_half(this->page())));
  std::vector<std::byte> out(in.size());
  ASSERT_TRUE(succeeded(this->pal().copy_out(range, 3 * this->page(), out)));
  EXPECT_EQ(in, out);
}

TYPED_TEST_P(pal_conformance, extents_outlive_the_reservation) {
  const Extent extent = this->create(1);
  const auto in = pattern(50);
  {
    Reservation range = this->reserve(1);
    ASSERT_TRUE(succeeded(this->pal().map(range, 0, extent, 0, this->page(), Access::kReadWrite)));
    ASSERT_TRUE(succeeded(this->pal().copy_in(range, 0, in)));
  }
  Reservation range = this->reserve(1);
  ASSERT_TRUE(succeeded(this->pal().map(range, 0, extent, 0, this->page(), Access::kRead)));
  std::vector<std::byte> out(50);
  ASSERT_TRUE(succeeded(this->pal().copy_out(range, 0, out)));
  EXPECT_EQ(in, out);
}

TYPED_TEST_P(pal_conformance, a_moved_reservation_keeps_its_addresses) {
  Reservation range = this->reserve(2);
  std::byte* const data = range.data();
  const Extent extent = this->create(1);
  ASSERT_TRUE(succeeded(this->pal().map(range, 0, extent, 0, this->page(), Access::kReadWrite)));
  Reservation moved = std::move(range);
  EXPECT_EQ(moved.data(), data);
  EXPECT_TRUE(succeeded(this->pal().unmap(moved, 0, this->page())));
}

TYPED_TEST_P(pal_conformance, mapped_ranges_never_overlap) {
  Reservation range = this->reserve(6);
  const Extent extent = this->create(2);
  const uint64_t page = this->page();
  ASSERT_TRUE(succeeded(this->pal().map(range, 2 * page, extent, 0, 2 * page, Access::kRead)));
  const std::array<std::pair<uint64_t, uint64_t>, 5> overlaps{
      {{2, 2}, {1, 2}, {3, 1}, {3, 3}, {0, 6}}};
  for (const auto& [offset, pages] : overlaps) {
    EXPECT_EQ(
        code_of(this->pal().map(range, offset * page, extent, 0, pages * page, Access::kRead)),
        ErrorCode::kAlreadyExists);
  }
  EXPECT_TRUE(succeeded(this->pal().map(range, 0, extent, 0, 2 * page, Access::kRead)));
  EXPECT_TRUE(succeeded(this->pal().map(range, 4 * page, extent, 0, 2 * page, Access::kRead)));
}

TYPED_TEST_P(pal_conformance, ranges_outside_reservation_or_extent_are_refused) {
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
  EXPECT_EQ(code_of(pal.decommit(extent, page, 2 * page)),
            this->has_parts() ? ErrorCode::kOutOfRange : ErrorCode::kUnsupported);
}

TYPED_TEST_P(pal_conformance, offsets_and_sizes_off_the_granularity_are_refused) {
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

TYPED_TEST_P(pal_conformance, only_a_whole_mapping_is_unmapped_or_protected) {
  Reservation range = this->reserve(3);
  const Extent extent = this->create(2);
  const uint64_t page = this->page();
  ASSERT_TRUE(succeeded(this->pal().map(range, 0, extent, 0, 2 * page, Access::kRead)));
  EXPECT_EQ(code_of(this->pal().unmap(range, 0, page)), ErrorCode::kNotFound);
  EXPECT_EQ(code_of(this->pal().unmap(range, page, page)), ErrorCode::kNotFound);
  EXPECT_EQ(code_of(this->pal().unmap(range, 2 * page, page)), ErrorCode::kNotFound);
  EXPECT_EQ(code_of(this->pal().protect(range, 0, page, Access::kRead)), ErrorCode::kNotFound);
  EXPECT_TRUE(succeeded(this->pal().unmap(range, 0, 2 * page)));
  EXPECT_EQ(code_of(this->pal().unmap(range, 0, 2 * page)), ErrorCode::kNotFound);
}

TYPED_TEST_P(pal_conformance, access_is_checked_at_every_copy) {
  Reservation range = this->reserve(2);
  const Extent extent = this->create(1);
  const uint64_t page = this->page();
  DevicePal& pal = this->pal();
  std::vector<std::byte> bytes(page);
  ASSERT_TRUE(succeeded(pal.map(range, 0, extent, 0, page, Access::kRead)));
  EXPECT_EQ(code_of(pal.copy_in(range, 0, bytes)), ErrorCode::kPermissionDenied);
  EXPECT_EQ(code_of(pal.zero(range, 0, page)), ErrorCode::kPermissionDenied);
  EXPECT_EQ(code_of(pal.populate(range, 0, page)), ErrorCode::kPermissionDenied);
  ASSERT_TRUE(succeeded(pal.protect(range, 0, page, Access::kNone)));
  EXPECT_EQ(code_of(pal.copy_out(range, 0, bytes)), ErrorCode::kPermissionDenied);
  ASSERT_TRUE(succeeded(pal.protect(range, 0, page, Access::kReadWrite)));
  EXPECT_TRUE(succeeded(pal.copy_in(range, 0, bytes)));
  EXPECT_EQ(code_of(pal.copy_in(range, 1, bytes)), ErrorCode::kOutOfRange);
  EXPECT_EQ(code_of(pal.copy_out(range, page, bytes)), ErrorCode::kOutOfRange);
}

TYPED_TEST_P(pal_conformance, a_range_may_lie_in_several_mappings_back_to_back) {
  Reservation range = this->reserve(6);
  const Extent first = this->create(1), second = this->create(2), third = this->create(1);
  const uint64_t page = this->page();
  DevicePal& pal = this->pal();
  ASSERT_TRUE(succeeded(pal.map(range, 0, first, 0, page, Access::kReadWrite)));
  ASSERT_TRUE(succeeded(pal.map(range, page, second, 0, 2 * page, Access::kReadWrite)));
  ASSERT_TRUE(succeeded(pal.map(range, 4 * page, third, 0, page, Access::kReadWrite)));
  const auto in = pattern(2 * page);
  ASSERT_TRUE(succeeded(pal.copy_in(range, page / 2, in)));
  std::vector<std::byte> out(in.size());
  ASSERT_TRUE(succeeded(pal.copy_out(range, page / 2, out)));
  EXPECT_EQ(out, in);
  ASSERT_TRUE(succeeded(pal.zero(range, page - 1, 2)));
  ASSERT_TRUE(succeeded(pal.copy(range, page - 8, 2 * page, 16)));
  EXPECT_EQ(code_of(pal.copy_in(range, 2 * page, in)), ErrorCode::kOutOfRange) << "a gap";
  EXPECT_EQ(code_of(pal.copy_out(range, 4 * page, out)), ErrorCode::kOutOfRange) << "the end";
  ASSERT_TRUE(succeeded(pal.protect(range, page, 2 * page, Access::kRead)));
  EXPECT_EQ(code_of(pal.copy_in(range, page / 2, in)), ErrorCode::kPermissionDenied);
  EXPECT_TRUE(succeeded(pal.copy_out(range, page / 2, out)));
}

TYPED_TEST_P(pal_conformance, zero_clears_exactly_its_range) {
  Reservation range = this->reserve(1);
  const Extent extent = this->create(1);
  ASSERT_TRUE(succeeded(this->pal().map(range, 0, extent, 0, this->page(), Access::kReadWrite)));
  auto bytes = pattern(this->page());
  ASSERT_TRUE(succeeded(this->pal().copy_in(range, 0, bytes)));
  ASSERT_TRUE(succeeded(this->pal().zero(range, 5, 90)));
  std::fill(bytes.begin() + 5, bytes.begin() + 95, std::byte{0});
  std::vector<std::byte> out(bytes.size());
  ASSERT_TRUE(succeeded(this->pal().copy_out(range, 0, out)));
  EXPECT_EQ(out, bytes);
}

TYPED_TEST_P(pal_conformance, an_exported_extent_is_the_same_memory_and_lives_on_alone) {
  Reservation range = this->reserve(2);
  const uint64_t page = this->page();
  auto original = std::make_unique<Extent>(this->create(1));
  ASSERT_TRUE(succeeded(this->pal().map(range, 0, *original, 0, page, Access::kReadWrite)));
  ASSERT_TRUE(succeeded(this->pal().copy_in(range, 0, pattern(page))));
  auto fd = this->pal().export_extent(*original);
  ASSERT_TRUE(succeeded(fd));
  ASSERT_TRUE(succeeded(this->pal().unmap(range, 0, page)));
  original.reset();
  const auto imported = this->pal().import_extent(std::move(fd).value(), page, Seals::kNone);
  ASSERT_TRUE(succeeded(imported));
  ASSERT_TRUE(succeeded(this->pal().map(range, page, *imported, 0, page, Access::kRead)));
  std::vector<std::byte> out(page);
  ASSERT_TRUE(succeeded(this->pal().copy_out(range, page, out)));
  EXPECT_EQ(out, pattern(page));
}

TYPED_TEST_P(pal_conformance, an_import_is_distrusted) {
  const Extent extent = this->create(2);
  DevicePal& pal = this->pal();
  const auto import = [&](Fd fd, uint64_t bytes, Seals seals) {
    return code_of(pal.import_extent(std::move(fd), bytes, seals));
  };
  const auto exported = [&] { return this->or_nothing(pal.export_extent(extent)); };
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

TYPED_TEST_P(pal_conformance, an_import_that_could_shrink_is_refused) {
  if (!this->pal().properties().enforces_seals) GTEST_SKIP() << "this device has no seals";
  Fd growable = make_memfd("djinn-test", this->page()).value();
  EXPECT_EQ(code_of(this->pal().import_extent(std::move(growable), this->page(), Seals::kNone)),
            ErrorCode::kInvalidArgument);
}

TYPED_TEST_P(pal_conformance, a_sealed_extent_cannot_be_written_by_anybody) {
  if (!this->pal().properties().enforces_seals) GTEST_SKIP() << "this device has no seals";
  Reservation range = this->reserve(2);
  const Extent extent = this->create(1);
  const uint64_t page = this->page();
  DevicePal& pal = this->pal();
  ASSERT_TRUE(succeeded(pal.map(range, 0, extent, 0, page, Access::kReadWrite)));
  ASSERT_TRUE(succeeded(pal.copy_in(range, 0, pattern(page))));
  EXPECT_EQ(code_of(pal.seal(extent, Seals::kWrite)), ErrorCode::kBusy);
  ASSERT_TRUE(succeeded(pal.unmap(range, 0, page)));
  ASSERT_TRUE(succeeded(pal.seal(extent, Seals::kWrite)));

  EXPECT_EQ(code_of(pal.map(range, 0, extent, 0, page, Access::kReadWrite)),
            ErrorCode::kPermissionDenied);
  ASSERT_TRUE(succeeded(pal.map(range, 0, extent, 0, page, Access::kRead)));
  EXPECT_EQ(code_of(pal.protect(range, 0, page, Access::kReadWrite)), ErrorCode::kPermissionDenied);
  EXPECT_EQ(code_of(pal.decommit(extent, 0, page)),
            this->has_parts() ? ErrorCode::kPermissionDenied : ErrorCode::kUnsupported);
  std::vector<std::byte> out(page);
  ASSERT_TRUE(succeeded(pal.copy_out(range, 0, out)));
  EXPECT_EQ(out, pattern(page));
  EXPECT_TRUE(succeeded(
      pal.import_extent(this->or_nothing(pal.export_extent(extent)), page, Seals::kWrite)));
}

TYPED_TEST_P(pal_conformance, a_read_only_mapping_made_before_the_seal_delays_it_too) {
  if (!this->pal().properties().enforces_seals) GTEST_SKIP() << "this device has no seals";
  Reservation range = this->reserve(1);
  const Extent extent = this->create(1);
  ASSERT_TRUE(succeeded(this->pal().map(range, 0, extent, 0, this->page(), Access::kRead)));
  EXPECT_EQ(code_of(this->pal().seal(extent, Seals::kWrite)), ErrorCode::kBusy);
  ASSERT_TRUE(succeeded(this->pal().unmap(range, 0, this->page())));
  EXPECT_TRUE(succeeded(this->pal().seal(extent, Seals::kWrite)));
}

TYPED_TEST_P(pal_conformance, decommitted_memory_is_zero_and_can_be_committed_again) {
  if (!this->has_parts()) GTEST_SKIP() << "extents of this device have no parts";
  Reservation range = this->reserve(2);
  const Extent extent = this->create(2);
  const uint64_t page = this->page();
  DevicePal& pal = this->pal();
  ASSERT_TRUE(succeeded(pal.commit(extent, 0, 2 * page)));
  ASSERT_TRUE(succeeded(pal.map(range, 0, extent, 0, 2 * page, Access::kReadWrite)));
  ASSERT_TRUE(succeeded(pal.copy_in(range, 0, pattern(2 * page))));
  ASSERT_TRUE(succeeded(pal.decommit(extent, page, page)));
  ASSERT_TRUE(succeeded(pal.commit(extent, page, page)));
  auto expected = pattern(2 * page);
  std::fill(expected.begin() + static_cast<ptrdiff_t>(page), expected.end(), std::byte{0});
  std::vector<std::byte> out(2 * page);
  ASSERT_TRUE(succeeded(pal.copy_out(range, 0, out)));
  EXPECT_EQ(out, expected);
}

TYPED_TEST_P(pal_conformance, commit_keeps_what_is_there) {
  Reservation range = this->reserve(2);
  const Extent extent = this->create(2);
  ASSERT_TRUE(
      succeeded(this->pal().map(range, 0, extent, 0, 2 * this->page(), Access::kReadWrite)));
  ASSERT_TRUE(succeeded(this->pal().copy_in(range, 0, pattern(this->page()))));
  ASSERT_TRUE(succeeded(this->pal().commit(extent, 0, 2 * this->page())));
  std::vector<std::byte> out(this->page());
  ASSERT_TRUE(succeeded(this->pal().copy_out(range, 0, out)));
  EXPECT_EQ(out, pattern(this->page()));
}

TYPED_TEST_P(pal_conformance, what_goes_out_of_scope_leaves_nothing_behind) {
  const auto live = [&] {
    Reservation range = this->reserve(8);
    const Extent extent = this->create(1);
    ASSERT_TRUE(succeeded(this->pal().map(range, 0, extent, 0, this->page(), Access::kReadWrite)));
    ASSERT_TRUE(succeeded(
        this->pal().map(range, 4 * this->page(), extent, 0, this->page(), Access::kRead)));
    range = this->reserve(2);  // releases the first, mappings included
  };
  live();  // what a driver keeps for the next time is there from now on
  const ProcessState before = this->state();
  live();
  EXPECT_EQ(this->state(), before);
}

TYPED_TEST_P(pal_conformance, threads_work_with_reservations_of_their_own) {
  const auto live = [&](unsigned seed) {
    Reservation range = this->reserve(1);
    const Extent extent = this->create(1);
    const auto in = pattern(this->page(), seed);
    std::vector<std::byte> out(in.size());
    ASSERT_TRUE(succeeded(this->pal().map(range, 0, extent, 0, this->page(), Access::kReadWrite)));
    ASSERT_TRUE(succeeded(this->pal().copy_in(range, 0, in)));
    ASSERT_TRUE(succeeded(this->pal().copy_out(range, 0, out)));
    EXPECT_EQ(in, out);
  };
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= 4; ++seed) threads.emplace_back(live, seed);
  for (std::thread& thread : threads) thread.join();
}

REGISTER_TYPED_TEST_SUITE_P(
    pal_conformance, granularity_is_a_power_of_two, what_is_copied_in_comes_out,
    what_is_copied_inside_is_the_same_and_leaves_its_source,
    a_copy_inside_needs_leave_to_read_and_to_write, new_memory_is_zero,
    one_extent_mapped_twice_is_the_same_memory, memory_survives_unmapping_and_is_mapped_elsewhere,
    a_part_of_an_extent_is_mapped_or_refused, threads_work_with_reservations_of_their_own,
    extents_outlive_the_reservation, a_moved_reservation_keeps_its_addresses,
    mapped_ranges_never_overlap, ranges_outside_reservation_or_extent_are_refused,
    offsets_and_sizes_off_the_granularity_are_refused,
    only_a_whole_mapping_is_unmapped_or_protected, access_is_checked_at_every_copy,
    a_range_may_lie_in_several_mappings_back_to_back, zero_clears_exactly_its_range,
    an_exported_extent_is_the_same_memory_and_lives_on_alone, an_import_is_distrusted,
    an_import_that_could_shrink_is_refused, a_sealed_extent_cannot_be_written_by_anybody,
    a_read_only_mapping_made_before_the_seal_delays_it_too,
    decommitted_memory_is_zero_and_can_be_committed_again, commit_keeps_what_is_there,
    what_goes_out_of_scope_leaves_nothing_behind);

}  // namespace djinn::pal
