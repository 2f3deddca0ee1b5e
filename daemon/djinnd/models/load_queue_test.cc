// SPDX-License-Identifier: Apache-2.0

// Loads in their turns and what they hold, in a host where no loader starts: a load that was begun
// waits for one until it is aborted.
#include "daemon/djinnd/models/load_queue.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "daemon/djinnd/testing/run_until.h"
#include "daemon/djinnd/testing/two_devices.h"
#include "kernel/base/owned_state_for_tests.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon {
namespace {

constexpr uint64_t kBytes = 1 << 20;
constexpr uint64_t kDevice = 16 * kBytes;
constexpr Owner kAnn = Owner::of_user(1000);
constexpr Owner kBob = Owner::of_user(1001);
constexpr DeviceId kOther{DeviceKind::kFake, 0};
constexpr LoadQueue::Turn kAnns{.user = kAnn};
constexpr LoadQueue::Turn kBobs{.user = kBob};

// A load that waits for its turn is on its files: those of its user's other loads keep it.
class FakeListener final : public LoadListener {
 public:
  void load_identified(Load&, const ipc::Identified&) override {}
  void load_planned(Load&, const ipc::Planned&) override {}
  void load_progressed(Load&, uint64_t) override {}
  void load_finished(Load&, const ipc::Loaded&, Fd&) override {}
  void load_hashed(Load&, const ipc::Hashed&) override {}
  void load_failed(Load& load, const Error&) override { failed.push_back(load.id()); }
  void load_looked_at(Load& load, bool on_files) override {
    (on_files ? queued : begun).push_back(load.id());
  }
  void load_ended(LoadId id) override { ended.push_back(id); }

  std::vector<LoadId> failed, queued, begun, ended;
};

class LoadQueueTest : public ::testing::Test {
 protected:
  LoadId add(LoadQueue::Turn turn, DeviceId device = kHostDevice) {
    return queue_.add({}, device, turn, listener_);
  }
  void abort(LoadId id) {
    queue_.abort(id);
    testing::run_until(loop_, "the load has ended",
                       [&] { return std::ranges::count(listener_.ended, id) == 1; });
  }
  // Which of the loads have begun, at the next look.
  std::vector<LoadId> begun() {
    listener_.begun.clear();
    listener_.queued.clear();
    testing::run_until(loop_, "a look",
                       [&] { return !listener_.begun.empty() || !listener_.queued.empty(); });
    return listener_.begun;
  }
  // A model that the load reads, with its memory granted to that.
  Model loading(LoadId load, DeviceId device = kHostDevice) {
    Model model;
    model.id = {7};
    model.load = load;
    model.key().device = device;
    devices_.extents_of(device).create(ExtentUse::kWeights, kBytes, [&](Result<Fd> extent) {
      model.extents.push_back(*std::move(extent));
    });
    EXPECT_TRUE(pal::commit_ahead(model.extents[0], 0, kBytes));
    devices_.of(device).request(Memory::of_load(load), kBytes,
                                [](const Status& granted) { EXPECT_TRUE(granted.ok()); });
    return model;
  }
  uint64_t held_by(LoadId load) { return memory_.held_by(Memory::of_load(load)); }

  Loop loop_;
  testing::TwoDevices two_{loop_, kOther, kDevice};
  testing::OwnExtents& extents_ = two_.of_host;
  testing::OwnExtents& others_ = two_.of_other;
  const Devices& devices_ = two_.devices;
  Memory& memory_ = devices_.first();
  FakeListener listener_;

 private:
  IdSource ids_{1};
  Traffic traffic_;
  Spawner spawner_;
  Stragglers stragglers_{loop_};
  DeferredClose deferred_close_;
  SparePool loaders_{
      {loop_, spawner_, deferred_close_, stragglers_},
      {"loader", ErrorCode::kLoaderLost, 1'000'000, [] { return ChildProgram(); }, {}, traffic_}};

