// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/model_store.h"

#include <gtest/gtest.h>

#include "daemon/worker/code_for_tests.h"
#include "daemon/worker/model_for_tests.h"
#include "kernel/pal/faulty_pal.h"
#include "kernel/pal/host_pal.h"

namespace djinn::worker {
namespace {

class ModelStoreTest : public ::testing::Test {
 protected:
  ErrorCode mapped(const TestModel& model) {
    return code_of(MappedModel::map(TestModel::kId, model.fds(), false, pal_));
  }
  static std::array<float, 4> read(const MappedModel& model, std::string_view name) {
    std::array<float, 4> numbers{};
    memcpy(numbers.data(), model.weights().find(name)->data.on_host(), sizeof numbers);
    return numbers;
  }

  std::unique_ptr<pal::HostPal> host_ = *pal::HostPal::make();
  pal::FaultyPal pal_{*host_};
  TestModel model_;
};

TEST_F(ModelStoreTest, tensors_are_where_the_manifest_says) {
  const auto model = MappedModel::map(TestModel::kId, model_.fds(), false, pal_);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ((*model)->id(), TestModel::kId);
  EXPECT_FALSE((*model)->parked());
  EXPECT_EQ(read(**model, "w"), model_.w);
  EXPECT_EQ(read(**model, "v"), model_.v);
  EXPECT_EQ((*model)->weights().find("w")->sizes, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ((*model)->weights().find("x"), nullptr);
}

TEST_F(ModelStoreTest, a_model_whose_parts_do_not_agree_is_refused) {
  TestModel beyond = model_;
  beyond.manifest.tensors[0].offset = TestModel::kExtentBytes - 8;
  EXPECT_EQ(mapped(beyond), ErrorCode::kMalformed);
  TestModel nowhere = model_;
  nowhere.manifest.tensors[0].extent = 2;
  EXPECT_EQ(mapped(nowhere), ErrorCode::kMalformed);
  TestModel larger = model_;
  larger.manifest.tensors[0].sizes = {5};
  EXPECT_EQ(mapped(larger), ErrorCode::kMalformed);
  TestModel endless = model_;
  endless.manifest.tensors[0].sizes = {uint64_t{1} << 40, uint64_t{1} << 40};
  EXPECT_NE(mapped(endless), ErrorCode::kOk);
  TestModel more = model_;
  more.manifest.extent_bytes.push_back(4096);
  EXPECT_EQ(mapped(more), ErrorCode::kMalformed);
  EXPECT_EQ(code_of(MappedModel::map(TestModel::kId, {}, false, pal_)), ErrorCode::kMalformed);
}

TEST_F(ModelStoreTest, an_extent_that_could_still_be_written_is_refused) {
  std::vector<Fd> fds = model_.fds();
  fds[1] = *pal::make_memfd("extent", TestModel::kExtentBytes, pal::Seals::kSize);
  EXPECT_FALSE(MappedModel::map(TestModel::kId, std::move(fds), false, pal_));
}

TEST_F(ModelStoreTest, a_model_that_comes_back_is_where_it_was) {
  const auto model = MappedModel::map(TestModel::kId, model_.fds(), false, pal_);
  ASSERT_TRUE(model);
  const DeviceAddress before = (*model)->weights().find("w")->data;
  EXPECT_TRUE((*model)->park(pal_));
  EXPECT_TRUE((*model)->parked());
  EXPECT_TRUE((*model)->park(pal_)) << "once more is nothing";
  ASSERT_TRUE((*model)->map_again(model_.fds(), pal_));
  EXPECT_FALSE((*model)->parked());
  ASSERT_TRUE((*model)->map_again(model_.fds(), pal_)) << "once more is nothing";
  EXPECT_EQ((*model)->weights().find("w")->data, before);
  EXPECT_EQ(read(**model, "w"), model_.w);
}

TEST_F(ModelStoreTest, whatever_call_fails_a_parked_model_stays_parked_and_may_come_again) {
  const auto model = MappedModel::map(TestModel::kId, model_.fds(true), true, pal_);
  ASSERT_TRUE(model);
  uint64_t failures = 0;
  for (uint64_t n = 1;; ++n) {
    pal_.fail_call(n, {ErrorCode::kOutOfMemory, "A test made this call fail."});
    const Status mapped = (*model)->map_again(model_.fds(), pal_);
    const bool failed = pal_.calls() >= n;
    pal_.disarm();
    EXPECT_EQ(mapped.ok(), !failed);
    EXPECT_EQ((*model)->parked(), failed);
    if (!failed) break;
    ++failures;
  }
  EXPECT_GE(failures, 4u) << "two extents are imported, and mapped";
  EXPECT_EQ(read(**model, "v"), model_.v);
}

TEST_F(ModelStoreTest, what_a_step_uses_is_not_parked_before_that_has_ended) {
  const auto model = MappedModel::map(TestModel::kId, model_.fds(), false, pal_);
  ASSERT_TRUE(model);
  ASSERT_TRUE((*model)->use());
  EXPECT_FALSE((*model)->park(pal_));
  EXPECT_EQ(read(**model, "w"), model_.w);
  (*model)->end_use();
  EXPECT_TRUE((*model)->park(pal_));
  EXPECT_FALSE((*model)->use()) << "its bytes are not there";
}

}  // namespace
}  // namespace djinn::worker
