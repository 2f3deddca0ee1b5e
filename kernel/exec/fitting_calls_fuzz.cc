// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/fitting_calls_fuzz.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "kernel/base/assert.h"
#include "kernel/srg/text.h"

namespace djinn::exec {
namespace {

// `inputs` has a letter and sizes for each input, as in "x 2,3". It is of float32, or of the dtype
// that follows a ':'.
struct Fitting {
  std::string_view op;
  std::string_view inputs;
  std::string_view arguments;
  size_t results;
};

// The calls are sorted by operator.
constexpr auto kCalls = std::to_array<Fitting>({
    {"aten::_adaptive_avg_pool2d_backward", "g 2,3,2,2;x 2,3,4,4", "%g, %x", 1},
    {"aten::_adaptive_avg_pool3d_backward", "g 2,3,2,2,2;x 2,3,4,4,4", "%g, %x", 1},
    {"aten::_batch_norm_no_update", "x 2,4,3;w 4;b 4;m 4;v 4", "%x, %w, %b, %m, %v, 0.1, 1e-5", 4},
    {"aten::_batch_norm_with_update", "x 2,4,3;w 4;b 4;m 4;v 4", "%x, %w, %b, %m, %v, 0.1, 1e-5",
     4},
    {"aten::_batch_norm_with_update_functional", "x 2,4,3;w 4;b 4;m 4;v 4",
     "%x, %w, %b, %m, %v, 0.1, 1e-5", 6},
    {"aten::_cdist_backward", "g 3,4;x 3,5;y 4,5;d 3,4", "%g, %x, %y, 2.0, %d", 1},
    {"aten::_convolution", "x 2,4,5,5;w 6,2,3,3;b 6",
     "%x, %w, %b, [1, 1], [1, 1], [1, 1], false, [0, 0], 2, false, false, true, true", 1},
    {"aten::_fft_c2c", "x 4,5:complex64", "%x, [1], 0, true", 1},
    {"aten::_fft_c2r", "x 4,5:complex64", "%x, [1], 0, 8", 1},
    {"aten::_fft_r2c", "x 4,6", "%x, [1], 0, true", 1},
    {"aten::_grouped_mm", "x 2,8,16:bfloat16;w 2,16,16:bfloat16", "%x, %w", 1},
    {"aten::_log_softmax_backward_data", "g 3,4;o 3,4", "%g, %o, 1, float32", 1},
    {"aten::_native_batch_norm_legit", "x 2,4,3;w 4;b 4;m 4;v 4",
     "%x, %w, %b, %m, %v, true, 0.1, 1e-5", 3},
    {"aten::_native_batch_norm_legit.no_stats", "x 2,4,3;w 4;b 4", "%x, %w, %b, true, 0.1, 1e-5",
     3},
    {"aten::_native_batch_norm_legit_functional", "x 2,4,3;w 4;b 4;m 4;v 4",
     "%x, %w, %b, %m, %v, true, 0.1, 1e-5", 5},
    {"aten::_native_batch_norm_legit_no_training", "x 2,4,3;w 4;b 4;m 4;v 4",
     "%x, %w, %b, %m, %v, 0.1, 1e-5", 3},
    {"aten::_native_multi_head_attention", "q 2,3,8;w 24,8;b 24;p 8,8;c 8",
     "%q, %q, %q, 8, 2, %w, %b, %p, %c", 2},
    {"aten::_pad_circular", "x 2,3,5", "%x, [1, 2]", 1},
    {"aten::_pdist_forward", "x 4,5", "%x", 1},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", "q 2,4,3,8;k 2,4,5,8",
     "%q, %k, %k, 0.0, false", 2},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", "q 2,4,3,8;k 2,4,5,8;l 2,4,3",
     "%q, %q, %k, %k, %q, %l, 0.0, false", 3},
    {"aten::_softmax_backward_data", "g 3,4;o 3,4", "%g, %o, 1, float32", 1},
    {"aten::_transformer_encoder_layer_fwd", "x 2,3,8;w 24,8;b 24;p 8,8;c 8;f 16,8;g 16;h 8,16",
     "%x, 8, 2, %w, %b, %p, %c, false, false, 1e-5, %c, %c, %c, %c, %f, %g, %h, %c", 1},
    {"aten::_trilinear", "x 3,4;y 3,4;z 3,4", "%x, %y, %z, [], [], [], [1]", 1},
    {"aten::_upsample_bicubic2d_aa", "x 2,3,4,5", "%x, [6, 8], false", 1},
    {"aten::_upsample_bicubic2d_aa_backward", "g 2,3,6,8", "%g, [6, 8], [2, 3, 4, 5], false", 1},
    {"aten::_upsample_bilinear2d_aa", "x 2,3,4,5", "%x, [6, 8], false", 1},
    {"aten::_upsample_bilinear2d_aa_backward", "g 2,3,6,8", "%g, [6, 8], [2, 3, 4, 5], false", 1},
    {"aten::_upsample_nearest_exact1d", "x 2,3,4", "%x, [6]", 1},
    {"aten::_upsample_nearest_exact1d_backward", "g 2,3,6", "%g, [6], [2, 3, 4]", 1},
    {"aten::_upsample_nearest_exact2d", "x 2,3,4,5", "%x, [6, 8]", 1},
    {"aten::_upsample_nearest_exact2d_backward", "g 2,3,6,8", "%g, [6, 8], [2, 3, 4, 5]", 1},
    {"aten::_upsample_nearest_exact3d", "x 2,3,4,5,2", "%x, [6, 8, 2]", 1},
    {"aten::_upsample_nearest_exact3d_backward", "g 2,3,6,8,2", "%g, [6, 8, 2], [2, 3, 4, 5, 2]",
     1},
    {"aten::_weight_norm_interface", "v 3,4;g 3,1", "%v, %g", 2},
    {"aten::_weight_norm_interface_backward", "w 3,4;g 3,1;n 3,1", "%w, %w, %g, %n, 0", 2},
    {"aten::adaptive_max_pool2d_backward", "g 2,3,2,2;x 2,3,4,4;i 2,3,2,2:int64", "%g, %x, %i", 1},
    {"aten::adaptive_max_pool3d_backward", "g 2,3,2,2,2;x 2,3,4,4,4;i 2,3,2,2,2:int64",
     "%g, %x, %i", 1},
    {"aten::addbmm", "x 3,5;a 2,3,4;b 2,4,5", "%x, %a, %b", 1},
    {"aten::addbmm_", "x 3,5;a 2,3,4;b 2,4,5", "%x, %a, %b", 1},
    {"aten::addr_", "x 3,5;a 3;b 5", "%x, %a, %b", 1},
    {"aten::affine_grid_generator", "t 2,2,3", "%t, [2, 3, 4, 5], false", 1},
    {"aten::affine_grid_generator_backward", "g 2,4,5,2", "%g, [2, 3, 4, 5], false", 1},
    {"aten::as_strided_scatter", "x 4,4;y 2,2", "%x, %y, [2, 2], [4, 1], 1", 1},
    {"aten::avg_pool2d", "x 2,3,4,4", "%x, [2, 2]", 1},
    {"aten::avg_pool2d_backward", "g 2,3,2,2;x 2,3,4,4",
     "%g, %x, [2, 2], [2, 2], [0, 0], false, true, none", 1},
    {"aten::avg_pool3d", "x 2,3,4,4,4", "%x, [2, 2, 2]", 1},
    {"aten::avg_pool3d_backward", "g 2,3,2,2,2;x 2,3,4,4,4",
     "%g, %x, [2, 2, 2], [2, 2, 2], [0, 0, 0], false, true, none", 1},
    {"aten::baddbmm_", "x 2,3,5;a 2,3,4;b 2,4,5", "%x, %a, %b", 1},
    {"aten::batch_norm", "x 2,4,3;w 4;b 4;m 4;v 4", "%x, %w, %b, %m, %v, false, 0.1, 1e-5, false",
     1},
    {"aten::bilinear", "x 3,4;y 3,5;w 6,4,5;b 6", "%x, %y, %w, %b", 1},
    {"aten::binary_cross_entropy", "x 4;y 4", "%x, %y", 1},
    {"aten::binary_cross_entropy_backward", "x 4", "%x, %x, %x, none, 0", 1},
    {"aten::binary_cross_entropy_with_logits", "x 4", "%x, %x", 1},
    {"aten::col2im", "x 2,12,9", "%x, [4, 4], [2, 2], [1, 1], [0, 0], [1, 1]", 1},
    {"aten::conv2d.padding", "x 2,4,5,5;w 6,4,3,3;b 6", "%x, %w, %b, [1, 1], \"same\"", 1},
    {"aten::conv3d.padding", "x 2,4,5,5,5;w 6,4,3,3,3;b 6", "%x, %w, %b, [1, 1, 1], \"valid\"", 1},
    {"aten::conv_tbc", "x 5,2,4;w 3,4,6;b 6", "%x, %w, %b, 1", 1},
    {"aten::conv_transpose1d", "x 2,4,5;w 4,3,3;b 6", "%x, %w, %b, [2], [1], [1], 2", 1},
    {"aten::conv_transpose2d.input", "x 2,4,5,5;w 4,3,3,3;b 6",
     "%x, %w, %b, [2, 2], [1, 1], [1, 1], 2", 1},
    {"aten::conv_transpose3d.input", "x 1,4,3,3,3;w 4,3,3,3,3;b 6",
     "%x, %w, %b, [2, 2, 2], [1, 1, 1], [1, 1, 1], 2", 1},
    {"aten::convolution", "x 2,4,5,5;w 6,2,3,3;b 6",
     "%x, %w, %b, [1, 1], [1, 1], [1, 1], false, [0, 0], 2", 1},
    {"aten::convolution_backward", "g 2,6,5,5;x 2,4,5,5;w 6,2,3,3",
     "%g, %x, %w, [6], [1, 1], [1, 1], [1, 1], false, [0, 0], 2, [true, true, true]", 3},
    {"aten::cross_entropy_loss", "x 4,5;t 4:int64;w 5", "%x, %t, %w", 1},
    {"aten::diagonal_scatter", "x 4,4;y 4", "%x, %y", 1},
    {"aten::div.Scalar_mode", "x 4", "%x, 2, \"floor\"", 1},
    {"aten::div.Tensor_mode", "x 4", "%x, %x, \"floor\"", 1},
    {"aten::div_.Scalar_mode", "x 4", "%x, 2, \"floor\"", 1},
    {"aten::div_.Tensor_mode", "x 4", "%x, %x, \"floor\"", 1},
    {"aten::embedding_dense_backward", "g 3,8;i 3:int64", "%g, %i, 10, -1, true", 1},
    {"aten::gelu_backward", "x 4", "%x, %x", 1},
    {"aten::grid_sampler", "x 2,3,4,5;g 2,6,7,2", "%x, %g, 0, 0, false", 1},
    {"aten::grid_sampler_2d", "x 2,3,4,5;g 2,6,7,2", "%x, %g, 0, 0, false", 1},
    {"aten::grid_sampler_2d_backward", "d 2,3,6,7;x 2,3,4,5;g 2,6,7,2",
     "%d, %x, %g, 0, 0, false, [true, true]", 2},
    {"aten::grid_sampler_3d", "x 2,3,4,5,2;g 2,6,7,3,3", "%x, %g, 0, 0, false", 1},
    {"aten::grid_sampler_3d_backward", "d 2,3,6,7,3;x 2,3,4,5,2;g 2,6,7,3,3",
     "%d, %x, %g, 0, 0, false, [true, true]", 2},
    {"aten::gru.input", "x 5,2,4;h 1,2,3;w 9,4;r 9,3;b 9",
     "%x, %h, [%w, %r, %b, %b], true, 1, 0.0, false, false, false", 2},
    {"aten::huber_loss", "x 4", "%x, %x", 1},
    {"aten::huber_loss_backward", "x 4", "%x, %x, %x, 0, 1.0", 1},
    {"aten::im2col", "x 2,3,6,6", "%x, [2, 2], [1, 1], [0, 0], [1, 1]", 1},
    {"aten::index_add", "x 4,5;i 2:int64;s 2,5", "%x, 0, %i, %s", 1},
    {"aten::index_put_", "x 4,5;i 2:int64;s 2,5", "%x, [%i], %s", 1},
    {"aten::index_reduce", "x 4,5;i 2:int64;s 2,5", "%x, 0, %i, %s, \"mean\"", 1},
    {"aten::index_reduce_", "x 4,5;i 2:int64;s 2,5", "%x, 0, %i, %s, \"amax\"", 1},
    {"aten::istft", "x 9,4:complex64;w 16", "%x, 16, 4, 16, %w", 1},
    {"aten::lcm", "x 4:int64", "%x, %x", 1},
    {"aten::lcm_", "x 4:int64", "%x, %x", 1},
    {"aten::linear_backward", "x 2,4;g 2,6;w 6,4", "%x, %g, %w, [true, true, true]", 3},
    {"aten::lstm.input", "x 5,2,4;h 1,2,3;w 12,4;r 12,3;b 12",
     "%x, [%h, %h], [%w, %r, %b, %b], true, 1, 0.0, false, false, false", 3},
    {"aten::max_pool1d", "x 2,3,8", "%x, [2]", 1},
    {"aten::max_pool2d_with_indices_backward", "g 2,3,2,2;x 2,3,4,4;i 2,3,2,2:int64",
     "%g, %x, [2, 2], [2, 2], [0, 0], [1, 1], false, %i", 1},
    {"aten::max_pool3d_with_indices_backward", "g 2,3,2,2,2;x 2,3,4,4,4;i 2,3,2,2,2:int64",
     "%g, %x, [2, 2, 2], [2, 2, 2], [0, 0, 0], [1, 1, 1], false, %i", 1},
    {"aten::max_unpool2d", "x 2,3,2,2;i 2,3,2,2:int64", "%x, %i, [4, 4]", 1},
    {"aten::max_unpool3d", "x 2,3,2,2,2;i 2,3,2,2,2:int64",
     "%x, %i, [4, 4, 4], [2, 2, 2], [0, 0, 0]", 1},
    {"aten::median.dim", "x 3,4", "%x, 1", 2},
    {"aten::mse_loss", "x 4", "%x, %x", 1},
    {"aten::mse_loss_backward", "x 4", "%x, %x, %x, 0", 1},
    {"aten::multi_margin_loss", "x 3,4;t 3:int64", "%x, %t", 1},
    {"aten::multi_margin_loss_backward", "g 3;x 3,4;t 3:int64", "%g, %x, %t, 1, 1.0, none, 0", 1},
    {"aten::nanmedian.dim", "x 3,4", "%x, 1", 2},
    {"aten::native_batch_norm", "x 2,4,3;w 4;b 4;m 4;v 4", "%x, %w, %b, %m, %v, false, 0.1, 1e-5",
     3},
    {"aten::native_batch_norm_backward", "g 2,4,3;x 2,4,3;w 4",
     "%g, %x, %w, %w, %w, %w, %w, true, 1e-5, [true, true, true]", 3},
    {"aten::native_channel_shuffle", "x 2,4,3,3", "%x, 2", 1},
    {"aten::native_group_norm", "x 2,4,3;w 4", "%x, %w, %w, 2, 4, 3, 2, 1e-5", 3},
    {"aten::native_group_norm_backward", "g 2,4,3;x 2,4,3;m 2,2;w 4",
     "%g, %x, %m, %m, %w, 2, 4, 3, 2, [true, true, true]", 3},
    {"aten::native_layer_norm_backward", "g 6,8;x 6,8;m 6,1;w 8",
     "%g, %x, [8], %m, %m, %w, %w, [true, true, true]", 3},
    {"aten::nll_loss2d", "x 2,5,3,4;t 2,3,4:int64;w 5", "%x, %t, %w", 1},
    {"aten::nll_loss2d_backward", "g ;x 2,5,3,4;t 2,3,4:int64;w 5", "%g, %x, %t, %w, 1, -100, %g",
     1},
    {"aten::nll_loss2d_forward", "x 2,5,3,4;t 2,3,4:int64;w 5", "%x, %t, %w, 1, -100", 2},
    {"aten::nll_loss_backward", "g 4;x 4,5;t 4:int64;w 5;n ", "%g, %x, %t, %w, 0, -100, %n", 1},
    {"aten::nll_loss_forward", "x 4,5;t 4:int64;w 5", "%x, %t, %w, 1, -100", 2},
    {"aten::reflection_pad1d", "x 2,3,5", "%x, [1, 2]", 1},
    {"aten::reflection_pad1d_backward", "g 2,3,8;x 2,3,5", "%g, %x, [1, 2]", 1},
    {"aten::reflection_pad2d", "x 2,3,5,6", "%x, [1, 2, 1, 1]", 1},
    {"aten::reflection_pad2d_backward", "g 2,3,7,9;x 2,3,5,6", "%g, %x, [1, 2, 1, 1]", 1},
    {"aten::reflection_pad3d", "x 1,2,4,4,4", "%x, [1, 1, 1, 1, 1, 1]", 1},
    {"aten::reflection_pad3d_backward", "g 1,2,6,6,6;x 1,2,4,4,4", "%g, %x, [1, 1, 1, 1, 1, 1]", 1},
    {"aten::repeat_interleave.Tensor", "n 3:int64", "%n, output_size=0", 1},
    {"aten::replication_pad1d", "x 2,3,5", "%x, [1, 2]", 1},
    {"aten::replication_pad1d_backward", "g 2,3,8;x 2,3,5", "%g, %x, [1, 2]", 1},
    {"aten::replication_pad2d", "x 2,3,5,6", "%x, [1, 2, 1, 1]", 1},
    {"aten::replication_pad2d_backward", "g 2,3,7,9;x 2,3,5,6", "%g, %x, [1, 2, 1, 1]", 1},
    {"aten::replication_pad3d", "x 1,2,4,4,4", "%x, [1, 1, 1, 1, 1, 1]", 1},
    {"aten::replication_pad3d_backward", "g 1,2,6,6,6;x 1,2,4,4,4", "%g, %x, [1, 1, 1, 1, 1, 1]",
     1},
    {"aten::rnn_relu.input", "x 5,2,4;h 1,2,3;w 3,4;r 3,3;b 3",
     "%x, %h, [%w, %r, %b, %b], true, 1, 0.0, false, false, false", 2},
    {"aten::rnn_tanh.input", "x 5,2,4;h 1,2,3;w 3,4;r 3,3;b 3",
     "%x, %h, [%w, %r, %b, %b], true, 1, 0.0, false, false, false", 2},
    {"aten::scaled_dot_product_attention", "q 2,4,3,8;k 2,4,5,8", "%q, %k, %k", 1},
    {"aten::scatter_reduce_.two", "x 4,5;i 2,5:int64;s 2,5", "%x, 0, %i, %s, \"sum\"", 1},
    {"aten::select_scatter", "x 4,5;s 5", "%x, %s, 0, 1", 1},
    {"aten::slice_scatter", "x 4,5;s 2,5", "%x, %s, 0, 1, 3, 1", 1},
    {"aten::smooth_l1_loss", "x 4", "%x, %x", 1},
    {"aten::smooth_l1_loss_backward", "x 4", "%x, %x, %x, 0, 1.0", 1},
    {"aten::soft_margin_loss", "x 4", "%x, %x", 1},
    {"aten::soft_margin_loss_backward", "x 4", "%x, %x, %x, 0", 1},
    {"aten::stft", "x 64;w 16", "%x, 16, 4, 16, %w, false, true, true", 1},
    {"aten::unfold_backward", "g 4,3", "%g, [9], 0, 3, 2", 1},
    {"aten::unique_consecutive", "x 4,5", "%x, false, false, 0", 3},
    {"aten::unique_dim", "x 4,5", "%x, 0", 3},
    {"aten::unique_dim_consecutive", "x 4,5", "%x, 0", 3},
    {"aten::upsample_bicubic2d", "x 2,3,4,5", "%x, [6, 8], false", 1},
    {"aten::upsample_bicubic2d_backward", "g 2,3,6,8", "%g, [6, 8], [2, 3, 4, 5], false", 1},
    {"aten::upsample_bilinear2d", "x 2,3,4,5", "%x, [6, 8], false", 1},
    {"aten::upsample_bilinear2d_backward", "g 2,3,6,8", "%g, [6, 8], [2, 3, 4, 5], false", 1},
    {"aten::upsample_linear1d", "x 2,3,4", "%x, [6], false", 1},
    {"aten::upsample_linear1d_backward", "g 2,3,6", "%g, [6], [2, 3, 4], false", 1},
    {"aten::upsample_nearest1d", "x 2,3,4", "%x, [6]", 1},
    {"aten::upsample_nearest1d_backward", "g 2,3,6", "%g, [6], [2, 3, 4]", 1},
    {"aten::upsample_nearest2d", "x 2,3,4,5", "%x, [6, 8]", 1},
    {"aten::upsample_nearest2d_backward", "g 2,3,6,8", "%g, [6, 8], [2, 3, 4, 5]", 1},
    {"aten::upsample_nearest3d", "x 2,3,4,5,2", "%x, [6, 8, 2]", 1},
    {"aten::upsample_nearest3d_backward", "g 2,3,6,8,2", "%g, [6, 8, 2], [2, 3, 4, 5, 2]", 1},
    {"aten::upsample_trilinear3d", "x 2,3,4,5,2", "%x, [6, 8, 2], false", 1},
    {"aten::upsample_trilinear3d_backward", "g 2,3,6,8,2", "%g, [6, 8, 2], [2, 3, 4, 5, 2], false",
     1},
    {"djinn::kv_append", "b 1,2,8,4;n 1,2,3,4", "%b, %n, 0", 1},
});
static_assert(std::ranges::is_sorted(kCalls, {}, &Fitting::op));

