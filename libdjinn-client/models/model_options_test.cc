// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/models/model_options.h"

#include <gtest/gtest.h>

#include "libdjinn-client/testing/fake_daemon.h"

namespace djinn::client {
namespace {

using srg::Numerics;
using srg::WeightForm;

// djinnd is configured to exact numerics.
class ModelOptionsTest : public ::testing::Test {
 protected:
  ModelOptionsTest() {
    ConnectOptions options;
    options.host = daemon_.host();
    options.staging_bytes = 1 << 16;
    client_ = *Client::connect(options);
  }
  Result<Numerics> numerics(const ModelOptions& options, std::optional<Numerics> said) {
    OpenedModel model;
    model.id = {testing::FakeDaemon::kModel};
    model.numerics = said;
    return numerics_of(*client_, model, options);
  }

  testing::FakeDaemon daemon_;
  std::unique_ptr<Client> client_;
};

TEST_F(ModelOptionsTest, an_option_wins_over_the_model_and_the_model_over_the_configuration) {
  EXPECT_EQ(*numerics({}, {}), Numerics::kExact);
  EXPECT_EQ(*numerics({}, Numerics::kFast), Numerics::kFast);
  EXPECT_EQ(*numerics({Numerics::kExact, WeightForm::kPlain}, Numerics::kFast), Numerics::kExact);
  EXPECT_EQ(*numerics({Numerics::kFastOnly, WeightForm::kInt8}, Numerics::kExact),
            Numerics::kFastOnly);
}

TEST_F(ModelOptionsTest, weights_in_int8_are_fast_where_nobody_has_said_anything) {
  EXPECT_EQ(*numerics({{}, WeightForm::kInt8}, {}), Numerics::kFast);
  EXPECT_EQ(*numerics({{}, WeightForm::kInt8}, Numerics::kFastOnly), Numerics::kFastOnly);
}

TEST_F(ModelOptionsTest, options_of_int8_in_exact_numerics_do_not_agree) {
  EXPECT_EQ(check_options({Numerics::kExact, WeightForm::kInt8}).error().code,
            ErrorCode::kUnsupported);
  EXPECT_TRUE(check_options({Numerics::kExact, WeightForm::kPlain}).ok());
  EXPECT_TRUE(check_options({Numerics::kFast, WeightForm::kInt8}).ok());
}

TEST_F(ModelOptionsTest, a_model_in_int8_that_is_said_to_be_exact_is_refused_and_closed) {
  const auto refused = numerics({{}, WeightForm::kInt8}, Numerics::kExact);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(daemon_.closes(), 1u);
}

}  // namespace
}  // namespace djinn::client
