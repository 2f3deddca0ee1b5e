// SPDX-License-Identifier: Apache-2.0

#include "kernel/executor/output.h"

#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace djinn::exec {
namespace {

TEST(CopyElements, reads_only_elements_and_only_inside_the_storage) {
  const std::vector<float> data{0, 1, 2, 3, 4, 5, 6, 7};
  OutputView view;
  view.dtype = DType::kFloat32;
  view.sizes = {2, 3};
  view.strides = {1, 2};
  view.storage_offset = 1;
  view.storage = reinterpret_cast<const std::byte*>(data.data());
  view.storage_bytes = 7 * sizeof(float);
  std::vector<float> out(6);
  EXPECT_TRUE(copy_elements(view, std::as_writable_bytes(std::span(out))));
  EXPECT_EQ(out, (std::vector<float>{1, 3, 5, 2, 4, 6}));
  EXPECT_FALSE(copy_elements(view, std::as_writable_bytes(std::span(out).first(5))));
  view.storage_bytes -= 1;
  EXPECT_FALSE(copy_elements(view, std::as_writable_bytes(std::span(out))));
}

// What is read of a storage of bytes, and how often.
struct Storage {
  explicit Storage(size_t size) : bytes(size) {
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 37 + i / 251);
  }
  ReadStorage reader() {
    return [this](uint64_t offset, std::span<std::byte> to) -> Status {
      ++reads;
      read += to.size();
      if (fails_at == reads) return Error{ErrorCode::kDeviceLost, "It is lost."};
      EXPECT_LE(offset + to.size(), bytes.size());
      std::memcpy(to.data(), bytes.data() + offset, to.size());
      return {};
    };
  }
  OutputView view(std::vector<int64_t> sizes, std::vector<int64_t> strides, uint64_t offset = 0) {
    OutputView made;
    made.dtype = DType::kInt32;
    made.sizes = std::move(sizes);
    made.strides = std::move(strides);
    made.storage_offset = offset;
    made.storage = bytes.data();
    made.storage_bytes = bytes.size();
    return made;
  }

  std::vector<std::byte> bytes;
  size_t reads = 0;
  uint64_t read = 0;
  size_t fails_at = 0;
};

uint64_t bytes_of(const OutputView& view) {
  uint64_t bytes = size_of(view.dtype);
  for (const int64_t size : view.sizes) bytes *= static_cast<uint64_t>(size);
  return bytes;
}

TEST(CopyElementsThrough, gives_what_copy_elements_gives_whatever_the_room_and_the_layout) {
  Storage storage(4096);
  const OutputView views[] = {
      storage.view({}, {}, 3),                 // one element
      storage.view({1000}, {1}, 5),            // dense
      storage.view({20, 50}, {50, 1}),         // dense, in two dimensions
      storage.view({50, 20}, {1, 50}),         // transposed
      storage.view({7, 3}, {100, 1}, 2),       // rows with gaps
      storage.view({5, 4, 3}, {1, 60, 7}, 1),  // in no order
      storage.view({6, 10}, {0, 1}, 9),        // expanded
      storage.view({4, 1, 8}, {30, 1000, 2}),  // a dimension of one element
      storage.view({0, 8}, {8, 1}),            // nothing
      storage.view({2, 2, 2, 2}, {300, 5, 100, 11}, 4),
  };
  for (const OutputView& view : views) {
    std::vector<std::byte> expected(bytes_of(view));
    ASSERT_TRUE(copy_elements(view, expected));
    for (const size_t room_bytes : {4, 8, 20, 64, 300, 4096}) {
      std::vector<std::byte> room(room_bytes), out(expected.size());
      ASSERT_TRUE(copy_elements_through(view, out, room, storage.reader()));
      EXPECT_EQ(out, expected) << room_bytes;
    }
  }
}

TEST(CopyElementsThrough, reads_each_piece_once_and_no_gap_that_is_larger_than_the_room) {
  Storage storage(1 << 20);
  std::vector<std::byte> room(4096), out(64 * 64 * 4);
  ASSERT_TRUE(copy_elements_through(storage.view({64, 64}, {1, 64}), out, room, storage.reader()));
  EXPECT_EQ(storage.reads, 4u) << "a transposed matrix lies in four rooms";
  EXPECT_EQ(storage.read, out.size());
  storage.reads = storage.read = 0;
  ASSERT_TRUE(
      copy_elements_through(storage.view({64, 64}, {4000, 1}), out, room, storage.reader()));
  EXPECT_EQ(storage.read, out.size()) << "of rows far apart, the rows alone";
}

TEST(CopyElementsThrough, refuses_what_copy_elements_refuses_and_tells_what_failed_in_between) {
  Storage storage(400);
  std::vector<std::byte> room(40), out(400);
  const ReadStorage reader = storage.reader();
  EXPECT_EQ(copy_elements_through(storage.view({100}, {1}, 1), out, room, reader).error().code,
            ErrorCode::kOutOfRange);
  EXPECT_EQ(copy_elements_through(storage.view({99}, {1}), out, room, reader).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(storage.reads, 0u);
  storage.fails_at = 3;
  EXPECT_EQ(copy_elements_through(storage.view({100}, {1}), out, room, reader).error().code,
            ErrorCode::kDeviceLost);
}

}  // namespace
}  // namespace djinn::exec
