// SPDX-License-Identifier: Apache-2.0

// Each kind of kernel of ours at each level that this machine has, called as the operator that it
// is: no farther from the double than 1.5 times what PyTorch's own computation in the dtype is.
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "kernel/base/int8_rows.h"
#include "kernel/exec/as_before.h"
#include "kernel/exec/executor_for_tests.h"
#include "kernel/exec/kernels/matrix_for_tests.h"
#include "kernel/exec/own_operators.h"

namespace djinn::exec {
namespace {

using Maybe = std::optional<at::Tensor>;

// As the dispatcher has it.
template <typename T>
using Passed =
    std::conditional_t<std::is_same_v<T, at::Tensor> || std::is_same_v<T, Maybe>, const T&, T>;

template <typename Result, typename... Arguments>
Result call(const char* name, const Arguments&... arguments) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(name, "")
      .typed<Result(Passed<Arguments>...)>()
      .call(arguments...);
}

std::string name_of_case(
    const ::testing::TestParamInfo<std::tuple<IsaLevel, at::ScalarType>>& info) {
  std::string level(name_of(std::get<0>(info.param)));
  std::ranges::replace(level, '-', '_');
  return level + "_" + std::string(name_of(from_torch(std::get<1>(info.param))));
}

class FastLevels : public ::testing::TestWithParam<std::tuple<IsaLevel, at::ScalarType>> {
 protected:
  FastLevels() {
    if (!is_allocator_installed()) initialise(2);
    register_operators();
    CpuExecutor().limit_isa(std::get<0>(GetParam()));
  }
  ~FastLevels() override { CpuExecutor().limit_isa(kHighestIsa); }

  static at::ScalarType type() { return std::get<1>(GetParam()); }
  static at::Tensor some(std::vector<int64_t> sizes, uint64_t seed) {
    return noise(std::move(sizes), seed, type());
  }
  static void expect_near(const at::Tensor& ours, const at::Tensor& eager, const at::Tensor& exact,
                          const std::string& what) {
    ASSERT_EQ(exact.scalar_type(), at::kDouble);
    EXPECT_LE(distance(ours, exact), 1.5 * distance(eager, exact)) << what;
    EXPECT_GT(distance(eager, exact), 0) << what;
  }
};

at::Tensor wide(const at::Tensor& tensor) {
  return tensor.to(at::kDouble);
}

constexpr int64_t kInputs = 600, kOutputs = 300;
constexpr int64_t kRowCounts[] = {1, 4, 13, 16, 32, 40};

// inputs: in float32 as many as a large model has, too, since errors grow with them.
TEST_P(FastLevels, products) {
  for (const int64_t inputs : {kInputs, int64_t{14336}}) {
    if (inputs > kInputs && type() != at::kFloat) break;
    const int64_t outputs = inputs == kInputs ? kOutputs : 40;
    const at::Tensor bias = some({outputs}, 2);
    for (const bool turned : {false, true}) {
      const at::Tensor w = turned ? some({inputs, outputs}, 1) : some({outputs, inputs}, 1);
      for (const int64_t rows : kRowCounts) {
        const at::Tensor x = some({rows, inputs}, 3);
        const at::Tensor w2 = turned ? w : w.t();
        expect_near(call<at::Tensor>("djinn::linear_rows", x, w, Maybe(bias), turned),
                    linear_as_before(x, w, bias, turned), at::addmm(wide(bias), wide(x), wide(w2)),
                    std::to_string(rows) + (turned ? " rows, turned, of " : " rows of ") +
                        std::to_string(inputs));
      }
    }
  }
}

TEST_P(FastLevels, products_of_one_value) {
  const std::vector<at::Tensor> weights = {some({300, kInputs}, 1), some({7, kInputs}, 2),
                                           some({64, kInputs}, 3)};
  const c10::List<Maybe> biases({Maybe(), Maybe(), Maybe()});
  for (const int64_t rows : kRowCounts) {
    const at::Tensor x = some({rows, kInputs}, 4);
    const auto ours = c10::Dispatcher::singleton()
                          .findSchemaOrThrow("djinn::linears", "")
                          .typed<std::vector<at::Tensor>(const at::Tensor&, at::TensorList,
                                                         const c10::List<Maybe>&, bool)>()
                          .call(x, weights, biases, false);
    std::vector<at::Tensor> eager, exact;
    for (const at::Tensor& w : weights) {
      eager.push_back(at::linear(x, w));
      exact.push_back(at::linear(wide(x), wide(w)));
    }
    expect_near(at::cat(ours, 1), at::cat(eager, 1), at::cat(exact, 1),
                std::to_string(rows) + " rows");
  }
}

// Weights as a loader makes them: integers, of which each row has a scale a block.
struct Int8Weights {
  Int8Weights(int64_t rows, int64_t columns)
      : bytes(at::zeros({rows, int8_row_bytes(columns)}, at::kByte)),
        widened(at::zeros({rows, columns}, at::kDouble)) {
    const at::Tensor values = noise({rows, columns}, 5), scales = noise({rows, columns}, 6);
    for (int64_t r = 0; r < rows; ++r) {
      auto* const row = bytes.mutable_data_ptr<uint8_t>() + r * bytes.size(1);
      for (int64_t c = 0; c < columns; ++c) {
        const int64_t block = c / kInt8Block;
        const auto value = static_cast<int8_t>(values.const_data_ptr<float>()[r * columns + c] *
                                               static_cast<float>(kInt8Most));
        const c10::BFloat16 scale(
            0.01f + 0.01f * std::abs(scales.const_data_ptr<float>()[r * columns + block]));
        std::memcpy(row + c, &value, 1);
        std::memcpy(row + int8_scales_offset(columns) + block * 2, &scale.x, 2);
        widened.mutable_data_ptr<double>()[r * columns + c] =
            static_cast<double>(value) * static_cast<double>(static_cast<float>(scale));
      }
    }
  }
  [[nodiscard]] at::Tensor values() const {
    return at::from_blob(bytes.mutable_data_ptr(), widened.sizes(), {bytes.size(1), 1}, at::kChar);
  }

