// SPDX-License-Identifier: Apache-2.0

// Everything that djinnd makes an extent for, with one that cannot be made: djinnd as a process,
// with a real loader and a worker without kernels.
#include <gtest/gtest.h>

#include "daemon/djinnd/testing/test_daemon.h"

namespace djinn::daemon {
namespace {

using testing::eventually;
using testing::model_file;
using testing::TestClient;
using testing::TestDaemon;

// In the order in which they are made.
enum Extent : uint64_t { kNone, kRefs, kSequence, kSlab, kWeights, kWeightsAgain };
constexpr uint64_t kSlabBytes = 1 << 20;

class Extents : public ::testing::TestWithParam<Extent> {
 protected:
  Extents()
      : daemon_({"--test-extent-fault-at", std::to_string(GetParam())}),
        client_(daemon_),
        observer_(daemon_) {
    observer_.greet(true);
  }

  // Asks for what the extent is for, first as one who is refused, where it cannot be made.
  template <typename Answer, typename Body>
  Answer ask(Extent extent, const Body& body) {
    if (extent == GetParam()) {
      EXPECT_EQ(client_.ask<ipc::Failed>(body).code, ErrorCode::kOutOfMemory);
    }
    return client_.ask<Answer>(body);
  }
  ErrorCode run_that_asks_for_slab() {
    client_.submit_graph(testing::graph_of("fake::take_slab", {kSlabBytes}));
    return client_.completion();
  }
  // Sends the file before each request that opens it.
  ModelId open(Extent extent, const Fd& file) {
    if (extent == GetParam()) {
      client_.ask<ipc::Done>(ipc::AddFiles{1}, {file.get()});
      EXPECT_EQ(client_.ask<ipc::Failed>(ipc::OpenModel{}).code, ErrorCode::kOutOfMemory);
      EXPECT_TRUE(eventually([&] { return status().memory_models_bytes == 0; }));
    }
    return testing::open_model(client_, file).model;
  }
  ipc::StatusReport status() { return observer_.ask<ipc::StatusReport>(ipc::GetStatus{}); }

  TestDaemon daemon_;
  TestClient client_;
  TestClient observer_;
};

TEST_P(Extents, that_cannot_be_made_are_typed_errors_and_nothing_is_lost) {
  if (GetParam() == kRefs) {
    const ipc::Hello hello{ipc::kProtocolVersion, "refused", 1 << 16, false};
    EXPECT_EQ(client_.ask<ipc::Failed>(hello).code, ErrorCode::kOutOfMemory);
    EXPECT_EQ(status().memory_granted_bytes, 0u);
  }
  client_.greet();
  const uint64_t of_session = status().memory_sessions_bytes;
  const auto made =
      ask<ipc::SequenceMade>(kSequence, ipc::MakeSequence{{1, 2, 2, 64, DType::kFloat32, 128}});
  if (GetParam() == kSlab) {
    EXPECT_EQ(run_that_asks_for_slab(), ErrorCode::kOutOfMemory);
    EXPECT_EQ(status().memory_lanes_bytes, 0u);
  }
  EXPECT_EQ(run_that_asks_for_slab(), ErrorCode::kOk);
  EXPECT_EQ(status().memory_lanes_bytes, kSlabBytes);

  const Fd file = model_file(daemon_.directory(), 1 << 18, 'a');
  const ModelId model = open(kWeights, file);
  const uint64_t of_model = status().memory_models_bytes;
  EXPECT_TRUE(eventually([&] {
    const auto list = observer_.ask<ipc::ModelList>(ipc::ListModels{});
    return !list.models.empty() && list.models[0].hashed;
  }));
  client_.ask<ipc::Done>(ipc::CloseModel{model});
  observer_.ask<ipc::Done>(ipc::EvictModel{model});
  EXPECT_EQ(open(kWeightsAgain, file), model) << "it comes back";
  EXPECT_EQ(status().memory_models_bytes, of_model);

  client_.ask<ipc::Done>(ipc::DropSequence{made.sequence});
  EXPECT_EQ(status().memory_sessions_bytes, of_session);
  client_.ask<ipc::Done>(ipc::CloseModel{model});
  observer_.ask<ipc::Done>(ipc::UnloadModel{model});
  client_.disconnect();
  EXPECT_TRUE(eventually([&] {
    const auto now = status();
    return now.memory_granted_bytes == kSlabBytes && now.memory_lanes_bytes == kSlabBytes;
  }));
}

INSTANTIATE_TEST_SUITE_P(each, Extents,
                         ::testing::Values(kNone, kRefs, kSequence, kSlab, kWeights,
                                           kWeightsAgain));

}  // namespace
}  // namespace djinn::daemon