// Gives what follows the letter as the text of a graph has it: "int64[2,3]" for "x 2,3:int64".
std::string type_of(std::string_view input) {
  const size_t colon = input.find(':');
  const std::string_view dtype =
      colon == std::string_view::npos ? "float32" : input.substr(colon + 1);
  return fmt::format("{}[{}]", dtype, input.substr(2, colon - 2));
}

// Each mention of a letter becomes an input of its own, because arguments of one shape may differ
// all the same.
std::string text_of(const Fitting& call) {
  std::map<char, std::string> types;
  for (std::string_view left = call.inputs; !left.empty();) {
    const size_t end = std::min(left.find(';'), left.size());
    types[left[0]] = type_of(left.substr(0, end));
    left.remove_prefix(std::min(end + 1, left.size()));
  }
  std::string inputs, arguments;
  for (size_t i = 0, mentions = 0; i < call.arguments.size(); ++i) {
    arguments += call.arguments[i];
    if (call.arguments[i] != '%') continue;
    const std::string name = fmt::format("{}{}", call.arguments[++i], mentions++);
    arguments += name;
    inputs += fmt::format("input %{0} \"{0}\" : {1}\n", name, types.at(name[0]));
  }
  std::string results;
  for (size_t i = 0; i < call.results; ++i) results += fmt::format("{}%r{}", i > 0 ? ", " : "", i);
  return fmt::format("srg 1 \"\"\n{}{} = {}({})\noutput {}\n", inputs, results, call.op, arguments,
                     results);
}

}  // namespace

std::optional<srg::Graph> fitting_call(std::string_view op) {
  const auto found = std::ranges::lower_bound(kCalls, op, {}, &Fitting::op);
  if (found == kCalls.end() || found->op != op) return std::nullopt;
  auto graph = srg::parse_text(text_of(*found));
  DJINN_ASSERT(graph);
  return *std::move(graph);
}

}  // namespace djinn::exec
