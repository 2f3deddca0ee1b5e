// SPDX-License-Identifier: Apache-2.0

// The row contract of what is computed element by element: a row of a fast program has the same
// bits alone, among others, however these lie, and with any number of threads, however few numbers
// it has.
#include <ATen/TensorOperators.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "kernel/exec/executor_for_tests.h"
#include "kernel/srg/text.h"

namespace djinn::exec {
namespace {

// How %r is made: of %x and %y, which are any numbers, of %p, which are positive, of a number a
// row, %s, of one, %o, and of %w, a row for all. %t is %y, and lies the other way.
constexpr auto kCalls = std::to_array<std::string_view>({
    "%r = aten::sigmoid(%x)",
    "%r = aten::silu(%x)",
    "%r = aten::gelu(%x)",
    "%r = aten::gelu(%x, approximate=\"tanh\")",
    "%r = aten::softplus(%x)",
    "%r = aten::exp(%x)",
    "%r = aten::exp2(%x)",
    "%r = aten::expm1(%x)",
    "%r = aten::tanh(%x)",
    "%r = aten::erf(%x)",
    "%r = aten::erfc(%x)",
    "%r = aten::sin(%x)",
    "%r = aten::cos(%x)",
    "%r = aten::atan(%x)",
    "%r = aten::log(%p)",
    "%r = aten::log1p(%p)",
    "%r = aten::log2(%p)",
    "%r = aten::rsqrt(%p)",
    "%r = aten::sqrt(%p)",
    "%r = aten::reciprocal(%x)",
    "%r = aten::square(%x)",
    "%r = aten::pow.Tensor_Scalar(%p, 0.7)",
    "%r = aten::pow.Tensor_Scalar(%p, -0.5)",
    "%r = aten::pow.Tensor_Scalar(%x, 3)",
    "%r = aten::pow.Tensor_Tensor(%p, %y)",
    "%r = aten::pow.Scalar(10.0, %x)",
    "%r = aten::pow.Tensor_Scalar(%p, 4)",
    "%r = aten::float_power.Tensor_Scalar(%p, 1.7)",
    "%r = aten::sinh(%x)",
    "%r = aten::cosh(%x)",
    "%r = aten::hypot(%x, %y)",
    "%r = aten::softshrink(%x)",
    "%r = aten::special_i0e(%x)",
    "%r = aten::mish(%x)",
    "%r = aten::elu(%x)",
    "%r = aten::selu(%x)",
    "%r = aten::hardswish(%x)",
    "%r = aten::hardsigmoid(%x)",
    "%r = aten::leaky_relu(%x, 0.3)",
    "%r = aten::log_sigmoid(%x)",
    "%r, %n = aten::log_sigmoid_forward(%x)",
    "%r = aten::logaddexp(%x, %y)",
    "%r = aten::logaddexp2(%x, %y)",
    "%r = aten::atan2(%x, %y)",
    "%r = aten::remainder.Tensor(%x, %p)",
    "%r = aten::fmod.Tensor(%x, %p)",
    "%r = aten::floor_divide(%x, %p)",
    "%r = aten::lerp.Scalar(%x, %y, 0.3)",
    "%r = aten::lerp.Tensor(%x, %y, %p)",
    "%r = aten::mul.Tensor(%x, %y)",
    "%r = aten::div.Tensor(%x, %p)",
    "%r = aten::add.Tensor(%x, %y)",
    "%r = aten::add.Tensor(%x, %y, alpha=0.3)",
    "%r = aten::add.Scalar(%x, 0.7, 0.3)",
    "%r = aten::sub.Tensor(%x, %y, alpha=0.3)",
    "%r = aten::rsub.Scalar(%x, 0.7, 0.3)",
    "%r = aten::addcmul(%x, %y, %p, value=0.3)",
    "%r = aten::addcdiv(%x, %y, %p, value=0.3)",
    "%r = aten::sigmoid_backward(%x, %y)",
    "%r = aten::tanh_backward(%x, %y)",
    "%r = aten::silu_backward(%x, %y)",
    "%r = aten::mish_backward(%x, %y)",
    "%r = aten::gelu_backward(%x, %y)",
    "%r = aten::softplus_backward(%x, %y, 1.0, 20.0)",
    "%r = aten::elu_backward(%x, 1.0, 1.0, 1.0, false, %y)",
    // Others lie or are sized otherwise.
    "%r = aten::add.Tensor(%x, %s, alpha=0.3)",
    "%r = aten::add.Tensor(%x, %w, alpha=0.3)",
    "%r = aten::add.Tensor(%x, %o, alpha=0.3)",
    "%r = aten::add.Tensor(%x, %t, alpha=0.3)",
    "%r = aten::addcmul(%x, %s, %w, value=0.3)",
    "%r = aten::sigmoid(%t)",
    "%h = aten::slice.Tensor(%x, 1, 0, 9000, 2)\n%r = aten::sigmoid(%h)",
    "%h = aten::slice.Tensor(%x, 1, 1)\n%r = aten::sigmoid(%h)",
    "%h = aten::unsqueeze(%x, 0)\n%i = aten::sigmoid(%h)\n%r = aten::squeeze.dim(%i, 0)",
    // An activation whose factor is of another form than it.
    "%h = aten::silu(%x)\n%r = aten::mul.Tensor(%h, %s)",
    "%h = aten::gelu(%x, approximate=\"tanh\")\n%r = aten::mul.Tensor(%w, %h)",
    // In place.
    "%r = aten::clone(%x)\n%i = aten::sigmoid_(%r)",
    "%r = aten::clone(%x)\n%i = aten::add_.Tensor(%r, %y, alpha=0.3)",
    "%r = aten::clone(%x)\n%i = aten::add_.Tensor(%r, %t, alpha=0.3)",
    "%h = aten::zeros([rows, 200], dtype=TYPE)\n%r = aten::slice.Tensor(%h, 1, 0, WIDTH)\n"
    "%i = aten::add_.Tensor(%r, %x, alpha=0.3)\n%j = aten::sigmoid_(%r)",
});

std::string replaced(std::string text, std::string_view word, const std::string& by) {
  for (size_t at = 0; (at = text.find(word, at)) != std::string::npos; at += by.size()) {
    text.replace(at, word.size(), by);
  }
  return text;
}

srg::Graph graph_of(std::string_view call, at::ScalarType type, int64_t width,
                    srg::Numerics numerics) {
  std::string text = "srg 1 \"\"\nsymbol rows 1..4096\n";
  for (const char* const whole : {"x", "y", "p"}) {
    text += fmt::format("input %{0} \"{0}\" : TYPE[rows, WIDTH]\n", whole);
  }
  text +=
      "input %s \"s\" : TYPE[rows, 1]\ninput %o \"o\" : TYPE[1, 1]\n"
      "input %w \"w\" : TYPE[WIDTH]\ninput %u \"u\" : TYPE[WIDTH, rows]\n"
      "%t = aten::t(%u)\n";
  text += std::string(call) + "\noutput %r\n";
  text = replaced(std::move(text), "TYPE", std::string(name_of(from_torch(type))));
  auto graph = srg::parse_text(replaced(std::move(text), "WIDTH", std::to_string(width)));
  EXPECT_TRUE(graph.ok()) << call << ": " << graph.error().message;
  if (!graph) return {};
  graph->numerics = numerics;
  return *std::move(graph);
}

// All that a call may be made of, in the order of the inputs.
class Given {
 public:
  Given(int64_t rows, int64_t width, at::ScalarType type)
      : x_(noise({rows, width}, 1) * 4),
        y_(noise({rows, width}, 2)),
        p_(noise({rows, width}, 3).abs() + 0.01),
        s_(noise({rows, 1}, 4)),
        o_(noise({1, 1}, 5)),
        w_(noise({width}, 6)),
        type_(type) {}

