// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/client.h"

#include <gtest/gtest.h>

#include "kernel/srg/builder.h"
#include "libdjinn-client/testing/fake_daemon.h"

namespace djinn::client {
namespace {

constexpr ModelId kModel{testing::FakeDaemon::kModel};

srg::Graph graph_of(const char* op) {
  srg::GraphBuilder g("test");
  g.output("y", g.op(op, {g.input("x", DType::kFloat32, {4})}));
  return *std::move(g).finish();
}

class DefineProgram : public ::testing::Test {
 protected:
  DefineProgram() {
    ConnectOptions options;
    options.host = daemon_.host();
    options.staging_bytes = 1 << 16;
    client_ = *Client::connect(options);
  }
  bool define(const srg::Graph& graph, ModelId model = {}) {
    return client_->define_program(graph, model)->was_cached;
  }

  testing::FakeDaemon daemon_;
  std::unique_ptr<Client> client_;
};

TEST_F(DefineProgram, djinnd_is_asked_once_for_each_graph_and_model) {
  EXPECT_FALSE(define(graph_of("aten::neg")));
  EXPECT_TRUE(define(graph_of("aten::neg")));
  EXPECT_FALSE(define(graph_of("aten::abs")));
  EXPECT_FALSE(define(graph_of("aten::neg"), kModel));
  EXPECT_TRUE(define(graph_of("aten::neg"), kModel));
  EXPECT_EQ(daemon_.defines(), 3u);
}

TEST_F(DefineProgram, a_model_that_is_closed_takes_its_programs_along) {
  define(graph_of("aten::neg"));
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(define(graph_of("aten::neg"), kModel));
    ASSERT_TRUE(client_->close_model(kModel).ok());
  }
  EXPECT_TRUE(define(graph_of("aten::neg"))) << "it is of no model";
}

TEST_F(DefineProgram, a_session_that_is_over_defines_nothing_that_it_knows) {
  define(graph_of("aten::neg"));
  daemon_.stop();
  EXPECT_TRUE(testing::eventually([&] { return !client_->check(); }));
  EXPECT_FALSE(client_->define_program(graph_of("aten::neg"), {}));
}

}  // namespace
}  // namespace djinn::client
