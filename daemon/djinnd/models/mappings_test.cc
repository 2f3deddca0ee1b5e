// SPDX-License-Identifier: Apache-2.0

// Which workers have a model, in a host whose domains have no worker: what they would be told is
// told to nobody.
#include "daemon/djinnd/models/mappings.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <utility>
#include <vector>

#include "ipc/limits.h"
#include "kernel/base/clock.h"
#include "kernel/base/owned_state_for_tests.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon {
namespace {

constexpr Owner kFirstUser = Owner::of_user(1000);
constexpr Owner kSecondUser = Owner::of_user(1001);
constexpr WorkerKey kFirstWorker{kFirstUser, kHostDevice};
constexpr WorkerKey kSecondWorker{kSecondUser, kHostDevice};

class MappingsTest : public ::testing::Test, private WorkerListener {
 protected:
  MappingsTest() {
    Model fresh;
    fresh.id = {1};
    fresh.manifest = *pal::make_memfd("manifest", 1, pal::Seals::kSize);
    model_ = &table_.add(std::move(fresh));
    become(ModelPhase::kResident);
    mappings_.add(model(), kFirstWorker);
  }

  Model& model() { return *model_; }
  void become(ModelPhase phase) { StateForTests::set(model().phase, phase); }
  Model* says_added(WorkerKey key, ModelId id) {
    return mappings_.on_model_added(key, {id, ErrorCode::kOk, {}});
  }
  // Ann's worker has the model.
  Model* added() { return says_added(kFirstWorker, model().id); }
  // Ann's worker dies while it takes the model in.
  bool dies() {
    const OwedAnswer adding{OwedAnswer::Kind::kAddModel, model().id.value, {}};
    return mappings_.worker_died(model(), kFirstWorker,
                                 {.suspect = adding, .admitting = {}, .overran_ms = {}});
  }

 private:
  void worker_ready(WorkerKey) override {}
  void worker_said(WorkerKey, const ipc::WorkerEvent&) override {}
  bool worker_died(WorkerKey, const WorkerDeath&) override { return false; }

  Loop loop_;
  const SystemClock clock_;
  Events events_{clock_};
  Traffic traffic_;
  Spawner spawner_;
  Stragglers stragglers_{loop_};
  DeferredClose deferred_close_;
  SpareWorkers spares_{
      {loop_, spawner_, deferred_close_, stragglers_}, std::array{kHostDevice}, [this](DeviceId) {
        return SparePool::Kind{"worker", ErrorCode::kWorkerLost, 0, {}, {}, traffic_};
      }};
  Domains domains_{loop_, clock_, spares_, *this, events_, 0};
  ModelTable table_;
  Model* model_ = nullptr;

