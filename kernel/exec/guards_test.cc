// SPDX-License-Identifier: Apache-2.0

// Each guard against what it is there for: without it these calls read or write memory that is not
// their own, draw random numbers, or change a weight.
#include "kernel/exec/guards.h"

#include <ATen/ops/lstm.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <limits>

#include "kernel/exec/executor_for_tests.h"
#include "kernel/exec/torch_headers.h"
#include "kernel/srg/allowed.h"

namespace djinn::exec {
namespace {

using Refs = std::vector<srg::ValueRef>;
using Arguments = std::vector<srg::Argument>;

class Guards : public ::testing::Test {
 protected:
  // One call on tensors, which come first, in the order of the schema's tensors or as named.
  ErrorCode code(
      const char* op, const std::vector<at::Tensor>& tensors,
      const std::function<std::vector<srg::Argument>(const std::vector<srg::ValueRef>&)>& arguments,
      size_t results) {
    GraphBuilder b;
    std::vector<srg::ValueRef> refs;
    for (const at::Tensor& tensor : tensors) {
      refs.push_back(b.input("t" + std::to_string(refs.size()), from_torch(tensor.scalar_type()),
                             {tensor.sizes().begin(), tensor.sizes().end()}));
    }
    for (const auto ref : b.call_many(op, arguments(refs), results)) b.output(ref);
    Outcome<void> ended = world.admit(b.graph);
    if (ended) ended = world.run({}, tensors);
    error = message_of(ended);
    return code_of(ended);
  }

  ErrorCode pad(const char* op, std::vector<int64_t> sizes, const std::vector<srg::Expr>& padding) {
    return code(
        op, {noise(std::move(sizes), 1)},
        [&](const Refs& t) {
          return Arguments{arg(t[0]), integers(padding)};
        },
        1);
  }