 protected:
  LoadQueue queue_{loop_, ids_, loaders_, devices_};
};

TEST_F(LoadQueueTest, of_each_turn_so_many_run_and_the_next_when_one_is_gone) {
  std::vector<LoadId> loads;
  for (size_t i = 0; i <= LoadQueue::kLoadsPerUser; ++i) loads.push_back(add(kAnns));
  const LoadId bobs = add(kBobs);
  const LoadId return_of_anns = add({.user = kAnn, .returns = true});
  EXPECT_EQ(begun().size(), LoadQueue::kLoadsPerUser + 2);
  EXPECT_EQ(listener_.queued, std::vector{loads.back()});
  EXPECT_EQ(std::ranges::count(listener_.begun, bobs), 1);
  EXPECT_EQ(std::ranges::count(listener_.begun, return_of_anns), 1);
  abort(bobs);
  EXPECT_EQ(std::ranges::count(begun(), loads.back()), 0) << "it is no other user's turn";
  abort(loads.front());
  EXPECT_EQ(std::ranges::count(begun(), loads.back()), 1);
}

TEST_F(LoadQueueTest, one_that_is_aborted_in_the_queue_is_never_begun) {
  std::vector<LoadId> loads;
  for (size_t i = 0; i < LoadQueue::kLoadsPerUser + 2; ++i) loads.push_back(add(kAnns));
  const LoadId aborted = loads[LoadQueue::kLoadsPerUser];
  queue_.abort(aborted);
  abort(loads.front());
  EXPECT_EQ(queue_.find(aborted), nullptr);
  EXPECT_EQ(std::ranges::count(begun(), loads.back()), 1);
}

TEST_F(LoadQueueTest, where_loaders_do_not_start_nobody_is_kept_waiting) {
  std::vector<LoadId> loads;
  for (size_t i = 0; i <= LoadQueue::kLoadsPerUser; ++i) loads.push_back(add(kAnns));
  queue_.refuse_waiting();
  EXPECT_TRUE(listener_.failed.empty()) << "they may start yet";
  testing::run_until(loop_, "loaders fail", [&] { return !queue_.check_loaders().ok(); });
  queue_.refuse_waiting();
  EXPECT_EQ(listener_.failed.size(), loads.size());
  const LoadId late = add(kBobs);
  EXPECT_EQ(std::ranges::count(listener_.failed, late), 0) << "not from within";
  testing::run_until(loop_, "it has ended",
                     [&] { return std::ranges::count(listener_.ended, late) == 1; });
  EXPECT_EQ(std::ranges::count(listener_.failed, late), 1);
}

TEST_F(LoadQueueTest, what_a_failed_load_was_to_fill_counts_until_its_loader_is_gone) {
  const LoadId load = add(kAnns);
  Model model = loading(load);
  queue_.abandon(model);
  EXPECT_TRUE(model.extents.empty());
  EXPECT_EQ(held_by(load), kBytes);
  EXPECT_EQ(queue_.leaving_bytes(kHostDevice), kBytes);
  abort(load);
  testing::run_until(loop_, "it is free", [&] { return held_by(load) == 0; });
  EXPECT_EQ(queue_.leaving_bytes(kHostDevice), 0u);
  EXPECT_TRUE(memory_.check().ok());
}

TEST_F(LoadQueueTest, a_loader_that_does_not_end_has_its_memory_taken_back) {
  const LoadId load = add(kAnns);
  Model model = loading(load);
  const Fd extent = *model.extents[0].duplicate();
  queue_.abandon(model);
  testing::run_until(loop_, "it is free", [&] { return held_by(load) == 0; });
  EXPECT_NE(queue_.find(load), nullptr) << "it is still there";
  struct stat info {};
  ASSERT_EQ(::fstat(extent.get(), &info), 0);
  EXPECT_EQ(info.st_blocks, 0);
  abort(load);
  EXPECT_TRUE(memory_.check().ok());
}

TEST_F(LoadQueueTest, extents_are_sealed_taken_back_and_freed_by_the_source_of_their_device) {
  const LoadId stuck = add(kAnns, kOther);
  Model model = loading(stuck, kOther);
  EXPECT_EQ(others_.held(), 1u);
  queue_.abandon(model);
  const Memory& memory = devices_.of(kOther);
  testing::run_until(loop_, "it is taken back", [&] { return memory.granted_bytes() == 0; });
  EXPECT_EQ(others_.decommitted(), 1u);
  abort(stuck);
  const LoadId failed = add(kAnns, kOther);
  Model sealed = loading(failed, kOther);
  EXPECT_EQ(others_.held(), 2u);
  EXPECT_TRUE(queue_.seal(sealed));
  queue_.abandon(sealed);
  abort(failed);
  testing::run_until(loop_, "it is free", [&] { return memory.granted_bytes() == 0; });
  EXPECT_EQ(others_.held(), 1u) << "the first was closed, not freed";
  EXPECT_EQ(extents_.held(), 0u);
}

TEST_F(LoadQueueTest, what_a_sealed_return_held_is_its_loads_again_when_it_fails) {
  const LoadId load = add({.user = kAnn, .returns = true});
  Model model = loading(load);
  queue_.hand_over(*queue_.find(load), model.id);
  EXPECT_EQ(held_by(load), 0u);
  queue_.abandon(model);
  EXPECT_EQ(held_by(load), kBytes);
  EXPECT_EQ(memory_.held_by(Memory::of_model(model.id)), 0u);
}

TEST_F(LoadQueueTest, what_a_model_left_to_loaders_is_held_by_one_after_the_other) {
  const LoadId first = add(kAnns);
  const LoadId second = add(kAnns);
  constexpr ModelId kGone{7};
  memory_.request(Memory::of_model(kGone), kBytes, [](const Status&) {});
  Model gone;
  gone.id = kGone;
  queue_.leave_to({first, second}, gone);
  EXPECT_EQ(memory_.held_by(Memory::of_model(kGone)), 0u);
  EXPECT_EQ(held_by(first) + held_by(second), kBytes);
  const LoadId holder = held_by(first) > 0 ? first : second;
  const LoadId other = holder == first ? second : first;
  abort(holder);
  EXPECT_EQ(held_by(other), kBytes);
  abort(other);
  EXPECT_EQ(memory_.granted_bytes(), 0u);
}

}  // namespace
}  // namespace djinn::daemon