 protected:
  // Where it has one.
  Mappings mappings_{table_, domains_, [this](ModelId, DeviceId) { return copy_; }};
  const std::vector<Fd>* copy_ = nullptr;
};

TEST_F(MappingsTest, a_model_is_there_when_its_worker_has_said_so) {
  EXPECT_FALSE(Mappings::is_added(model(), kFirstWorker));
  EXPECT_EQ(added(), &model());
  EXPECT_TRUE(Mappings::is_added(model(), kFirstWorker));
  EXPECT_FALSE(Mappings::is_added(model(), kSecondWorker));
}

TEST_F(MappingsTest, a_gpus_worker_has_the_model_once_its_copy_is_there) {
  constexpr DeviceId kGpu{DeviceKind::kCuda, 0};
  constexpr WorkerKey kGpuWorker{kFirstUser, kGpu};
  mappings_.add(model(), kGpuWorker);
  EXPECT_EQ(says_added(kGpuWorker, model().id), &model());
  EXPECT_FALSE(Mappings::is_added(model(), kGpuWorker)) << "it has the place alone";
  EXPECT_TRUE(Mappings::has_let_go(model(), kGpu));
  EXPECT_TRUE(mappings_.wanting_gpus(model()).empty());
  EXPECT_EQ(mappings_.on_model_wanted(kGpuWorker, {model().id}), &model());
  EXPECT_EQ(mappings_.wanting_gpus(model()), std::set{kGpu});
  mappings_.refuse_copy(model(), kGpu, {ErrorCode::kOutOfMemory, "no"});
  EXPECT_TRUE(mappings_.wanting_gpus(model()).empty());
  const std::vector<Fd> copy;
  copy_ = &copy;
  mappings_.copy_came(model(), kGpu);
  EXPECT_TRUE(Mappings::has_let_go(model(), kGpu)) << "there is no worker";
  EXPECT_FALSE(Mappings::is_added(model(), kGpuWorker)) << "it has not said so yet";
  EXPECT_FALSE(Mappings::is_added(model(), kFirstWorker)) << "the host's hears nothing of it";
}

TEST_F(MappingsTest, what_a_worker_says_of_models_that_it_does_not_have_is_nothing) {
  EXPECT_EQ(says_added(kSecondWorker, model().id), nullptr);
  EXPECT_EQ(says_added(kFirstWorker, ModelId{2}), nullptr);
  EXPECT_EQ(says_added({kFirstUser, {DeviceKind::kCpu, 1}}, model().id), nullptr)
      << "another device's";
  EXPECT_EQ(mappings_.on_model_wanted(kSecondWorker, {model().id}), nullptr);
  EXPECT_EQ(mappings_.on_model_parked(kFirstWorker, {model().id}), nullptr) << "nobody evicts it";
  EXPECT_EQ(mappings_.on_model_dropped(kFirstWorker, {model().id}), nullptr) << "nobody unloads it";
  EXPECT_FALSE(Mappings::is_wanted(model()));
}

TEST_F(MappingsTest, a_worker_that_cannot_add_a_model_loses_it) {
  EXPECT_EQ(mappings_.on_model_added(kFirstWorker, {model().id, ErrorCode::kOutOfMemory, "none"}),
            &model());
  EXPECT_TRUE(model().mapped->empty());
}

TEST_F(MappingsTest, who_has_no_worker_has_let_go_of_the_bytes) {
  EXPECT_FALSE(Mappings::is_parked(model()));
  become(ModelPhase::kEvicting);
  mappings_.park(model());
  EXPECT_TRUE(Mappings::is_parked(model()));
  become(ModelPhase::kResident);
  mappings_.restore(model());
  EXPECT_FALSE(Mappings::is_parked(model())) << "the next worker has them again";
  become(ModelPhase::kUnloading);
  mappings_.drop(model());
  EXPECT_TRUE(model().mapped->empty());
}

TEST_F(MappingsTest, a_dead_worker_wants_and_maps_nothing_but_keeps_its_place) {
  added();
  mappings_.on_model_wanted(kFirstWorker, {model().id});
  EXPECT_FALSE(Mappings::is_wanted(model())) << "it has the bytes";
  become(ModelPhase::kEvicting);
  mappings_.park(model());
  mappings_.on_model_wanted(kFirstWorker, {model().id});
  EXPECT_TRUE(Mappings::is_wanted(model()));
  EXPECT_FALSE(mappings_.worker_died(model(), kFirstWorker, {}));
  EXPECT_FALSE(Mappings::is_wanted(model()));
  EXPECT_FALSE(Mappings::is_added(model(), kFirstWorker));
  EXPECT_TRUE(Mappings::is_parked(model()));
  EXPECT_TRUE(model().mapped->contains(kFirstWorker));
}

TEST_F(MappingsTest, a_model_that_kills_each_worker_that_takes_it_in_is_given_up) {
  for (uint32_t death = 1; death < limits::kDeathsWithoutProgress; ++death) {
    EXPECT_FALSE(dies()) << death;
  }
  added();
  EXPECT_FALSE(dies()) << "one has had it since";
  for (uint32_t death = 2; death < limits::kDeathsWithoutProgress; ++death) dies();
  EXPECT_TRUE(dies());
  EXPECT_FALSE(model().mapped->contains(kFirstWorker));
}

TEST_F(MappingsTest, runs_that_were_told_that_a_model_stays_away_wait_no_longer) {
  become(ModelPhase::kEvicting);
  mappings_.park(model());
  mappings_.on_model_wanted(kFirstWorker, {model().id});
  EXPECT_TRUE(Mappings::is_wanted(model()));
  become(ModelPhase::kOnDisk);
  mappings_.refuse_runs(model(), {{ErrorCode::kIo, "no"}, kFirstUser, {}, {}});
  EXPECT_FALSE(Mappings::is_wanted(model()));
}

}  // namespace
}  // namespace djinn::daemon
