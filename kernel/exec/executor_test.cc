#include "kernel/exec/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "kernel/exec/allow_list.h"
#include "kernel/exec/convert.h"
#include "kernel/exec/executor_for_tests.h"
#include "kernel/exec/torch_headers.h"

namespace djinn::exec {
namespace {

using ::testing::HasSubstr;

TEST(Executor, a_linear_gives_the_bytes_of_the_same_call_of_at) {
  const at::Tensor weight = noise({48, 32}, 1);
  const at::Tensor bias = noise({48}, 2);
  const at::Tensor input = noise({5, 32}, 3);
  GraphBuilder b;
  const srg::Expr rows = b.symbol("rows", 1, 64);
  const auto x = b.input("x", DType::kFloat32, {rows, 32});
  const auto w = b.weight("w", DType::kFloat32, {48, 32});
  const auto c = b.weight("b", DType::kFloat32, {48});
  b.output(b.call("aten::linear", {arg(x), arg(w), arg("bias", c)}));
  World world({{"w", weight}, {"b", bias}});
  EXPECT_TRUE(world.admit(b.graph));
  EXPECT_EQ(world.program->outputs()[0].sizes, (std::vector<srg::Expr>{rows, 48}));
  ASSERT_TRUE(world.run({5}, {input}));
  EXPECT_TRUE(same_bytes(world.output(0), at::linear(input, weight, bias)));
}

TEST(AllowList, every_entry_is_sorted_and_exists) {
  World world({});
  const auto names = allowed_operators();
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  for (const std::string_view name : names) EXPECT_TRUE(resolve_operator(name)) << name;
}

}  // namespace
}  // namespace djinn::exec