  [[nodiscard]] std::vector<at::Tensor> rows(int64_t begin, int64_t count) const {
    const auto of = [&](const at::Tensor& all) {
      return all.narrow(0, begin, count).to(type_).clone();
    };
    return {of(x_), of(y_), of(p_), of(s_), o_.to(type_), w_.to(type_), of(y_).t().contiguous()};
  }

 private:
  at::Tensor x_, y_, p_, s_, o_, w_;
  at::ScalarType type_;
};

constexpr int64_t kManyRows = 700;  // of 100 numbers, LibTorch shares them out
constexpr std::array<int64_t, 4> kSomeRows = {2, 5, 64, kManyRows};
constexpr std::array<int64_t, 5> kAlone = {0, 1, 4, 63, kManyRows - 1};

class FastWidths : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  // Of so many rows from there on.
  static at::Tensor run(World& world, const Given& given, int64_t begin, int64_t count) {
    EXPECT_EQ(message_of(world.run({count}, given.rows(begin, count))), "");
    return world.output(0);
  }

  void expect_own_bits(std::string_view call, int64_t width) {
    SCOPED_TRACE(fmt::format("{} of {}", call, width));
    const Given given(kManyRows, width, GetParam());
    std::vector<at::Tensor> alone;
    for (World& world : worlds_) {
      const auto admitted = world.admit(graph_of(call, GetParam(), width, srg::Numerics::kFast));
      ASSERT_EQ(message_of(admitted), "");
      if (alone.empty()) {
        for (const int64_t row : kAlone) alone.push_back(run(world, given, row, 1));
      }
      for (const int64_t rows : kSomeRows) {
        const at::Tensor together = run(world, given, 0, rows);
        for (size_t i = 0; i < alone.size() && kAlone[i] < rows; ++i) {
          ASSERT_TRUE(same_bytes(together.narrow(0, kAlone[i], 1), alone[i]))
              << "row " << kAlone[i] << " of " << rows << ", " << &world - worlds_.data() + 1
              << " threads";
        }
      }
    }
  }

  void expect_near(std::string_view call, int64_t width) {
    SCOPED_TRACE(fmt::format("{} of {}", call, width));
    const Given given(kManyRows, width, GetParam());
    std::vector<at::Tensor> found;
    for (const auto numerics : {srg::Numerics::kExact, srg::Numerics::kFast}) {
      ASSERT_EQ(message_of(worlds_[1].admit(graph_of(call, GetParam(), width, numerics))), "");
      found.push_back(run(worlds_[1], given, 0, 5));
    }
    ASSERT_EQ(found[1].sizes(), found[0].sizes());
    const double size = distance(found[0], at::zeros(found[0].sizes(), at::kDouble));
    EXPECT_LE(distance(found[1], found[0]), 0.01 * size);
  }

  std::array<World, 3> worlds_ = {World({}, false, 1), World({}, false, 2), World({}, false, 3)};
};

TEST_P(FastWidths, ci_once_a_row_is_the_same_alone_and_among_others) {
  for (const std::string_view call : kCalls) {
    for (const int64_t width : {1, 7, 33, 100, 128}) expect_own_bits(call, width);
  }
}

TEST_P(FastWidths, what_is_computed_is_what_pytorch_computes) {
  for (const std::string_view call : kCalls) expect_near(call, 33);
}

INSTANTIATE_TEST_SUITE_P(Types, FastWidths,
                         ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf, at::kDouble),
                         [](const auto& type) { return std::string(c10::toString(type.param)); });

}  // namespace
}  // namespace djinn::exec
