// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/shape_rules.h"

#include <ATen/ops/empty_strided.h>
#include <gtest/gtest.h>

#include "kernel/exec/executor_for_tests.h"
#include "kernel/exec/torch_headers.h"

namespace djinn::exec {
namespace {

using Stack = std::vector<c10::IValue>;

at::Tensor on_meta(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kMeta));
}

std::string text_of(const at::Tensor& tensor) {
  std::ostringstream out;
  out << tensor.scalar_type() << ' ' << tensor.sizes() << ' ' << tensor.strides();
  return out.str();
}

// What the CPU's kernel gives, and what the rule says that it gives.
void expect_rule_of(const std::string& op, const std::string& overload, const Stack& stack) {
  const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(op.c_str(), overload.c_str());
  Stack results = stack;
  handle.callBoxed(&results);
  Stack arguments;
  for (const c10::IValue& value : stack) {
    arguments.push_back(value.isTensor() ? c10::IValue(on_meta(value.toTensor())) : value);
  }
  const ShapeRule rule = shape_rule_of(op);
  ASSERT_NE(rule, nullptr) << op;
  const std::vector<at::Tensor> told = rule(arguments);
  ASSERT_EQ(told.size(), results.size()) << op;
  for (size_t i = 0; i < told.size(); ++i) {
    ASSERT_EQ(told[i].defined(), results[i].toTensor().defined()) << op << ", result " << i;
    if (!told[i].defined()) continue;
    EXPECT_EQ(text_of(told[i]), text_of(results[i].toTensor()))
        << op << ", result " << i << " of " << text_of(stack[0].toTensor());
  }
}

// Of four channels: as made, channels last, with a stride between elements, expanded, transposed.
std::vector<at::Tensor> inputs() {
  const at::Tensor plane = noise({2, 4, 3, 5}, 1);
  return {noise({6, 4}, 1),
          noise({2, 4, 3}, 1),
          noise({2, 4, 1}, 1),
          noise({1, 4, 1, 1}, 1),
          plane,
          plane.contiguous(at::MemoryFormat::ChannelsLast),
          noise({2, 4, 3, 10}, 1).slice(3, 0, 10, 2),
          noise({2, 4, 1, 5}, 1).expand({2, 4, 3, 5}),
          noise({2, 4, 5, 3}, 1).transpose(2, 3),
          noise({3, 4, 2}, 1).transpose(0, 2)};
}

class BatchNorm : public ::testing::TestWithParam<bool> {
 protected:
  // The channels' scale, shift, mean and variance.
  static Stack beginning(const at::Tensor& input, at::ScalarType parameters) {
    Stack stack{input};
    for (int i = 0; i < 4; ++i) stack.emplace_back(at::full({4}, 1.0, parameters));
    return stack;
  }
  static void end(Stack& stack) {
    stack.emplace_back(0.1);
    stack.emplace_back(1e-5);
  }
};

TEST_P(BatchNorm, results_lie_as_the_cpus_do) {
  const bool training = GetParam();
  for (const at::Tensor& input : inputs()) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      Stack stack = beginning(input.to(type), at::kFloat);
      if (!training) {
        Stack evaluated = stack;
        end(evaluated);
        expect_rule_of("aten::_native_batch_norm_legit_no_training", "", evaluated);
        expect_rule_of("aten::_batch_norm_no_update", "", evaluated);
      }
      stack.emplace_back(training);
      end(stack);
      for (const char* const op : {"aten::native_batch_norm", "aten::_native_batch_norm_legit",
                                   "aten::_native_batch_norm_legit_functional"}) {
        expect_rule_of(op, "", stack);
      }
      stack.emplace_back(false);  // no cuDNN
      expect_rule_of("aten::batch_norm", "", stack);
    }
  }
}

// As of an instance norm of no parameters, which leaves undefined tensors in their places.
TEST(ShapeRules, a_batch_norm_of_no_parameters_has_statistics_of_its_inputs_dtype) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    Stack stack{noise({2, 4, 3}, 1).to(type)};
    for (int i = 0; i < 4; ++i) stack.emplace_back(at::Tensor());
    for (const c10::IValue& last : Stack{true, 0.1, 1e-5}) stack.push_back(last);
    expect_rule_of("aten::native_batch_norm", "", stack);
    Stack layer{noise({2, 4, 3}, 1).to(type), std::vector<int64_t>{3}};
    for (int i = 0; i < 2; ++i) layer.emplace_back(at::Tensor());
    layer.emplace_back(1e-5);
    expect_rule_of("aten::native_layer_norm", "", layer);
  }
}

// Of parameters of the input's dtype, of float32 beside a smaller input, and of none.
TEST(ShapeRules, a_group_norm_is_as_the_cpus) {
  const at::Tensor planes = noise({2, 4, 3, 5}, 1);
  for (const at::Tensor& input : {planes, planes.contiguous(at::MemoryFormat::ChannelsLast)}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const at::Tensor& parameters :
           {at::Tensor(), at::full({4}, 1.0, at::kFloat), at::full({4}, 1.0, type)}) {
        const Stack sizes{int64_t{2}, int64_t{4}, int64_t{15}, int64_t{2}, 1e-5};
        Stack stack{input.to(type), parameters, parameters};
        stack.insert(stack.end(), sizes.begin(), sizes.end());
        expect_rule_of("aten::native_group_norm", "", stack);
        expect_rule_of("aten::group_norm", "",
                       {stack[0], int64_t{2}, parameters, parameters, 1e-5, false});
        const bool has_weight = parameters.defined();
        const at::Tensor statistics =
            at::full({2, 2}, 1.0, has_weight ? parameters.scalar_type() : type);
        expect_rule_of("aten::native_group_norm_backward", "",
                       {stack[0], stack[0], statistics, statistics, parameters, sizes[0], sizes[1],
                        sizes[2], sizes[3], std::vector<bool>{true, has_weight, has_weight}});
      }
    }
  }
}

TEST(ShapeRules, shuffled_pixels_lie_as_the_cpus_do) {
  const at::Tensor planes = noise({2, 4, 6, 8}, 1);
  for (const at::Tensor& input :
       {planes, planes.contiguous(at::MemoryFormat::ChannelsLast), planes.transpose(2, 3),
        noise({2, 4, 1, 8}, 1).expand({2, 4, 6, 8}), planes.select(0, 1)}) {
    expect_rule_of("aten::pixel_shuffle", "", {input, int64_t{2}});
    expect_rule_of("aten::pixel_unshuffle", "", {input, int64_t{2}});
  }
}

INSTANTIATE_TEST_SUITE_P(EvaluationAndTraining, BatchNorm, ::testing::Bool());

}  // namespace
}  // namespace djinn::exec