  at::Tensor bytes, widened;
};

// Integers, the largest in each block, which rows in int8 have without rounding: so what is
// compared is the product alone.
at::Tensor whole_numbers(int64_t rows, int64_t columns, at::ScalarType type) {
  const at::Tensor x = noise({rows, columns}, 7);
  float* const numbers = x.mutable_data_ptr<float>();
  for (int64_t i = 0; i < rows * columns; ++i) {
    const bool is_first = i % columns % kInt8Block == 0;
    numbers[i] = is_first ? static_cast<float>(kInt8Most)
                          : std::trunc(numbers[i] * static_cast<float>(kInt8Most));
  }
  return x.to(type);
}

// Where inputs are first, rows stay as they are.
TEST_P(FastLevels, products_with_weights_in_int8_but_for_the_rounding_of_rows) {
  for (const bool turned : {false, true}) {
    const Int8Weights w = turned ? Int8Weights(kInputs, kOutputs) : Int8Weights(kOutputs, kInputs);
    const at::Tensor w2 = turned ? w.widened : w.widened.t();
    for (const int64_t rows : kRowCounts) {
      const at::Tensor x = turned ? some({rows, kInputs}, 7) : whole_numbers(rows, kInputs, type());
      expect_near(call<at::Tensor>("djinn::linear_rows", x, w.values(), Maybe(), turned),
                  at::matmul(x, w2.to(type())), at::matmul(wide(x), w2),
                  std::to_string(rows) + (turned ? " rows, turned" : " rows"));
    }
  }
}

// How far off products are for the rounding of rows alone. It is to multiples of a 127th of the
// largest of each block; whatever is rounded to multiples is off by a twelfth of the square, in the
// mean of squares. x: [rows, columns], w: [outputs, columns].
double off_by_rounded_rows(const at::Tensor& x, const at::Tensor& w) {
  const at::Tensor weights = w.square().sum(0).contiguous();
  double sum = 0;
  for (int64_t begin = 0; begin < x.size(1); begin += kInt8Block) {
    const int64_t count = std::min<int64_t>(kInt8Block, x.size(1) - begin);
    const at::Tensor most = wide(x).narrow(1, begin, count).abs().amax(1);
    const double squares = (most / double{kInt8Most}).square().sum().item<double>();
    sum += squares / 12 * weights.narrow(0, begin, count).sum().item<double>();
  }
  return std::sqrt(sum);
}

TEST_P(FastLevels, rows_in_int8_are_off_by_what_their_steps_say) {
  const Int8Weights w(kOutputs, kInputs);
  for (const int64_t rows : kRowCounts) {
    const at::Tensor x = some({rows, kInputs}, 24);
    const at::Tensor exact = at::matmul(wide(x), w.widened.t());
    const double expected =
        std::hypot(off_by_rounded_rows(x, w.widened), distance(exact.to(type()), exact));
    const double found =
        distance(call<at::Tensor>("djinn::linear_rows", x, w.values(), Maybe(), false), exact);
    // Of one row it is chance of 600 numbers.
    EXPECT_LE(found, 1.2 * expected) << rows << " rows";
    EXPECT_GE(found, 0.8 * expected) << rows << " rows";
  }
}

TEST_P(FastLevels, norms) {
  for (const int64_t width : {64, 333, 896}) {
    const std::string what = "width " + std::to_string(width);
    const at::Tensor x = some({17, width}, 8), w = some({width}, 9), b = some({width}, 10);
    const at::Tensor mean = wide(x).square().mean(-1, true);
    const at::Tensor normed = wide(x) * (mean + 1e-6).rsqrt();
    for (const bool from_one : {false, true}) {
      expect_near(call<at::Tensor>("djinn::rms_norm", x, Maybe(w), 1e-6, from_one, false),
                  rms_norm_as_before(x, w, 1e-6, from_one, false),
                  normed * (from_one ? wide(w) + 1 : wide(w)), what);
    }
    expect_near(call<at::Tensor>("djinn::layer_norm", x, Maybe(w), Maybe(b), 1e-5),
                at::layer_norm(x, {width}, w, b, 1e-5),
                at::layer_norm(wide(x), {width}, wide(w), wide(b), 1e-5), what);
  }
}

TEST_P(FastLevels, gates) {
  const at::Tensor x = some({9, 1003}, 11) * 5, factor = some({9, 1003}, 12);
  for (const char* const name : {"silu", "gelu", "gelu_tanh"}) {
    const c10::string_view activation(name);
    for (const bool has_factor : {false, true}) {
      const Maybe by = has_factor ? Maybe(factor) : Maybe();
      const Maybe by_wide = has_factor ? Maybe(wide(factor)) : Maybe();
      expect_near(call<at::Tensor>("djinn::gate", x, by, activation, false),
                  gate_as_before(x, by, activation, false),
                  gate_as_before(wide(x), by_wide, activation, false), name);
    }
  }
}

TEST_P(FastLevels, rotary_position_embeddings) {
  const at::Tensor x = some({2, 3, 7, 64}, 13), cos = some({2, 1, 7, 64}, 14),
                   sin = some({2, 1, 7, 64}, 15);
  for (const bool interleaved : {false, true}) {
    expect_near(call<at::Tensor>("djinn::rope", x, cos, sin, interleaved),
                rope_as_before(x, cos, sin, interleaved),
                rope_as_before(wide(x), wide(cos), wide(sin), interleaved),
                interleaved ? "neighbours" : "halves");
  }
}

// Of few tokens by heads, of many by tokens; each token sees the keys up to its own.
TEST_P(FastLevels, attention) {
  constexpr int64_t kSeen = 130, kHeads = 4, kWidth = 64;
  const at::Tensor key = some({2, 2, kSeen, kWidth}, 17), value = some({2, 2, kSeen, kWidth}, 18);
  for (const int64_t tokens : {1, 5, 40}) {
    const at::Tensor query = some({2, kHeads, tokens, kWidth}, 16);
    const at::Tensor own = at::arange(kSeen - tokens, kSeen).unsqueeze(1);
    const at::Tensor seen = at::arange(kSeen).unsqueeze(0).le(own).expand({2, 1, tokens, kSeen});
    const at::Tensor mask = seen.contiguous();
    const std::optional<double> scale(0.25);
    expect_near(
        call<at::Tensor>("djinn::attend", query, key, value, Maybe(mask), scale, true, false),
        at::scaled_dot_product_attention(query, key, value, mask, 0.0, false, scale, true),
        at::scaled_dot_product_attention(wide(query), wide(key), wide(value), mask, 0.0, false,
                                         scale, true),
        std::to_string(tokens) + " tokens");
  }
}

// As a graph spells it, with sinks beside the scores.
at::Tensor spelled(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                   const at::Tensor& bias, const at::Tensor& sinks) {
  const at::Tensor scores = at::matmul(query, key.transpose(2, 3)) * 0.25 + bias;
  const at::Tensor beside =
      sinks.expand({query.size(0), query.size(1), query.size(2), 1}).to(scores.scalar_type());
  const auto in = query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor weights = at::softmax(at::cat({scores, beside}, -1), -1, in);
  return at::matmul(weights.narrow(-1, 0, key.size(2)).to(query.scalar_type()), value);
}

TEST_P(FastLevels, attention_with_biases_and_sinks) {
  constexpr int64_t kSeen = 130, kHeads = 4, kWidth = 64;
  const at::Tensor key = some({2, kHeads, kSeen, kWidth}, 20),
                   value = some({2, kHeads, kSeen, kWidth}, 21),
                   sinks = some({1, kHeads, 1, 1}, 22);
  for (const int64_t tokens : {1, 5, 40}) {
    const at::Tensor query = some({2, kHeads, tokens, kWidth}, 19);
    const at::Tensor bias = some({1, kHeads, tokens, kSeen}, 23);
    const std::vector<double> factors = {1.0};
    const at::Tensor ours =
        c10::Dispatcher::singleton()
            .findSchemaOrThrow("djinn::attend_biased", "")
            .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                              at::TensorList, c10::ArrayRef<double>, const Maybe&, const Maybe&,
                              double, bool, const Maybe&, bool)>()
            .call(query, key, value, std::vector<at::Tensor>{bias}, factors, {}, {}, 0.25, false,
                  sinks, false);
    expect_near(ours, spelled(query, key, value, bias, sinks),
                spelled(wide(query), wide(key), wide(value), wide(bias), wide(sinks)),
                std::to_string(tokens) + " tokens");
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, FastLevels,
                         ::testing::Combine(::testing::ValuesIn(kernels::levels()),
                                            ::testing::Values(at::kFloat, at::kBFloat16,
                                                              at::kHalf)),
                         name_of_case);

}  // namespace
}  // namespace djinn::exec