  World world{{}};
  std::string error;
};

srg::Argument flags(std::vector<bool> items) {
  return {"", srg::BoolList{std::move(items)}};
}

TEST_F(Guards, stand_before_allowed_operators_only) {
  for (const std::string_view op : guarded_operators()) EXPECT_TRUE(srg::is_allowed(op)) << op;
  EXPECT_EQ(guard_of("aten::relu"), nullptr);
}

TEST_F(Guards, indices_of_poolings_stay_in_the_plane) {
  const auto pooled = [&](int64_t index) {
    const at::Tensor indices = at::full({1, 1, 2, 2}, index, at::kLong);
    return code(
        "aten::max_pool2d_with_indices_backward",
        {noise({1, 1, 2, 2}, 1), noise({1, 1, 4, 4}, 2), indices},
        [](const Refs& t) {
          return Arguments{arg(t[0]),        arg(t[1]),        integers({2, 2}), integers({2, 2}),
                           integers({0, 0}), integers({1, 1}), arg(false),       arg(t[2])};
        },
        1);
  };
  EXPECT_EQ(pooled(15), ErrorCode::kOk) << error;
  EXPECT_EQ(pooled(16), ErrorCode::kOutOfRange);
  EXPECT_EQ(pooled(-1), ErrorCode::kOutOfRange);
  EXPECT_EQ(pooled(int64_t{1} << 40), ErrorCode::kOutOfRange);
}

TEST_F(Guards, targets_are_classes_or_ignored) {
  const auto loss = [&](int64_t target) {
    return code(
        "aten::nll_loss_backward",
        {noise({4}, 1), noise({4, 8}, 2), at::full({4}, target, at::kLong), noise({}, 3)},
        [](const Refs& t) {
          return Arguments{arg(t[0]),  arg(t[1]),     arg(t[2]), arg(srg::None{}),
                           integer(0), integer(-100), arg(t[3])};
        },
        1);
  };
  EXPECT_EQ(loss(7), ErrorCode::kOk) << error;
  EXPECT_EQ(loss(-100), ErrorCode::kOk) << error;
  EXPECT_EQ(loss(8), ErrorCode::kOutOfRange);
  EXPECT_EQ(loss(int64_t{1} << 40), ErrorCode::kOutOfRange);
}

TEST_F(Guards, counted_indices_are_rows) {
  const auto gradient = [&](int64_t index) {
    return code(
        "aten::embedding_dense_backward", {noise({3, 8}, 1), at::full({3}, index, at::kLong)},
        [](const Refs& t) {
          return Arguments{arg(t[0]), arg(t[1]), integer(10), integer(-1), arg(true)};
        },
        1);
  };
  EXPECT_EQ(gradient(9), ErrorCode::kOk) << error;
  EXPECT_EQ(gradient(10), ErrorCode::kOutOfRange);
}

TEST_F(Guards, statistics_have_one_number_a_row_or_channel) {
  const auto layer = [&](int64_t rows) {
    return code(
        "aten::native_layer_norm_backward",
        {noise({6, 8}, 1), noise({6, 8}, 2), noise({rows, 1}, 3), noise({rows, 1}, 4)},
        [](const Refs& t) {
          return Arguments{
              arg(t[0]), arg(t[1]),        integers({8}),    arg(t[2]),
              arg(t[3]), arg(srg::None{}), arg(srg::None{}), flags({true, true, true})};
        },
        3);
  };
  EXPECT_EQ(layer(2), ErrorCode::kInvalidArgument);
  const auto batch = [&](int64_t channels) {
    return code(
        "aten::_native_batch_norm_legit.no_stats", {noise({2, 4, 3}, 1), noise({channels}, 2)},
        [](const Refs& t) {
          return Arguments{arg(t[0]), arg(t[1]), arg(srg::None{}), arg(true), arg(0.1), arg(1e-5)};
        },
        3);
  };
  EXPECT_EQ(batch(4), ErrorCode::kOk) << error;
  EXPECT_EQ(batch(1), ErrorCode::kInvalidArgument);
}

TEST_F(Guards, training_changes_no_statistics_unsaid) {
  for (const bool training : {false, true}) {
    const auto got = code(
        "aten::batch_norm", {noise({2, 4, 3}, 1), noise({4}, 2), at::full({4}, 1.0)},
        [&](const Refs& t) {
          return Arguments{arg(t[0]),     arg(srg::None{}), arg(srg::None{}), arg(t[1]), arg(t[2]),
                           arg(training), arg(0.1),         arg(1e-5),        arg(false)};
        },
        1);
    EXPECT_EQ(got, training ? ErrorCode::kInvalidArgument : ErrorCode::kOk) << error;
  }
}

TEST_F(Guards, nothing_drops_out_at_random) {
  const at::Tensor q = noise({1, 2, 4, 8}, 1);
  for (const double probability : {0.0, 0.5}) {
    const auto got = code(
        "aten::scaled_dot_product_attention", {q, q.clone(), q.clone()},
        [&](const Refs& t) {
          return Arguments{arg(t[0]), arg(t[1]), arg(t[2]), arg(srg::None{}), arg(probability)};
        },
        1);
    EXPECT_EQ(got, probability > 0 ? ErrorCode::kInvalidArgument : ErrorCode::kOk) << error;
  }
}

// PyTorch's kernel would leave parts of the result as the memory was.
TEST_F(Guards, attention_of_a_query_over_itself_gives_rows_or_nothing) {
  for (const int64_t step : {1, 24}) {
    GraphBuilder b;
    const auto x = b.input("x", DType::kFloat32, {64});
    const auto view = [&](std::vector<int64_t> strides) {
      return b.call("aten::as_strided",
                    {arg(x), integers({2, 3, 2, 4}),
                     arg(srg::ExprList{{strides.begin(), strides.end()}}), integer(0)});
    };
    const auto query = view({step, 8, 4, 1}), key = view({24, 8, 4, 1});
    b.output(b.call("aten::scaled_dot_product_attention", {arg(query), arg(key), arg(key)}));
    ASSERT_EQ(message_of(world.admit(b.graph)), "");
    EXPECT_EQ(code_of(world.run({}, {noise({64}, 1)})),
              step == 1 ? ErrorCode::kInvalidArgument : ErrorCode::kOk);
  }
}

TEST_F(Guards, a_recurrent_network_has_weights_of_its_sizes_and_of_the_inputs_dtype) {
  const std::vector<at::Tensor> good{noise({5, 3, 16}, 1), noise({1, 3, 8}, 2), noise({1, 3, 8}, 3),
                                     noise({32, 16}, 4),   noise({32, 8}, 5),   noise({32}, 6),
                                     noise({32}, 7)};
  const auto run = [&](const std::vector<at::Tensor>& tensors) {
    return code(
        "aten::lstm.input", tensors,
        [](const Refs& t) {
          return Arguments{arg(t[0]),
                           arg(srg::ValueList{{t[1].id, t[2].id}}),
                           arg(srg::ValueList{{t[3].id, t[4].id, t[5].id, t[6].id}}),
                           arg(true),
                           integer(1),
                           arg(0.0),
                           arg(false),
                           arg(false),
                           arg(false)};
        },
        3);
  };
  EXPECT_EQ(run(good), ErrorCode::kOk) << error;
  c10::InferenceMode inference_mode;
  const auto expected = at::lstm(good[0], {good[1], good[2]}, {good[3], good[4], good[5], good[6]},
                                 true, 1, 0.0, false, false, false);
  EXPECT_TRUE(same_bytes(world.output(0), std::get<0>(expected)));
  for (size_t i = 1; i < good.size(); ++i) {
    std::vector<at::Tensor> bad = good;
    bad[i] = bad[i].narrow(-1, 0, 1).clone();
    EXPECT_NE(run(bad), ErrorCode::kOk) << i;
    for (const at::ScalarType dtype : {at::kBFloat16, at::kLong}) {
      bad[i] = good[i].to(dtype);
      EXPECT_EQ(run(bad), ErrorCode::kInvalidArgument) << i << " as " << dtype;
    }
  }
}

TEST_F(Guards, an_encoder_layer_has_the_weights_that_its_sizes_need) {
  const std::vector<at::Tensor> good{noise({2, 5, 16}, 1), noise({48, 16}, 2), noise({48}, 3),
                                     noise({16, 16}, 4),   noise({16}, 5),     noise({16}, 6),
                                     noise({16}, 7),       noise({16}, 8),     noise({16}, 9),
                                     noise({32, 16}, 10),  noise({32}, 11),    noise({16, 32}, 12),
                                     noise({16}, 13),      noise({2, 5}, 14)};
  const auto run = [&](const std::vector<at::Tensor>& tensors, int64_t heads) {
    return code(
        "aten::_transformer_encoder_layer_fwd", tensors,
        [&](const Refs& t) {
          Arguments arguments{arg(t[0]), integer(16), integer(heads), arg(t[1]), arg(t[2]),
                              arg(t[3]), arg(t[4]),   arg(false),     arg(true), arg(1e-5)};
          for (size_t i = 5; i < t.size(); ++i) arguments.push_back(arg(t[i]));
          arguments.push_back(integer(1));
          return arguments;
        },
        1);
  };
  EXPECT_EQ(run(good, 4), ErrorCode::kOk) << error;
  EXPECT_NE(run(good, 3), ErrorCode::kOk);
  EXPECT_NE(run(good, 0), ErrorCode::kOk);
  for (size_t i = 1; i < good.size(); ++i) {
    std::vector<at::Tensor> bad = good;
    bad[i] = bad[i].narrow(-1, 0, 1).clone();
    EXPECT_NE(run(bad, 4), ErrorCode::kOk) << i;
  }
}

TEST_F(Guards, gradients_have_the_sizes_that_the_forward_gave) {
  const auto pad = [&](int64_t length) {
    return code(
        "aten::reflection_pad1d_backward", {noise({2, length}, 1), noise({2, 6}, 2)},
        [](const Refs& t) {
          return Arguments{arg(t[0]), arg(t[1]), integers({1, 1})};
        },
        1);
  };
  EXPECT_EQ(pad(8), ErrorCode::kOk) << error;
  EXPECT_NE(pad(2), ErrorCode::kOk);
  const auto unfold = [&](int64_t windows) {
    return code(
        "aten::unfold_backward", {noise({windows, 2}, 1)},
        [](const Refs& t) {
          return Arguments{arg(t[0]), integers({9}), integer(0), integer(2), integer(1)};
        },
        1);
  };
  EXPECT_EQ(unfold(8), ErrorCode::kOk) << error;
  EXPECT_NE(unfold(1), ErrorCode::kOk);
  const auto softmax = [&](int64_t rows) {
    return code(
        "aten::_log_softmax_backward_data", {noise({4, 8}, 1), noise({rows, 8}, 2)},
        [](const Refs& t) {
          return Arguments{arg(t[0]), arg(t[1]), integer(1), arg(DType::kFloat32)};
        },
        1);
  };
  EXPECT_EQ(softmax(4), ErrorCode::kOk) << error;
  EXPECT_NE(softmax(1), ErrorCode::kOk);
}

TEST_F(Guards, gradients_of_samples_distances_and_norms_have_their_sizes) {
  const auto grid = [&](int64_t height) {
    return code(
        "aten::grid_sampler_2d_backward",
        {noise({1, 2, height, 5}, 1), noise({1, 2, 8, 8}, 2), noise({1, 5, 5, 2}, 3)},
        [](const Refs& t) {
          return Arguments{arg(t[0]),  arg(t[1]), arg(t[2]),          integer(0),
                           integer(0), arg(true), flags({true, true})};
        },
        2);
  };
  EXPECT_EQ(grid(5), ErrorCode::kOk) << error;
  EXPECT_NE(grid(1), ErrorCode::kOk);
  const auto distances = [&](int64_t rows) {
    return code(
        "aten::_cdist_backward",
        {noise({rows, 6}, 1), noise({5, 3}, 2), noise({6, 3}, 3), noise({rows, 6}, 4)},
        [](const Refs& t) {
          return Arguments{arg(t[0]), arg(t[1]), arg(t[2]), arg(2.0), arg(t[3])};
        },
        1);
  };
  EXPECT_EQ(distances(5), ErrorCode::kOk) << error;
  EXPECT_NE(distances(1), ErrorCode::kOk);
  const auto norms = [&](int64_t rows) {
    return code(
        "aten::_weight_norm_interface_backward",
        {noise({8, 4}, 1), noise({8, 4}, 2), noise({rows, 1}, 3), noise({rows, 1}, 4)},
        [](const Refs& t) {
          return Arguments{arg(t[0]), arg(t[1]), arg(t[2]), arg(t[3]), integer(0)};
        },
        2);
  };
  EXPECT_EQ(norms(8), ErrorCode::kOk) << error;
  EXPECT_NE(norms(1), ErrorCode::kOk);
  const auto pooled = [&](int64_t channels) {
    return code(
        "aten::_adaptive_avg_pool2d_backward",
        {noise({1, channels, 2, 2}, 1), noise({1, 4, 8, 8}, 2)},
        [](const Refs& t) {
          return Arguments{arg(t[0]), arg(t[1])};
        },
        1);
  };
  EXPECT_EQ(pooled(4), ErrorCode::kOk) << error;
  EXPECT_NE(pooled(1), ErrorCode::kOk);
}

TEST_F(Guards, groups_of_a_product_cover_its_rows) {
  const auto product = [&](std::vector<int32_t> ends) {
    const at::Tensor groups = at::zeros({2}, at::kInt);
    std::memcpy(groups.mutable_data_ptr(), ends.data(), 8);
    return code(
        "aten::_grouped_mm",
        {noise({32, 16}, 1, at::kBFloat16), noise({2, 16, 16}, 2, at::kBFloat16), groups},
        [](const Refs& t) {
          return Arguments{arg(t[0]), arg(t[1]), arg(t[2])};
        },
        1);
  };
  EXPECT_EQ(product({8, 32}), ErrorCode::kOk) << error;
  EXPECT_NE(product({8, 16}), ErrorCode::kOk);  // 16 rows would stay as they were
  EXPECT_NE(product({40, 32}), ErrorCode::kOk);
  EXPECT_NE(product({-8, 32}), ErrorCode::kOk);
}

TEST_F(Guards, a_transform_stays_inside_of_its_signal) {
  const at::Tensor spectrum = at::zeros({4, 5}, at::kComplexFloat);
  const auto back = [&](int64_t dim, int64_t size) {
    return code(
        "aten::_fft_c2r", {spectrum},
        [&](const Refs& t) {
          return Arguments{arg(t[0]), integers({dim}), integer(0), integer(size)};
        },
        1);
  };
  EXPECT_EQ(back(1, 8), ErrorCode::kOk) << error;
  EXPECT_EQ(back(1, 9), ErrorCode::kOk) << error;
  EXPECT_NE(back(1, 800), ErrorCode::kOk);
  EXPECT_NE(back(1000003, 8), ErrorCode::kOk);
}

// Each of these calls ended the process, or gave memory that nobody wrote, on the CPU or on meta.

TEST_F(Guards, samples_are_taken_in_a_way_that_kernels_know) {
  const auto sampled = [&](const char* op, std::vector<int64_t> space, int64_t interpolation,
                           int64_t padding) {
    std::vector<int64_t> image{1, 2};
    std::vector<int64_t> grid{1};
    image.insert(image.end(), space.begin(), space.end());
    grid.insert(grid.end(), space.begin(), space.end());
    grid.push_back(static_cast<int64_t>(space.size()));
    return code(
        op, {noise(image, 1), noise(grid, 2)},
        [&](const Refs& t) {
          return Arguments{arg(t[0]), arg(t[1]), integer(interpolation), integer(padding),
                           arg(false)};
        },
        1);
  };
  for (const char* op : {"aten::grid_sampler_2d", "aten::grid_sampler"}) {
    EXPECT_EQ(sampled(op, {3, 3}, 2, 2), ErrorCode::kOk) << error;
    EXPECT_EQ(sampled(op, {3, 3}, 7, 0), ErrorCode::kInvalidArgument) << op;
    EXPECT_EQ(sampled(op, {3, 3}, 0, 7), ErrorCode::kInvalidArgument) << op;
    EXPECT_EQ(sampled(op, {3, 3}, -1, 0), ErrorCode::kInvalidArgument) << op;
  }
  for (const char* op : {"aten::grid_sampler_3d", "aten::grid_sampler"}) {
    EXPECT_EQ(sampled(op, {3, 3, 3}, 1, 0), ErrorCode::kOk) << error;
    EXPECT_EQ(sampled(op, {3, 3, 3}, 7, 0), ErrorCode::kInvalidArgument) << op;
  }
}

TEST_F(Guards, losses_are_written_whole) {
  const auto entropy = [&](int64_t targets) {
    const at::Tensor input = at::full({1}, 0.5);
    return code(
        "aten::binary_cross_entropy_backward", {noise({1}, 1), input, at::zeros({targets})},
        [](const Refs& t) {
          return Arguments{arg(t[0]), arg(t[1]), arg(t[2]), arg(srg::None{}), integer(0)};
        },
        1);
  };
  EXPECT_EQ(entropy(1), ErrorCode::kOk) << error;
  EXPECT_EQ(entropy(0), ErrorCode::kInvalidArgument);
  const auto soft = [&](int64_t reduction) {
    return code(
        "aten::soft_margin_loss", {at::zeros({0}), at::zeros({0})},
        [&](const Refs& t) {
          return Arguments{arg(t[0]), arg(t[1]), integer(reduction)};
        },
        1);
  };
  EXPECT_EQ(soft(2), ErrorCode::kOk) << error;
  EXPECT_EQ(soft(7), ErrorCode::kInvalidArgument);  // gave one value that nobody wrote
}

TEST_F(Guards, a_margin_loss_has_a_gradient_for_each_row) {
  const auto gradient = [&](int64_t rows, int64_t reduction) {
    return code(
        "aten::multi_margin_loss_backward",
        {noise({rows}, 1), noise({3, 4}, 2), int64s({3}, {0, 1, 3})},
        [&](const Refs& t) {
          return Arguments{arg(t[0]), arg(t[1]),        arg(t[2]),         integer(1),
                           arg(1.0),  arg(srg::None{}), integer(reduction)};
        },
        1);
  };
  // Nothing but a claim tells its shape, and it is the last node.
  EXPECT_EQ(gradient(3, 0), ErrorCode::kOk) << error;
  EXPECT_EQ(gradient(1, 1), ErrorCode::kOk) << error;
  EXPECT_EQ(gradient(1, 0), ErrorCode::kInvalidArgument);
  EXPECT_EQ(gradient(0, 1), ErrorCode::kInvalidArgument);
}

TEST_F(Guards, padding_has_two_numbers_a_dimension) {
  EXPECT_EQ(pad("aten::reflection_pad3d", {1, 2, 4, 4, 4}, {1, 1, 1, 1, 1, 1}), ErrorCode::kOk)
      << error;
  EXPECT_EQ(pad("aten::reflection_pad3d", {1, 2, 4, 4, 4}, {}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(pad("aten::replication_pad2d", {1, 2, 4, 4}, {1}), ErrorCode::kInvalidArgument);
  const auto back = code(
      "aten::reflection_pad1d_backward", {noise({2, 6}, 1), noise({2, 6}, 2)},
      [](const Refs& t) {
        return Arguments{arg(t[0]), arg(t[1]), integers({})};
      },
      1);
  EXPECT_EQ(back, ErrorCode::kInvalidArgument);
}

TEST_F(Guards, padded_sizes_do_not_wrap) {
  const int64_t far = std::numeric_limits<int64_t>::max() - 1;
  EXPECT_EQ(pad("aten::replication_pad2d", {2, 4, 4}, {-1, 9, 1, 3}), ErrorCode::kOk) << error;
  EXPECT_EQ(pad("aten::replication_pad1d", {2, 4}, {far, far + 1}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(pad("aten::replication_pad2d", {2, 4, 4}, {far, far, 1, 3}),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(pad("aten::replication_pad3d", {2, 2, 4, 4, 4}, {far, far, 1, -2, 0, 4}),
            ErrorCode::kInvalidArgument);
}

TEST_F(Guards, a_circular_padding_repeats_what_is_left_of_the_input) {
  const auto circular = [&](const std::vector<srg::Expr>& padding) {
    return pad("aten::_pad_circular", {2, 2, 3}, padding);
  };
  EXPECT_EQ(circular({3, 3}), ErrorCode::kOk) << error;
  EXPECT_EQ(circular({2, -1}), ErrorCode::kOk) << error;
  EXPECT_EQ(circular({-2, 1}), ErrorCode::kOk) << error;
  EXPECT_EQ(circular({3, -1}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(circular({-2, 2}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(circular({-4, 1}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(circular({1, 1, 1, 1, 1, 1, 1, 1}), ErrorCode::kInvalidArgument);
}

TEST_F(Guards, what_is_not_trained_has_statistics) {
  const auto bare = [&](bool training) {
    return code(
        "aten::_native_batch_norm_legit.no_stats", {noise({2, 4, 3}, 1)},
        [&](const Refs& t) {
          return Arguments{arg(t[0]),     arg(srg::None{}), arg(srg::None{}),
                           arg(training), arg(0.1),         arg(1e-5)};
        },
        3);
  };
  EXPECT_EQ(bare(true), ErrorCode::kOk) << error;
  EXPECT_EQ(bare(false), ErrorCode::kInvalidArgument);
  const auto native = [&](bool training) {
    return code(
        "aten::native_batch_norm", {noise({2, 4, 3}, 1)},
        [&](const Refs& t) {
          return Arguments{arg(t[0]),        arg(srg::None{}), arg(srg::None{}), arg(srg::None{}),
                           arg(srg::None{}), arg(training),    arg(0.1),         arg(1e-5)};
        },
        3);
  };
  EXPECT_EQ(native(true), ErrorCode::kOk) << error;
  EXPECT_EQ(native(false), ErrorCode::kInvalidArgument);
}

TEST_F(Guards, channels_are_shuffled_in_groups) {
  const auto shuffled = [&](int64_t groups) {
    return code(
        "aten::native_channel_shuffle", {noise({2, 4, 4}, 1)},
        [&](const Refs& t) {
          return Arguments{arg(t[0]), integer(groups)};
        },
        1);
  };
  EXPECT_EQ(shuffled(2), ErrorCode::kOk) << error;
  EXPECT_EQ(shuffled(0), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(error.starts_with("aten::native_channel_shuffle")) << error;
}

TEST_F(Guards, the_least_integer_divides_nothing_that_traps) {
  const auto two = [&](const char* op, const at::Tensor& a, const at::Tensor& b,
                       srg::ArgumentValue rounding = srg::None{}) {
    return code(
        op, {a, b},
        [&](const Refs& t) {
          Arguments arguments{arg(t[0]), arg(t[1])};
          if (rounding != srg::ArgumentValue(srg::None{})) {
            arguments.push_back(arg("rounding_mode", rounding));
          }
          return arguments;
        },
        1);
  };
  for (const auto type : {at::kInt, at::kLong}) {
    const int64_t least = type == at::kInt ? INT32_MIN : INT64_MIN;
    const at::Tensor numbers = at::full({9}, least, type);
    const at::Tensor seven = at::full({9}, 7, type);
    const at::Tensor minus = at::full({9}, -1, type);
    EXPECT_EQ(two("aten::lcm", seven, minus), ErrorCode::kOk) << error;
    EXPECT_EQ(two("aten::lcm", numbers, seven), ErrorCode::kInvalidArgument);
    EXPECT_EQ(two("aten::lcm", seven, numbers), ErrorCode::kInvalidArgument);
    const at::Tensor one_long = at::full({}, INT32_MIN, at::kLong);  // computes in the other's type
    EXPECT_EQ(two("aten::lcm", seven, one_long),
              type == at::kInt ? ErrorCode::kInvalidArgument : ErrorCode::kOk);
    EXPECT_EQ(two("aten::div.Tensor_mode", numbers, seven, "trunc"), ErrorCode::kOk) << error;
    EXPECT_EQ(two("aten::div.Tensor_mode", seven, minus, "trunc"), ErrorCode::kOk) << error;
    EXPECT_EQ(two("aten::div.Tensor_mode", numbers, minus, "trunc"), ErrorCode::kInvalidArgument);
    EXPECT_EQ(two("aten::divide.Tensor_mode", numbers, minus, "trunc"),
              ErrorCode::kInvalidArgument);
  }
}

// In half precision its offsets are integers of 16 bits.
TEST_F(Guards, an_image_is_sampled_where_the_kernels_positions_reach_it) {
  const auto sampled = [&](std::vector<int64_t> sizes, at::ScalarType type) {
    return code(
        "aten::grid_sampler_2d",
        {noise(std::move(sizes), 1).to(type), noise({1, 4, 4, 2}, 2).to(type)},
        [&](const Refs& t) {
          return Arguments{arg(t[0]), arg(t[1]), integer(0), integer(1), arg(false)};
        },
        1);
  };
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    EXPECT_EQ(sampled({1, 2, 181, 181}, type), ErrorCode::kOk) << error;
    EXPECT_EQ(sampled({1, 2, 182, 182}, type), ErrorCode::kInvalidArgument);
    EXPECT_NE(error.find("convert it and the grid to float32"), std::string::npos) << error;
    EXPECT_EQ(sampled({1, 2, 2, 5120}, type), ErrorCode::kInvalidArgument);  // 5119 becomes 5120
  }
  EXPECT_EQ(sampled({1, 1, 1, (1 << 24) + 3}, at::kFloat), ErrorCode::kOk) << error;
  EXPECT_EQ(sampled({1, 1, 1, (1 << 24) + 4}, at::kFloat), ErrorCode::kInvalidArgument);
  EXPECT_EQ(sampled({1, 2, 1000, 300}, at::kFloat), ErrorCode::kOk) << error;
}

TEST_F(Guards, a_grid_leads_to_elements_of_the_input) {
  const auto gradients = [&](double at, int64_t padding, at::ScalarType type) {
    return code(
        "aten::grid_sampler_2d_backward",
        {noise({1, 2, 8, 8}, 1).to(type), noise({1, 2, 8, 8}, 2).to(type),
         at::full({1, 8, 8, 2}, at, type)},
        [&](const Refs& t) {
          return Arguments{arg(t[0]),        arg(t[1]),  arg(t[2]),          integer(0),
                           integer(padding), arg(false), flags({true, true})};
        },
        2);
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const int64_t padding : {1, 2}) {
    EXPECT_EQ(gradients(1e30, padding, at::kFloat), ErrorCode::kOk) << error;
    EXPECT_EQ(gradients(kInfinity, padding, at::kFloat), ErrorCode::kInvalidArgument);
    EXPECT_EQ(gradients(1e38, padding, at::kFloat), ErrorCode::kInvalidArgument);
    EXPECT_EQ(gradients(-1e38, padding, at::kFloat), ErrorCode::kInvalidArgument);
    EXPECT_EQ(gradients(1e38, padding, at::kDouble), ErrorCode::kOk) << error;
    EXPECT_EQ(gradients(1e308, padding, at::kDouble), ErrorCode::kInvalidArgument);
  }
}

TEST_F(Guards, a_convolutions_gradient_is_of_its_sizes) {
  const auto gradient = [&](std::vector<int64_t> sizes, at::ScalarType type, bool transposed) {
    const int64_t in = transposed ? 6 : 4, out = transposed ? 4 : 6;
    return code(
        "aten::convolution_backward",
        {noise(std::move(sizes), 1).to(type), noise({2, in, 5, 5}, 2).to(type),
         noise({6, 4, 3, 3}, 3).to(type)},
        [&](const Refs& t) {
          return Arguments{arg(t[0]),
                           arg(t[1]),
                           arg(t[2]),
                           integers({out}),
                           integers({2, 2}),
                           integers({1}),
                           integers({1, 1}),
                           arg(transposed),
                           integers({0, 0}),
                           integer(1),
                           flags({true, true, true})};
        },
        3);
  };
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    EXPECT_EQ(gradient({2, 6, 3, 3}, type, false), ErrorCode::kOk) << error;
    EXPECT_EQ(gradient({2, 4, 9, 9}, type, true), ErrorCode::kOk) << error;
    for (const auto& sizes : std::vector<std::vector<int64_t>>{
             {1, 6, 3, 3}, {0, 6, 3, 3}, {20, 6, 3, 3}, {2, 3, 3, 3}, {2, 6, 2, 3}, {2, 6, 3}}) {
      EXPECT_EQ(gradient(sizes, type, false), ErrorCode::kInvalidArgument);
    }
    EXPECT_EQ(gradient({1, 4, 9, 9}, type, true), ErrorCode::kInvalidArgument);
  }
}

TEST_F(Guards, a_convolutions_windows_lie_on_its_input) {
  const auto convolve = [&](at::ScalarType type, int64_t padding, int64_t dilation, int64_t size) {
    return code(
        "aten::conv2d", {noise({2, 4, 5, 5}, 1).to(type), noise({6, 4, size, size}, 2).to(type)},
        [&](const Refs& t) {
          return Arguments{arg(t[0]),
                           arg(t[1]),
                           arg(srg::None{}),
                           integers({2, 2}),
                           integers({padding, padding}),
                           integers({dilation, dilation})};
        },
        1);
  };
  EXPECT_EQ(convolve(at::kFloat, 1, 1, 1), ErrorCode::kOk) << error;
  EXPECT_EQ(convolve(at::kFloat, 4, 2, 3), ErrorCode::kOk) << error;
  EXPECT_EQ(convolve(at::kFloat, 8, 4, 1), ErrorCode::kInvalidArgument);
  EXPECT_EQ(convolve(at::kBFloat16, 4, 2, 3), ErrorCode::kOk) << error;
  EXPECT_EQ(convolve(at::kBFloat16, 1, 4, 1), ErrorCode::kInvalidArgument);
  EXPECT_EQ(convolve(at::kDouble, 8, 4, 1), ErrorCode::kOk) << error;
}

TEST_F(Guards, a_reduced_convolution_of_one_window_a_line_has_no_longer_stride) {
  const auto convolve = [&](at::ScalarType type, int64_t stride, int64_t width) {
    return code(
        "aten::conv3d",
        {noise({2, 4, 5, 5, width}, 1).to(type), noise({6, 4, 3, 3, 3}, 2).to(type)},
        [&](const Refs& t) {
          return Arguments{arg(t[0]), arg(t[1]), arg(srg::None{}), integers({1, 1, stride})};
        },
        1);
  };
  EXPECT_EQ(convolve(at::kBFloat16, 3, 5), ErrorCode::kOk) << error;
  EXPECT_EQ(convolve(at::kBFloat16, 4, 7), ErrorCode::kOk) << error;
  EXPECT_EQ(convolve(at::kFloat, 5, 5), ErrorCode::kOk) << error;
  EXPECT_EQ(convolve(at::kBFloat16, 4, 5), ErrorCode::kInvalidArgument);
  EXPECT_EQ(convolve(at::kHalf, 5, 5), ErrorCode::kInvalidArgument);
}

TEST_F(Guards, a_range_of_int64_has_a_step_and_a_countable_length) {
  const auto range = [&](srg::Argument start, srg::Argument end, srg::Argument step, DType type) {
    const auto arguments = [&](const Refs&) {
      return Arguments{start, end, step, {"dtype", type}};
    };
    return code("aten::arange.start_step", {}, arguments, 1);
  };
  EXPECT_EQ(range(integer(1), arg(2.5), arg(1.5), DType::kInt64), ErrorCode::kOk) << error;
  EXPECT_EQ(range(integer(1), arg(2.0), arg(0.5), DType::kFloat32), ErrorCode::kOk) << error;
  EXPECT_EQ(range(integer(1), arg(2.0), arg(1e-300), DType::kInt64), ErrorCode::kInvalidArgument);
  EXPECT_EQ(range(integer(0), integer(INT64_MIN), integer(-1), DType::kInt64),
            ErrorCode::kInvalidArgument);
}

TEST_F(Guards, a_convolutions_stride_is_one_that_is_multiplied_in_32_bits) {
  const auto convolve = [&](int64_t stride) {
    return code(
        "aten::conv1d", {noise({3, 4, 4}, 1), noise({3, 4, 3}, 2)},
        [&](const Refs& t) {
          return Arguments{arg(t[0]), arg(t[1]), arg(srg::None{}), integers({stride}),
                           integers({1})};
        },
        1);
  };
  EXPECT_EQ(convolve(1 << 14), ErrorCode::kOk) << error;
  EXPECT_EQ(convolve(INT32_MAX), ErrorCode::kInvalidArgument);
}

TEST_F(Guards, one_channel_is_not_the_last_where_a_line_has_one_element) {
  const auto convolve = [&](bool last, int64_t width) {
    GraphBuilder b;
    const auto input = b.input("input", DType::kFloat32, {3, 1, 9, width});
    const auto weight = b.input("weight", DType::kFloat32, {2, 1, 5, 5});
    const auto laid = b.call(
        "aten::clone",
        {arg(input), {"memory_format", std::string(last ? "channels_last" : "contiguous_format")}});
    b.output(b.call("aten::conv2d", {arg(laid), arg(weight), arg(srg::None{}), integers({1, 2})}));
    Outcome<void> ended = world.admit(b.graph);
    if (ended) ended = world.run({}, {noise({3, 1, 9, width}, 1), noise({2, 1, 5, 5}, 2)});
    return code_of(ended);
  };
  EXPECT_EQ(convolve(false, 6), ErrorCode::kOk);
  EXPECT_EQ(convolve(true, 7), ErrorCode::kOk);
  EXPECT_EQ(convolve(true, 6), ErrorCode::kInvalidArgument);
}

TEST_F(Guards, integers_are_not_divided_by_minus_one) {
  const auto average = [&](int64_t divisor) {
    return code(
        "aten::avg_pool2d", {at::full({1, 1, 2, 2}, int64_t{1} << 61, at::kLong)},
        [&](const Refs& t) {
          return Arguments{arg(t[0]),  integers({2, 2}), integers({2, 2}), integers({0, 0}),
                           arg(false), arg(true),        integer(divisor)};
        },
        1);
  };
  EXPECT_EQ(average(2), ErrorCode::kOk) << error;
  EXPECT_EQ(average(-1), ErrorCode::kInvalidArgument);
}

TEST_F(Guards, a_sum_of_products_in_place_does_not_grow) {
  const auto add = [&](const std::vector<int64_t>& sizes) {
    GraphBuilder b;
    const auto sum = b.input("sum", DType::kFloat32, {sizes.begin(), sizes.end()});
    const auto left = b.input("left", DType::kFloat32, {2, 3, 4});
    const auto right = b.input("right", DType::kFloat32, {2, 4, 5});
    const auto copy = b.call("aten::clone", {arg(sum)});
    b.output(b.call("aten::addbmm_", {arg(copy), arg(left), arg(right)}));
    Outcome<void> ended = world.admit(b.graph);
    if (ended) {
      ended = world.run({}, {noise(sizes, 1), noise({2, 3, 4}, 2), noise({2, 4, 5}, 3)});
    }
    return code_of(ended);
  };
  EXPECT_EQ(add({3, 5}), ErrorCode::kOk);
  EXPECT_EQ(add({5}), ErrorCode::kInvalidArgument);
}

TEST_F(Guards, what_is_taken_apart_has_not_too_many_parts) {
  const auto unique = [&](const char* op, int64_t parts) {
    const bool is_optional = op == std::string_view("aten::unique_consecutive");
    return code(
        op, {at::zeros({parts, 1}, at::kByte)},
        [&](const Refs& t) {
          return is_optional ? Arguments{arg(t[0]), arg(false), arg(false), integer(0)}
                             : Arguments{arg(t[0]), integer(0)};
        },
        3);
  };
  constexpr int64_t kMost = int64_t{1} << 20;
  for (const char* const op :
       {"aten::unique_consecutive", "aten::unique_dim", "aten::unique_dim_consecutive"}) {
    EXPECT_EQ(unique(op, 8), ErrorCode::kOk) << op << error;
    EXPECT_EQ(unique(op, kMost + 1), ErrorCode::kInvalidArgument) << op;
  }
  const auto network = [&](int64_t tokens) {
    return code(
        "aten::rnn_tanh.input",
        {at::zeros({tokens, 1, 1}), at::zeros({1, 1, 1}), at::zeros({1, 1}), at::zeros({1, 1})},
        [](const Refs& t) {
          return Arguments{arg(t[0]),  arg(t[1]),  {"", srg::ValueList{{t[2].id, t[3].id}}},
                           arg(false), integer(1), arg(0.0),
                           arg(false), arg(false), arg(false)};
        },
        2);
  };
  EXPECT_EQ(network(8), ErrorCode::kOk) << error;
  EXPECT_EQ(network(kMost + 1), ErrorCode::kInvalidArgument);
}

TEST_F(Guards, repeats_neither_fall_nor_wrap) {
  const auto repeated = [&](std::initializer_list<int64_t> repeats, at::ScalarType type) {
    return code(
        "aten::repeat_interleave.Tensor", {at::tensor(repeats, type)},
        [](const Refs& t) {
          return Arguments{arg(t[0]), arg("output_size", srg::Expr(5))};
        },
        1);
  };
  for (const auto type : {at::kInt, at::kLong}) {
    EXPECT_EQ(repeated({3, 0, 2}, type), ErrorCode::kOk) << error;
    EXPECT_EQ(repeated({1 << 20, 5 - (1 << 20)}, type), ErrorCode::kInvalidArgument);
    EXPECT_EQ(repeated({-1, 6}, type), ErrorCode::kInvalidArgument);
  }
  constexpr int64_t kQuarter = int64_t{1} << 62;  // four of them are 0
  EXPECT_EQ(repeated({kQuarter, kQuarter, kQuarter, kQuarter, 5}, at::kLong),
            ErrorCode::kInvalidArgument);
  const auto composite = code(
      "aten::repeat_interleave.self_Tensor",
      {noise({2}, 1), at::tensor({int64_t{1} << 20, 5 - (int64_t{1} << 20)})},
      [](const Refs& t) {
        return Arguments{arg(t[0]), arg(t[1]), integer(0), arg("output_size", srg::Expr(5))};
      },
      1);
  EXPECT_EQ(composite, ErrorCode::kInvalidArgument);
}

TEST_F(Guards, composites_pass_the_guards_of_what_they_call) {
  const auto norm = [&](const at::Tensor& g) {
    return code(
        "aten::_weight_norm", {noise({64, 3}, 1), g},
        [](const Refs& t) {
          return Arguments{arg(t[0]), arg(t[1]), integer(0)};
        },
        1);
  };
  EXPECT_EQ(norm(noise({64, 1}, 2)), ErrorCode::kOk) << error;
  EXPECT_EQ(norm(noise({1, 1}, 2)), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(error.starts_with("aten::_weight_norm")) << error;
  EXPECT_EQ(norm(at::zeros({0})), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace djinn::exec
