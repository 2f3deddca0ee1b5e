// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/chunks.h"

#include <utility>
#include <vector>

#include "daemon/worker/djinnd_for_tests.h"
#include "kernel/pal/chunk_pal.h"
#include "kernel/pal/memfd.h"

namespace djinn::worker {
namespace {

constexpr uint64_t kGranule = uint64_t{64} << 10;
constexpr uint64_t kBase = 4 * kGranule;
constexpr uint64_t kWindow = vmu::Window::kChunkBytes * 8;

class HeapChunksTest : public DjinndTest {
 protected:
  HeapChunksTest() {
    auto memory = chunks_.open(kWindow, kBase);
    EXPECT_TRUE(memory.ok());
    window_.emplace(*vmu::Window::open(*pal_, chunks_, *std::move(memory), {}));
  }
  std::optional<ErrorCode> cover(uint64_t bytes) {
    const vmu::Range range{0, bytes};
    return code_of(window_->cover({&range, 1}));
  }
  // Gives what was asked for, or, if told so, one extent that is too small.
  ipc::GrantRequest give(bool is_small = false) {
    auto request = heard<ipc::GrantRequest>();
    std::vector<Fd> memory;
    for (const ipc::MemoryRange& place : request.places) {
      const uint64_t bytes = is_small ? kGranule : place.bytes;
      memory.push_back(*pal::make_memfd("chunk", bytes, pal::Seals::kSize));
    }
    grants_.deliver(ipc::GiveMemory{request.request, request.bytes}, std::move(memory));
    return request;
  }

  std::unique_ptr<pal::ChunkPal> pal_ = *pal::ChunkPal::make("chunks", kGranule);
  HeapChunks chunks_{grants_, *pal_};
  std::optional<vmu::Window> window_;
};

TEST_F(HeapChunksTest, before_djinnd_knows_the_worker_there_is_the_base_alone) {
  EXPECT_EQ(cover(kBase), ErrorCode::kOk);
  EXPECT_EQ(cover(kBase + 1), ErrorCode::kOutOfMemory);
  EXPECT_TRUE(nothing_is_said());
  chunks_.begin(0);
  EXPECT_EQ(cover(kBase + 1), kPending);
  EXPECT_EQ(heard<ipc::GrantRequest>().kind, ipc::GrantKind::kHeap);
}

TEST_F(HeapChunksTest, what_it_has_taken_by_itself_is_told_and_is_no_part_of_the_heap) {
  chunks_.begin(kBase);
  const auto told = heard<ipc::GrantRequest>();
  EXPECT_EQ(told.kind, ipc::GrantKind::kHeap);
  EXPECT_EQ(told.bytes, kBase);
  EXPECT_TRUE(told.places.empty());
  ASSERT_EQ(cover(kBase + 1), kPending);
  answer(told);
  EXPECT_EQ(cover(kBase + 1), kPending) << "that was no answer to the heap's question";
  (void)give();
  EXPECT_EQ(cover(kBase + 1), ErrorCode::kOk);
}

TEST_F(HeapChunksTest, what_is_given_lies_where_it_was_asked_for_and_goes_back_whole) {
  chunks_.begin(0);
  ASSERT_EQ(cover(kBase + 1), kPending);
  const ipc::GrantRequest request = give();
  ASSERT_EQ(request.places.size(), 1u);
  EXPECT_EQ(request.places[0].offset, kBase);
  EXPECT_EQ(request.places[0].bytes, request.bytes);
  EXPECT_FALSE(request.session.valid());
  ASSERT_EQ(cover(kBase + 1), ErrorCode::kOk);
  EXPECT_EQ(window_->committed_bytes(), kBase + request.bytes);
  EXPECT_EQ(window_->give_back({}, kBase), request.bytes);
  const auto returned = heard<ipc::GrantReturn>();
  EXPECT_EQ(returned.kind, ipc::GrantKind::kHeap);
  EXPECT_EQ((std::pair{returned.offset, returned.bytes}), (std::pair{kBase, request.bytes}));
}

TEST_F(HeapChunksTest, what_is_not_what_was_asked_for_goes_back_at_once) {
  chunks_.begin(0);
  ASSERT_EQ(cover(kBase + 1), kPending);
  const ipc::GrantRequest request = give(true);
  EXPECT_EQ(cover(kBase + 1), ErrorCode::kOutOfRange);
  EXPECT_EQ(heard<ipc::GrantReturn>().bytes, request.bytes);
  EXPECT_EQ(window_->committed_bytes(), kBase);
}

TEST_F(HeapChunksTest, what_nobody_waits_for_any_more_goes_back_when_it_comes) {
  chunks_.begin(0);
  ASSERT_EQ(cover(kBase + 1), kPending);
  grants_.forget(ipc::GrantKind::kHeap, {});
  const ipc::GrantRequest request = give();
  const auto returned = heard<ipc::GrantReturn>();
  EXPECT_EQ(returned.kind, ipc::GrantKind::kHeap);
  EXPECT_EQ(returned.bytes, request.bytes);
}

}  // namespace
}  // namespace djinn::worker
