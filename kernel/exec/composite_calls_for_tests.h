// SPDX-License-Identifier: Apache-2.0

// Calls of the composite operators that take no arguments of one kind alone, or only some values.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kernel/exec/executor_for_tests.h"

namespace djinn::exec {

using Stack = std::vector<c10::IValue>;

namespace composites {

inline at::Tensor values(std::vector<int64_t> sizes) {
  return noise(std::move(sizes), 1);
}

inline at::Tensor ones(std::vector<int64_t> sizes, at::ScalarType type = at::kFloat) {
  return at::full(sizes, 1, type);
}

inline c10::IValue ints(const std::vector<int64_t>& of) {
  return c10::List<int64_t>(of);
}

inline c10::IValue list(const std::vector<at::Tensor>& of) {
  return c10::List<at::Tensor>(of);
}

// One layer from 4 features to 5, three steps of two rows; hx is its state, or both.
inline Stack recurrent(const c10::IValue& hx, int64_t gates) {
  const c10::IValue weights = list(
      {values({gates * 5, 4}), values({gates * 5, 5}), values({gates * 5}), values({gates * 5})});
  return {values({3, 2, 4}), hx, weights, true, 1, 0.0, false, false, false};
}

// A batch norm's arguments up to its statistics, which are positive.
inline Stack normalised(const std::vector<c10::IValue>& rest) {
  const at::Tensor four = values({4});
  Stack stack{values({2, 4, 3}), four, four, four.clone(), four.abs()};
  stack.insert(stack.end(), rest.begin(), rest.end());
  return stack;
}

inline Stack resized(int64_t dims, bool corners) {
  const std::vector<int64_t> sizes(static_cast<size_t>(dims + 2), 4);
  Stack stack{values(sizes), ints(std::vector<int64_t>(static_cast<size_t>(dims), 6))};
  if (corners) stack.emplace_back(false);
  stack.emplace_back();
  return stack;
}

inline std::vector<Stack> padded() {
  std::vector<Stack> stacks;
  for (const char* const mode : {"reflect", "replicate", "circular", "constant"}) {
    for (int64_t dims = 1; dims <= 3; ++dims) {
      const std::vector<int64_t> sizes(static_cast<size_t>(dims + 2), 4);
      const std::vector<int64_t> padding(static_cast<size_t>(2 * dims), 1);
      stacks.push_back({values(sizes), ints(padding), std::string(mode), c10::IValue()});
    }
  }
  return stacks;
}

// Of one to three dimensions, as it is and transposed.
inline std::vector<Stack> convolved(const std::vector<c10::IValue>& rest) {
  std::vector<Stack> stacks;
  for (int64_t dims = 1; dims <= 3; ++dims) {
    for (const bool transposed : {false, true}) {
      const auto count = static_cast<size_t>(dims);
      const std::vector<int64_t> ones(count, 1);
      const std::vector<int64_t> sizes(count + 2, 4);
      stacks.push_back({values(sizes), values(sizes), values({4}), ints(ones), ints(ones),
                        ints(ones), transposed, ints(std::vector<int64_t>(count, 0)), 1});
      stacks.back().insert(stacks.back().end(), rest.begin(), rest.end());
    }
  }
  return stacks;
}

inline at::Tensor regular() {
  return at::zeros({3, 3}).fill_diagonal_(2);
}

inline std::map<std::string, std::vector<Stack>, std::less<>> all() {
  const c10::IValue none;
  const at::Tensor four = values({4});
  const at::Tensor square = values({4, 4});
  const at::Tensor classes = int64s({3}, {0, 1, 3});
  const at::Tensor rows = int64s({2}, {0, 2});
  const at::Tensor spectrum = ones({9, 5}, at::kComplexFloat);
  const c10::IValue state = values({1, 2, 5});
  const c10::IValue states = list({values({1, 2, 5}), values({1, 2, 5})});
  const c10::IValue mask = c10::List<bool>({true, true, true});
  const c10::IValue indices = c10::List<std::optional<at::Tensor>>({rows});
  return {
      {"aten::_batch_norm_no_update", {normalised({0.1, 1e-5})}},
      {"aten::_batch_norm_with_update_functional", {normalised({0.1, 1e-5})}},
      {"aten::_convolution", convolved({false, false, false, false})},
      {"aten::_grouped_mm",
       {{values({2, 16, 16}).to(at::kBFloat16), values({2, 16, 16}).to(at::kBFloat16), none, none,
         none}}},
      {"aten::_native_batch_norm_legit_functional", {normalised({true, 0.1, 1e-5})}},
      {"aten::_native_batch_norm_legit_no_training", {normalised({0.1, 1e-5})}},
      {"aten::_pad_circular", {{values({1, 2, 3}), ints({1, 1})}}},
      {"aten::_upsample_bicubic2d_aa.vec", {resized(2, true)}},
      {"aten::_upsample_bilinear2d_aa.vec", {resized(2, true)}},
      {"aten::_upsample_nearest_exact1d.vec", {resized(1, false)}},
      {"aten::_upsample_nearest_exact2d.vec", {resized(2, false)}},
      {"aten::_upsample_nearest_exact3d.vec", {resized(3, false)}},
      {"aten::addr_", {{square.clone(), four, four, 1, 1}}},
      {"aten::affine_grid_generator",
       {{values({1, 2, 3}), ints({1, 2, 4, 4}), false},
        {values({1, 3, 4}), ints({1, 2, 4, 4, 4}), false}}},
      {"aten::affine_grid_generator_backward", {{values({1, 4, 4, 2}), ints({1, 2, 4, 4}), false}}},
      {"aten::batch_norm",
       {{values({2, 4, 3}), none, none, four, four.abs(), false, 0.1, 1e-5, false},
        {values({2, 4, 3}), none, none, none, none, true, 0.1, 1e-5, false}}},
      {"aten::clip", {{four, 0, 1}}},
      {"aten::clip.Tensor", {{four, four, four}}},
      {"aten::clip_", {{four.clone(), 0, 1}}},
      {"aten::clip_.Tensor", {{four.clone(), four, four}}},
      {"aten::constant_pad_nd", {{square, ints({1, 1}), 0}}},
      {"aten::conv_tbc", {{values({4, 2, 3}), values({2, 3, 5}), values({5}), 0}}},
      {"aten::convolution", convolved({})},
      {"aten::convolution_backward",
       {{values({1, 4, 4}), values({1, 4, 4}), values({4, 4, 1}), ints({4}), ints({1}), ints({0}),
         ints({1}), false, ints({0}), 1, mask}}},
      {"aten::cosine_embedding_loss", {{square, square, four, 0.0, 1}}},
      {"aten::cross", {{values({2, 3}), values({2, 3}), none}}},
      {"aten::cross_entropy_loss", {{values({3, 4}), classes, none, 1, -100, 0.0}}},
      {"aten::diagonal_backward", {{four, ints({4, 4}), 0, 0, 1}}},
      {"aten::einsum", {{std::string("ij,jk->ik"), list({square, square}), none}}},
      {"aten::float_power_.Scalar", {{four.to(at::kDouble), 2.0}}},
      {"aten::float_power_.Tensor", {{four.to(at::kDouble), four}}},
      {"aten::grid_sampler",
       {{values({1, 2, 3, 3}), values({1, 2, 2, 2}), 0, 0, false},
        {values({1, 2, 3, 3, 3}), values({1, 2, 2, 2, 3}), 0, 0, false}}},
      {"aten::group_norm", {{values({2, 4, 3}), 2, four, four, 1e-5, false}}},
      {"aten::gru.input", {recurrent(state, 3)}},
      {"aten::index_fill.int_Scalar", {{square, 0, rows, 1}}},
      {"aten::index_fill.int_Tensor", {{square, 0, rows, ones({})}}},
      {"aten::index_put", {{square, indices, ones({2, 4}), false}}},
      {"aten::index_put_", {{square.clone(), indices, ones({2, 4}), false}}},
      {"aten::index_select_backward", {{values({2, 4}), ints({4, 4}), 0, rows}}},
      {"aten::inverse", {{regular()}}},
      {"aten::istft", {{spectrum, 16, none, none, ones({16}), true, false, none, none, false}}},
      {"aten::layer_norm", {{square, ints({4}), four, four, 1e-5, false}}},
      {"aten::linalg_inv", {{regular()}}},
      {"aten::linalg_solve", {{regular(), values({3, 2}), true}}},
      {"aten::lstm.input", {recurrent(states, 4)}},
      {"aten::meshgrid.indexing", {{list({four, four}), std::string("ij")}}},
      {"aten::mv", {{square, four}}},
      {"aten::narrow.Tensor", {{square, 0, int64s({}, {1}), 2}}},
      {"aten::native_group_norm", {{values({2, 4, 3}), four, four, 2, 4, 3, 2, 1e-5}}},
      {"aten::native_layer_norm", {{square, ints({4}), four, four, 1e-5}}},
      {"aten::nll_loss", {{values({3, 4}), classes, none, 1, -100}}},
      {"aten::nll_loss2d", {{values({1, 4, 3, 1}), classes.view({1, 3, 1}), none, 1, -100}}},
      {"aten::nll_loss_nd",
       {{values({3, 4}), classes, none, 1, -100},
        {values({1, 4, 3, 1}), classes.view({1, 3, 1}), none, 1, -100}}},
      {"aten::pad", padded()},
      {"aten::permute", {{square, ints({1, 0})}}},
      {"aten::rms_norm", {{square, ints({4}), four, none}}},
      {"aten::rnn_relu.input", {recurrent(state, 1)}},
      {"aten::rnn_tanh.input", {recurrent(state, 1)}},
      {"aten::slice_backward", {{values({2, 4}), ints({4, 4}), 0, 0, 2, 1}}},
      {"aten::split.sizes", {{square, ints({1, 3}), 0}}},
      {"aten::split_with_sizes", {{square, ints({1, 3}), 0}}},
      {"aten::stft", {{values({64}), 16, none, none, ones({16}), false, none, true, none}}},
      {"aten::to.device", {{four, at::Device(at::kCPU), at::kDouble, false, false, none}}},
      {"aten::trace_backward", {{ones({}), ints({4, 4})}}},
      {"aten::unflatten.int", {{square, 0, ints({2, 2})}}},
      {"aten::unsafe_split_with_sizes", {{square, ints({1, 3}), 0}}},
      {"aten::upsample_bicubic2d.vec", {resized(2, true)}},
      {"aten::upsample_bilinear2d.vec", {resized(2, true)}},
      {"aten::upsample_linear1d.vec", {resized(1, true)}},
      {"aten::upsample_nearest1d.vec", {resized(1, false)}},
      {"aten::upsample_nearest2d.vec", {resized(2, false)}},
      {"aten::upsample_nearest3d.vec", {resized(3, false)}},
      {"aten::upsample_trilinear3d.vec", {resized(3, true)}},
      {"aten::value_selecting_reduction_backward",
       {{four, 0, int64s({4}, {0, 1, 2, 3}), ints({4, 4}), false}}},
      {"djinn::randint", {{0, 4, ints({2}), at::kLong, 1, 0, none}}},
  };
}

}  // namespace composites
}  // namespace djinn::exec
