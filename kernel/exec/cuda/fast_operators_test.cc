// SPDX-License-Identifier: Apache-2.0

// Internal operators on a GPU, on the emulator: against the same in double, and each row against
// itself alone. Tensors of the host are tensors of the device there.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "kernel/exec/cuda/gpu_for_tests.h"

namespace djinn::exec {
namespace {

using Stack = torch::jit::Stack;
using Optional = std::optional<at::Tensor>;

at::Tensor there(const at::Tensor& host) {
  return at::for_blob(host.data_ptr(), host.sizes())
      .strides(host.strides())
      .options(host.options().device(at::Device(at::kCUDA, 0)))
      .target_device(at::Device(at::kCUDA, 0))
      .make_tensor();
}
at::Tensor here(const at::Tensor& device) {
  return at::from_blob(device.data_ptr(), device.sizes(), device.strides(),
                       device.options().device(at::kCPU))
      .clone();
}

// All results.
Stack call(const char* name, Stack stack) {
  (void)gpu();
  const c10::InferenceMode inference_mode;
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(stack);
  return stack;
}
at::Tensor tensor_of(const char* name, Stack stack) {
  return here(call(name, std::move(stack)).at(0).toTensor());
}

void expect_near(const at::Tensor& found, const at::Tensor& exact) {
  const double size = exact.abs().max().item<double>();
  const double allowed = found.scalar_type() == at::kFloat ? 2e-6 : 0.006;
  EXPECT_LE((found.to(at::kDouble) - exact).abs().max().item<double>(), allowed * size);
}

at::Tensor linear_rows(const at::Tensor& x, const at::Tensor& weight, const Optional& bias,
                       bool turned) {
  const Optional bias_there = bias ? Optional(there(*bias)) : std::nullopt;
  return tensor_of("djinn::linear_rows", {there(x), there(weight), bias_there, turned});
}

class FastOperators : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  static at::Tensor random(std::vector<int64_t> sizes, uint64_t seed) {
    return noise(std::move(sizes), seed, GetParam());
  }
};

// Any number of rows, eight of which are a launch's.
TEST_P(FastOperators, ci_a_row_of_a_product_is_the_same_alone_and_among_others) {
  const at::Tensor x = random({1, 19, 64}, 1), bias = random({40}, 3);
  for (const bool turned : {false, true}) {
    const at::Tensor weight = turned ? random({64, 40}, 2) : random({40, 64}, 2);
    const uint64_t before = own_launches();
    const at::Tensor all = linear_rows(x, weight, bias, turned);
    EXPECT_EQ(own_launches() - before, 3u);
    const at::Tensor wide = weight.to(at::kDouble);
    expect_near(all, at::matmul(x.to(at::kDouble), turned ? wide : wide.t()) + bias);
    for (const int64_t row : {0, 7, 8, 18}) {
      const at::Tensor alone = x.narrow(1, row, 1).contiguous();
      EXPECT_TRUE(same_bytes(linear_rows(alone, weight, bias, turned), all.narrow(1, row, 1)));
    }
  }
}

TEST_P(FastOperators, ci_products_of_one_value_are_those_that_they_are_by_themselves) {
  const at::Tensor x = random({3, 64}, 1);
  std::vector<at::Tensor> host, weights;
  c10::List<Optional> biases;
  for (const int64_t outputs : {32, 8, 24, 40}) {
    host.push_back(random({outputs, 64}, static_cast<uint64_t>(outputs)));
    weights.push_back(there(host.back()));
    biases.push_back(std::nullopt);
  }
  const uint64_t before = own_launches();
  const Stack results = call("djinn::linears", {there(x), weights, biases, false});
  const std::vector<at::Tensor> found = results.at(0).toTensorVector();
  EXPECT_EQ(own_launches() - before, 2u);
  for (size_t i = 0; i < host.size(); ++i) {
    EXPECT_TRUE(same_bytes(here(found[i]), linear_rows(x, host[i], std::nullopt, false)));
  }
}

// What no kernel takes is what the graph said before.
TEST_P(FastOperators, ci_a_product_that_no_kernel_takes_is_libtorch_s) {
  const at::Tensor x = random({2, 7}, 1), weight = random({5, 7}, 2);
  const uint64_t before = own_launches();
  const at::Tensor found = linear_rows(x, weight, std::nullopt, false);
  EXPECT_EQ(own_launches(), before);
  expect_near(found, at::matmul(x.to(at::kDouble), weight.to(at::kDouble).t()));
}

TEST_P(FastOperators, ci_a_row_of_a_norm_is_the_same_alone_and_however_it_lies) {
  const at::Tensor x = random({2, 5, 64}, 1), weight = random({64}, 2);
  const auto norm = [&](const at::Tensor& of) {
    return tensor_of("djinn::rms_norm", {there(of), there(weight), 1e-6, false, true});
  };
  const at::Tensor all = norm(x), wide = x.to(at::kDouble);
  expect_near(all, wide * (wide.square().mean(-1, true) + 1e-6).rsqrt() * weight);
  EXPECT_TRUE(same_bytes(norm(x.narrow(1, 3, 1).contiguous()), all.narrow(1, 3, 1)));
  const at::Tensor apart = at::empty({2, 5, 65}, x.options()).narrow(2, 1, 64).copy_(x);
  EXPECT_TRUE(same_bytes(norm(apart), all));
  const at::Tensor layer =
      tensor_of("djinn::layer_norm", {there(x), there(weight), there(weight), 1e-5});
  expect_near(layer, at::layer_norm(wide, {64}, weight.to(at::kDouble), weight.to(at::kDouble)));
}

// Rows of a cache that holds more, with heads that share keys; left of a mask may be anything.
TEST_P(FastOperators, ci_a_row_s_attention_is_the_same_alone_and_with_other_padding) {
  constexpr int64_t kKeys = 150, kPadding = 20;
  const at::Tensor buffers = random({2, 2, 2, 200, 16}, 1), query = random({2, 4, 1, 16}, 2);
  at::Tensor mask = at::ones({2, 1, 1, kKeys}, at::kBool);
  mask[1].narrow(2, 0, kPadding).fill_(false);
  const auto attend = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const Optional& m, bool causal) {
    const uint64_t before = own_launches();
    const at::Tensor found = tensor_of(
        "djinn::attend", {there(q), there(k), there(v), m ? Optional(there(*m)) : std::nullopt,
                          c10::IValue(), true, causal});
    EXPECT_GE(own_launches() - before, 3u);
    return found;
  };
  const at::Tensor key = buffers[0].narrow(2, 0, kKeys), value = buffers[1].narrow(2, 0, kKeys);
  const auto exact = [&](const at::Tensor& q, const Optional& m, bool causal) {
    return at::scaled_dot_product_attention(q.to(at::kDouble), key.to(at::kDouble),
                                            value.to(at::kDouble), m, 0.0, causal, std::nullopt,
                                            true);
  };
  const at::Tensor both = attend(query, key, value, mask, false);
  expect_near(both, exact(query, mask, false));
  const auto row = [&](const at::Tensor& of, int64_t first) {
    return of.narrow(0, 1, 1).narrow(2, first, kKeys - first);
  };
  const at::Tensor alone =
      attend(query.narrow(0, 1, 1), row(key, kPadding), row(value, kPadding), std::nullopt, false);
  EXPECT_TRUE(same_bytes(alone, both.narrow(0, 1, 1)));

  // A prompt: more tokens than a call has, each as it is by itself.
  const at::Tensor prompt = random({2, kKeys, 4, 16}, 3).transpose(1, 2);
  const at::Tensor all = attend(prompt, key, value, std::nullopt, true);
  expect_near(all, exact(prompt, std::nullopt, true));
  const int64_t token = 70;
  const at::Tensor step = attend(prompt.narrow(2, token, 1), key.narrow(2, 0, token + 1),
                                 value.narrow(2, 0, token + 1), std::nullopt, false);
  EXPECT_TRUE(same_bytes(step, all.narrow(2, token, 1)));
}

INSTANTIATE_TEST_SUITE_P(All, FastOperators,
                         ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& of) { return std::string(c10::toString(of.param)); });

}  // namespace
}  // namespace djinn::exec
