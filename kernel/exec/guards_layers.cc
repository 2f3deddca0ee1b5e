// SPDX-License-Identifier: Apache-2.0

// These are the guards of convolving, normalising, pooling, padding and sampling.
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/isfinite.h>

#include <algorithm>

#include "kernel/base/checked.h"
#include "kernel/exec/guard_checks.h"
#include "kernel/exec/guards.h"

namespace djinn::exec {
namespace {

// Arguments that are tensors at all must have one element for each channel of the input.
void require_channels(const Stack& stack, size_t first, size_t last) {
  const at::Tensor& input = stack[0].toTensor();
  TORCH_CHECK_VALUE(input.dim() >= 2 && input.size(1) > 0, "the input has no channels");
  for (size_t i = first; i <= last; ++i) {
    const at::Tensor* const argument = given(stack, i);
    TORCH_CHECK_VALUE(argument == nullptr || argument->numel() == input.size(1), "argument ", i,
                      " must have ", input.size(1), " elements, one a channel");
  }
}

// Outside of training there is nothing else to normalise with.
template <size_t kTraining>
void require_statistics(const Stack& stack) {
  const bool given_both = given(stack, 3) != nullptr && given(stack, 4) != nullptr;
  TORCH_CHECK_VALUE(stack[kTraining].toBool() || given_both, "the running statistics are missing");
}

// In training these change the running statistics, and their schemas do not say so.
void require_no_unsaid_change(const Stack& stack) {
  const bool changes =
      stack[5].toBool() && (given(stack, 3) != nullptr || given(stack, 4) != nullptr);
  TORCH_CHECK_VALUE(!changes,
                    "It would change the running statistics unsaid. Use "
                    "aten::_native_batch_norm_legit_functional.");
}

void batch_norm(const Stack& stack) {
  require_no_unsaid_change(stack);
  require_statistics<5>(stack);
  require_channels(stack, 1, 4);
}

void batch_norm_legit(const Stack& stack) {
  require_statistics<5>(stack);
  require_channels(stack, 1, 4);
}

// This operator has no statistics to take in the place of the batch's.
void batch_norm_no_stats(const Stack& stack) {
  TORCH_CHECK_VALUE(stack[3].toBool(), "the running statistics are missing");
  require_channels(stack, 1, 2);
}

void batch_norm_no_update(const Stack& stack) {
  TORCH_CHECK_VALUE(given(stack, 3) != nullptr && given(stack, 4) != nullptr,
                    "the running statistics are missing");
  require_channels(stack, 1, 4);
}

template <size_t kLast>
void channels(const Stack& stack) {
  require_channels(stack, 1, kLast);
}

void native_batch_norm_backward(const Stack& stack) {
  require_same_sizes(stack, 0, 1);
  const bool training = stack[7].toBool();
  require_channels(stack, 2, training ? 6 : 4);  // what evaluation saves has no elements
  const size_t statistics = training ? 5 : 3;
  TORCH_CHECK_VALUE(given(stack, statistics) != nullptr && given(stack, statistics + 1) != nullptr,
                    "the statistics are missing");
  // If channels come last, also because each has one element only, the kernel copies statistics
  // with strides and reads the copies after they are freed.
  const at::Tensor& input = stack[1].toTensor();
  const bool channels_last = !stack[0].toTensor().is_contiguous() || !input.is_contiguous() ||
                             input.numel() == input.size(0) * input.size(1);
  for (size_t i = 2; i <= 6; ++i) {
    if (channels_last && given(stack, i) != nullptr) require_contiguous(stack, i);
  }
}

void native_layer_norm_backward(const Stack& stack) {
  require_same_sizes(stack, 0, 1);
  const at::Tensor& input = stack[1].toTensor();
  const auto inner = static_cast<int64_t>(stack[2].toDimVector().size());
  TORCH_CHECK_VALUE(inner <= input.dim(), "normalized_shape has too many dimensions");
  int64_t rows = 1;
  for (int64_t i = 0; i < input.dim() - inner; ++i) rows *= input.size(i);
  for (const size_t i : {3, 4}) {
    TORCH_CHECK_VALUE(stack[i].toTensor().numel() == rows, "argument ", i, " must have ", rows,
                      " elements, one a row");
  }
  for (const size_t i : {3, 4}) require_contiguous(stack, i);
}

// Dividing the least integer by -1 traps, and sums may wrap to it.
template <size_t kDivisor>
void average(const Stack& stack) {
  const bool is_integral = c10::isIntegralType(stack[0].toTensor().scalar_type(), true);
  TORCH_CHECK_VALUE(!is_integral || stack[kDivisor].isNone() || stack[kDivisor].toInt() != -1,
                    "a sum of integers is not divided by -1: the least one has no quotient");
}

// Gradient and input of a pooling over the last dimensions must agree in the others.
template <int64_t kDimensions>
void pool_backward(const Stack& stack) {
  const at::Tensor& gradient = stack[0].toTensor();
  const at::Tensor& input = stack[1].toTensor();
  const int64_t outer = input.dim() - kDimensions;
  TORCH_CHECK_VALUE(outer >= 1 && gradient.dim() == input.dim() &&
                        gradient.sizes().slice(0, static_cast<size_t>(outer)) ==
                            input.sizes().slice(0, static_cast<size_t>(outer)),
                    "gradient and input differ in batch or channels");
  TORCH_CHECK_VALUE(input.numel() > 0 || gradient.numel() == 0, "a gradient of nothing");
}

template <int64_t kDimensions, size_t kIndices>
void max_pool_backward(const Stack& stack) {
  pool_backward<kDimensions>(stack);
  require_same_sizes(stack, 0, kIndices);
  int64_t elements = 1;
  for (int64_t i = 1; i <= kDimensions; ++i) elements *= stack[1].toTensor().size(-i);
  require_indices(stack[kIndices].toTensor(), elements);
}

// The kernel reads the indices as if they were contiguous.
void adaptive_max_pool3d_backward(const Stack& stack) {
  max_pool_backward<3, 2>(stack);
  require_contiguous(stack, 2);
}

// The input must have a batch, or channels at least, before the padded dimensions. Sizes that wrap
// around would make a result of few elements, which are read from far away.
template <int64_t kDimensions, size_t kInput>
void pad(const Stack& stack) {
  const auto padding = stack[kInput + 1].toDimVector();
  TORCH_CHECK_VALUE(padding.size() == 2 * kDimensions, "padding has two numbers for each of ",
                    kDimensions, " dimensions");
  const at::Tensor& input = stack[kInput].toTensor();
  TORCH_CHECK_VALUE(input.dim() > kDimensions, "the input has no channels");
  for (int64_t i = 0; i < kDimensions; ++i) {
    const auto at = static_cast<size_t>(2 * i);
    const auto begun = checked_add(input.size(-1 - i), padding[at]);
    TORCH_CHECK_VALUE(begun && checked_add(*begun, padding[at + 1]), "a padding of ", padding[at],
                      " and ", padding[at + 1], " is too large");
  }
}

// The kernel repeats what the padding keeps of the input, once on both sides; beyond that it writes
// nothing.
void pad_circular(const Stack& stack) {
  const at::Tensor& input = stack[0].toTensor();
  const auto padding = stack[1].toDimVector();
  TORCH_CHECK_VALUE(padding.size() % 2 == 0 && padding.size() / 2 <= input.sizes().size(),
                    "padding has two numbers for each padded dimension");
  for (size_t at = 0; at < padding.size(); at += 2) {
    const int64_t size = input.size(-1 - static_cast<int64_t>(at / 2));
    const int64_t left = padding[at], right = padding[at + 1];
    TORCH_CHECK_VALUE(std::min(left, right) >= -size, "less than nothing is left of the input");
    const int64_t kept = size + std::min<int64_t>(left, 0) + std::min<int64_t>(right, 0);
    TORCH_CHECK_VALUE(std::max(left, right) <= kept, "a padding of ", left, " and ", right,
                      " is longer than what it repeats, of ", kept);
  }
}

// The gradient of a padding must have the input's sizes and what was added on both sides.
template <int64_t kDimensions>
void pad_backward(const Stack& stack) {
  pad<kDimensions, 1>(stack);
  pool_backward<kDimensions>(stack);
  const at::Tensor& gradient = stack[0].toTensor();
  const at::Tensor& input = stack[1].toTensor();
  const auto padding = stack[2].toDimVector();
  for (int64_t i = 1; i <= kDimensions; ++i) {
    const auto at = static_cast<size_t>(2 * (i - 1));
    TORCH_CHECK_VALUE(gradient.size(-i) == input.size(-i) + padding[at] + padding[at + 1],
                      "the gradient's sizes are not those of the padded input");
  }
}

// The reflected elements must lie inside of the input.
template <int64_t kDimensions>
void reflection_pad_backward(const Stack& stack) {
  pad_backward<kDimensions>(stack);
  const at::Tensor& input = stack[1].toTensor();
  const auto padding = stack[2].toDimVector();
  for (int64_t i = 0; i < 2 * kDimensions; ++i) {
    TORCH_CHECK_VALUE(padding[static_cast<size_t>(i)] < input.size(-1 - i / 2), "a reflection of ",
                      padding[static_cast<size_t>(i)], " is longer than the input");
  }
}

// Windows must begin inside of the input, so a scale that is given must be that of the sizes.
// Kernels compute one that is not above zero from the sizes.
void require_scale(const c10::IValue& scale, int64_t input, int64_t output) {
  if (scale.isNone() || !(scale.toDouble() > 0)) return;
  const double reached = static_cast<double>(input) * scale.toDouble();
  TORCH_CHECK_VALUE(static_cast<double>(output) - 0.5 <= reached, "a scale of ", scale.toDouble(),
                    " does not make ", output, " of ", input);
}

void upsample_antialiased(const Stack& stack) {
  const at::Tensor& input = stack[0].toTensor();
  const auto output = stack[1].toDimVector();
  if (input.dim() != 4 || output.size() != 2) return;  // kernels refuse it
  require_scale(stack[3], input.size(2), output[0]);
  require_scale(stack[4], input.size(3), output[1]);
}

void upsample_antialiased_backward(const Stack& stack) {
  const auto output = stack[1].toDimVector();
  const auto input = stack[2].toDimVector();
  if (input.size() != 4 || output.size() != 2) return;  // likewise
  require_scale(stack[4], input[2], output[0]);
  require_scale(stack[5], input[3], output[1]);
}

// Source positions must fit the type that kernels count in. Scales come last; a kernel computes one
// that is not above zero from the sizes.
void upsample(const Stack& stack) {
  const auto output = stack[1].toDimVector();
  if (output.size() + 2 > stack.size()) return;  // kernels refuse it
  for (size_t i = 0; i < output.size(); ++i) {
    const c10::IValue& scale = stack[stack.size() - output.size() + i];
    if (!scale.isDouble() || !(scale.toDouble() > 0)) continue;
    TORCH_CHECK_VALUE(static_cast<double>(output[i]) / scale.toDouble() < INT32_MAX, "a scale of ",
                      scale.toDouble(), " is too small");
  }
}

// Kernels multiply the numbers of these lists unchecked.
template <size_t kLast>
void windows(const Stack& stack) {
  for (size_t i = 1; i <= kLast; ++i) {
    for (const int64_t item : stack[i].toDimVector()) {
      TORCH_CHECK_VALUE(item >= 0 && item <= INT32_MAX, "argument ", i, " is out of range");
    }
  }
}

// Kernels write nothing for a way to interpolate or to pad that they do not know.
template <int64_t kInterpolations, size_t kFirst>
void grid_sampler(const Stack& stack) {
  const int64_t interpolation = stack[kFirst].toInt();
  const int64_t padding = stack[kFirst + 1].toInt();
  TORCH_CHECK_VALUE(interpolation >= 0 && interpolation < kInterpolations,
                    "interpolation_mode must be in [0, ", kInterpolations, ")");
  TORCH_CHECK_VALUE(padding >= 0 && padding <= 2, "padding_mode must be 0, 1 or 2");
}

// Tells whether the last index of a dimension becomes no larger when it is converted to that type.
bool is_position(int64_t size, at::ScalarType type) {
  const double last = static_cast<double>(size) - 1;
  switch (type) {
    case at::kHalf:
      return static_cast<double>(static_cast<float>(c10::Half(static_cast<float>(last)))) <= last;
    case at::kBFloat16:
      return static_cast<double>(static_cast<float>(c10::BFloat16(static_cast<float>(last)))) <=
             last;
    default:
      return type != at::kFloat || static_cast<double>(static_cast<float>(last)) <= last;
  }
}

// The kernel computes positions in the input's type, and offsets in integers of its width.
void require_positions(const at::Tensor& input, const at::Tensor& grid) {
  constexpr int64_t kLanesMax = 32;                 // of half precision in a register of 64 bytes
  if (input.dim() != 4 || grid.dim() != 4) return;  // refused by the kernel
  const int64_t height = input.size(2), width = input.size(3);
  const bool is_half = input.element_size() == 2;
  const int64_t reach = is_half ? INT16_MAX : INT32_MAX;
  const auto steps = [&](int64_t down, int64_t across) {
    const auto rows = checked_mul<uint64_t>(std::max<int64_t>(height - 1, 0), down);
    const auto columns = checked_mul<uint64_t>(std::max<int64_t>(width - 1, 0), across);
    const auto both = rows && columns ? checked_add<uint64_t>(*rows, *columns) : std::nullopt;
    return both && *both <= static_cast<uint64_t>(reach);
  };
  const bool fits = height <= reach && width <= reach && is_position(height, input.scalar_type()) &&
                    is_position(width, input.scalar_type()) &&
                    steps(input.stride(2), input.stride(3)) && steps(width, 1) &&
                    grid.stride(2) <= reach / kLanesMax;
  TORCH_CHECK_VALUE(fits, "an input of ", input.sizes(), " is too large for PyTorch's kernel in ",
                    input.scalar_type(), is_half ? "; convert it and the grid to float32" : "");
}

void grid_sampler_2d(const Stack& stack) {
  grid_sampler<3, 2>(stack);
  require_positions(stack[0].toTensor(), stack[1].toTensor());
}

// The gradient must be [batch, channels, the grid's space].
template <int64_t kInterpolations>
void grid_sampler_backward(const Stack& stack) {
  grid_sampler<kInterpolations, 3>(stack);
  const at::Tensor& gradient = stack[0].toTensor();
  const at::Tensor& input = stack[1].toTensor();
  const at::Tensor& grid = stack[2].toTensor();
  bool fits = input.dim() >= 4 && grid.dim() == input.dim() && gradient.dim() == input.dim() &&
              gradient.size(0) == grid.size(0) && gradient.size(1) == input.size(1);
  for (int64_t i = 2; fits && i < input.dim(); ++i) fits = gradient.size(i) == grid.size(i - 1);
  TORCH_CHECK_VALUE(fits, "the gradient's sizes are not those of the sampled grid");
}

// oneDNN multiplies strides with sizes in 32 bits, unchecked.
constexpr int64_t kStrideMax = 1 << 14;

// Gives one number for each dimension of space; a single one counts for all.
std::vector<int64_t> numbers_of_space(const c10::IValue& list, size_t space, int64_t least,
                                      int64_t most) {
  std::vector<int64_t> numbers = list.toIntVector();
  if (numbers.size() == 1) numbers.resize(space, numbers[0]);
  TORCH_CHECK_VALUE(numbers.size() == space,
                    "stride, padding and dilation have a number for each "
                    "dimension of space");
  for (const int64_t number : numbers) {
    TORCH_CHECK_VALUE(number >= least && number <= most, "a stride, padding or dilation of ",
                      number, " is not in [", least, ", ", most, "]");
  }
  return numbers;
}

bool is_of_onednn(at::ScalarType type) {
  return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
}

// oneDNN reads beyond an input where whole windows lie in the padding: for reduced types always,
// for float32 where there is more padding than a window is long.
void require_windows_on_input(const at::Tensor& input, const at::Tensor& weight,
                              const std::vector<int64_t>& padding,
                              const std::vector<int64_t>& dilation) {
  if (!is_of_onednn(input.scalar_type())) return;
  const int64_t beyond = input.scalar_type() == at::kFloat ? 1 : 0;
  for (size_t i = 0; i < padding.size(); ++i) {
    const auto last = checked_mul(weight.size(static_cast<int64_t>(i) + 2) - 1, dilation[i]);
    TORCH_CHECK_VALUE(last && padding[i] <= *last + beyond, "a padding of ", padding[i],
                      " holds whole windows; pad the input with aten::constant_pad_nd");
  }
}

// If the only channel's strides put it last, and windows that do not touch leave one element a
// line, oneDNN reads memory that nobody wrote.
void require_plain_channel(const at::Tensor& input, const at::Tensor& weight, int64_t stride,
                           int64_t made) {
  const auto is_last = [](const at::Tensor& tensor) {
    return tensor.suggest_memory_format() != at::MemoryFormat::Contiguous;
  };
  const bool is_read = is_of_onednn(input.scalar_type()) && input.size(1) == 1 && stride > 1 &&
                       made == 1 && (is_last(input) || is_last(weight));
  TORCH_CHECK_VALUE(!is_read,
                    "one channel must not be the last by its strides where one element a line is "
                    "made; clone input and weight in contiguous_format");
}

// Where the processor multiplies matrices itself (AMX), oneDNN's three-dimensional convolution of
// reduced types reads memory that nobody wrote if one window fits a line and the stride is longer.
void require_stride_in_window(const at::Tensor& input, const at::Tensor& weight, int64_t stride,
                              int64_t made) {
  const at::ScalarType type = input.scalar_type();
  const bool is_read = (type == at::kBFloat16 || type == at::kHalf) && input.dim() == 5 &&
                       stride > weight.size(-1) && made == 1;
  TORCH_CHECK_VALUE(!is_read, "a stride of ", stride,
                    " where one element a line is made, by a "
                    "window of ",
                    weight.size(-1), "; a stride of 1 gives the same");
}

void convolution(const Stack& stack) {
  const at::Tensor& input = stack[0].toTensor();
  const at::Tensor& weight = stack[1].toTensor();
  if (input.dim() < 3 || weight.dim() != input.dim()) return;  // kernels refuse it
  const auto space = static_cast<size_t>(input.dim() - 2);
  const auto stride = numbers_of_space(stack[3], space, 1, kStrideMax);
  const auto padding = numbers_of_space(stack[4], space, 0, INT32_MAX);
  const auto dilation = numbers_of_space(stack[5], space, 1, kStrideMax);
  if (stack[6].toBool()) return;
  require_windows_on_input(input, weight, padding, dilation);
  const auto sizes =
      at::native::conv_output_size(input.sizes(), weight.sizes(), padding, stride, dilation);
  require_plain_channel(input, weight, stride.back(), sizes.back());
  require_stride_in_window(input, weight, stride.back(), sizes.back());
}

// The gradient must have the sizes of what was convolved: kernels take the input's batch for its
// own.
void convolution_backward(const Stack& stack) {
  const at::Tensor& gradient = stack[0].toTensor();
  const at::Tensor& input = stack[1].toTensor();
  const at::Tensor& weight = stack[2].toTensor();
  TORCH_CHECK_VALUE(input.dim() >= 3 && weight.dim() == input.dim(),
                    "input and weight must have a batch, channels and the same space");
  const auto space = static_cast<size_t>(input.dim() - 2);
  const auto stride = numbers_of_space(stack[4], space, 1, kStrideMax);
  const auto padding = numbers_of_space(stack[5], space, 0, INT32_MAX);
  const auto dilation = numbers_of_space(stack[6], space, 1, kStrideMax);
  const auto beyond = numbers_of_space(stack[8], space, 0, kStrideMax);
  if (!stack[7].toBool()) require_windows_on_input(input, weight, padding, dilation);
  const int64_t groups = stack[9].toInt();
  TORCH_CHECK_VALUE(groups >= 1 && groups <= INT32_MAX, "groups must be at least 1");
  const auto sizes =
      stack[7].toBool()
          ? at::native::conv_input_size(input.sizes(), weight.sizes(), padding, beyond, stride,
                                        dilation, groups)
          : at::native::conv_output_size(input.sizes(), weight.sizes(), padding, stride, dilation);
  TORCH_CHECK_VALUE(gradient.sizes() == at::IntArrayRef(sizes), "the gradient must be ",
                    at::IntArrayRef(sizes));
}

// A position outside of the input is replaced by one of the border or of its reflection. Numbers
// that are not finite, or overflow once they are scaled to the input's size, lead to no element.
void grid_sampler_2d_backward(const Stack& stack) {
  grid_sampler_backward<3>(stack);
  const at::Tensor& input = stack[1].toTensor();
  const at::Tensor& grid = stack[2].toTensor();
  require_positions(input, grid);
  if (stack[4].toInt() == 0 || !grid.is_cpu()) return;
  const double reached = 4.0 * static_cast<double>(std::max(input.size(2), input.size(3)));
  TORCH_CHECK_VALUE(at::isfinite(grid.mul(reached)).all().item<bool>(),
                    "the grid is not finite, or leads too far from the input");
}

// v must have elements, and each of the others one number for each index of v's dimension `dim`,
// which must be the first or the last.
void require_weight_norm(const at::Tensor& v, int64_t dim, at::ArrayRef<at::Tensor> others) {
  TORCH_CHECK_VALUE(v.dim() >= 1 && v.numel() > 0 && (dim == 0 || dim == v.dim() - 1),
                    "weights are normalised along their first or last dimension");
  for (const at::Tensor& other : others) {
    TORCH_CHECK_VALUE(other.numel() == v.size(dim), "norms must have ", v.size(dim), " elements");
  }
}

void weight_norm(const Stack& stack) {
  require_weight_norm(stack[0].toTensor(), stack[2].toInt(), {stack[1].toTensor()});
  require_contiguous(stack, 0);
  require_contiguous(stack, 1);
}

void weight_norm_backward(const Stack& stack) {
  require_same_sizes(stack, 0, 1);
  require_weight_norm(stack[1].toTensor(), stack[4].toInt(),
                      {stack[2].toTensor(), stack[3].toTensor()});
  for (const size_t i : {0, 1, 2, 3}) require_contiguous(stack, i);
}

// The arguments from `said` on must be the input's true sizes: the kernels compute with them.
void require_groups(const Stack& stack, const at::Tensor& input, size_t said) {
  TORCH_CHECK_VALUE(input.dim() >= 2, "the input must have a batch and channels");
  int64_t each = 1;
  for (const int64_t size : input.sizes().slice(2)) each *= size;
  const int64_t channels = input.size(1), groups = stack[said + 3].toInt();
  TORCH_CHECK_VALUE(stack[said].toInt() == input.size(0) && stack[said + 1].toInt() == channels &&
                        stack[said + 2].toInt() == each,
                    "N, C and HxW are not those of the input");
  TORCH_CHECK_VALUE(groups >= 1 && channels % groups == 0, "the channels do not divide into ",
                    groups, " groups");
}

// The kernel reads weight and bias as if they were contiguous.
void native_group_norm(const Stack& stack) {
  require_groups(stack, stack[0].toTensor(), 3);
  for (const size_t i : {1, 2}) {
    if (given(stack, i) != nullptr) require_contiguous(stack, i);
  }
}

// Gradient and input must lie alike, and without gaps.
void native_group_norm_backward(const Stack& stack) {
  require_same_sizes(stack, 0, 1);
  require_groups(stack, stack[1].toTensor(), 5);
  const at::MemoryFormat format = stack[1].toTensor().suggest_memory_format();
  TORCH_CHECK_VALUE(
      stack[0].toTensor().is_contiguous(format) && stack[1].toTensor().is_contiguous(format),
      "gradient and input must be contiguous, in one memory format");
  for (const size_t i : {2, 3, 4}) {
    if (given(stack, i) != nullptr) require_contiguous(stack, i);
  }
}

void channel_shuffle(const Stack& stack) {
  const at::Tensor& input = stack[0].toTensor();
  const int64_t groups = stack[1].toInt();
  TORCH_CHECK_VALUE(input.dim() > 2 && groups >= 1 && input.size(1) % groups == 0,
                    "the channels do not divide into ", groups, " groups");
}

// Counting how often each index occurs writes at the index unchecked.
void embedding_dense_backward(const Stack& stack) {
  if (stack[4].toBool()) require_indices(stack[1].toTensor(), stack[2].toInt());
}

constexpr auto kLayerGuards = std::to_array<GuardRow>({
    {"aten::_adaptive_avg_pool2d_backward", pool_backward<2>},
    {"aten::_adaptive_avg_pool3d_backward", pool_backward<3>},
    {"aten::_batch_norm_no_update", batch_norm_no_update},
    {"aten::_batch_norm_with_update", channels<4>},
    {"aten::_batch_norm_with_update_functional", channels<4>},
    {"aten::_convolution", convolution},
    {"aten::_log_softmax_backward_data", same_sizes<0, 1>},
    {"aten::_native_batch_norm_legit", batch_norm_legit},
    {"aten::_native_batch_norm_legit.no_stats", batch_norm_no_stats},
    {"aten::_native_batch_norm_legit_functional", batch_norm_legit},
    {"aten::_native_batch_norm_legit_no_training", channels<4>},
    {"aten::_pad_circular", pad_circular},
    {"aten::_softmax_backward_data", same_sizes<0, 1>},
    {"aten::_upsample_bicubic2d_aa", upsample_antialiased},
    {"aten::_upsample_bicubic2d_aa_backward", upsample_antialiased_backward},
    {"aten::_upsample_bilinear2d_aa", upsample_antialiased},
    {"aten::_upsample_bilinear2d_aa_backward", upsample_antialiased_backward},
    {"aten::_upsample_nearest_exact1d", upsample},
    {"aten::_upsample_nearest_exact1d_backward", upsample},
    {"aten::_upsample_nearest_exact2d", upsample},
    {"aten::_upsample_nearest_exact2d_backward", upsample},
    {"aten::_upsample_nearest_exact3d", upsample},
    {"aten::_upsample_nearest_exact3d_backward", upsample},
    {"aten::_weight_norm_interface", weight_norm},
    {"aten::_weight_norm_interface_backward", weight_norm_backward},
    {"aten::adaptive_max_pool2d_backward", max_pool_backward<2, 2>},
    {"aten::adaptive_max_pool3d_backward", adaptive_max_pool3d_backward},
    {"aten::avg_pool2d", average<6>},
    {"aten::avg_pool2d_backward", pool_backward<2>},
    {"aten::avg_pool3d", average<6>},
    {"aten::avg_pool3d_backward", pool_backward<3>},
    {"aten::batch_norm", require_no_unsaid_change},
    {"aten::col2im", windows<5>},
    {"aten::convolution_backward", convolution_backward},
    {"aten::embedding_dense_backward", embedding_dense_backward},
    {"aten::gelu_backward", same_sizes<0, 1>},
    {"aten::grid_sampler_2d", grid_sampler_2d},
    {"aten::grid_sampler_2d_backward", grid_sampler_2d_backward},
    {"aten::grid_sampler_3d", grid_sampler<2, 2>},
    {"aten::grid_sampler_3d_backward", grid_sampler_backward<2>},
    {"aten::im2col", windows<4>},
    {"aten::max_pool1d", windows<4>},
    {"aten::max_pool2d_with_indices_backward", max_pool_backward<2, 7>},
    {"aten::max_pool3d_with_indices_backward", max_pool_backward<3, 7>},
    {"aten::native_batch_norm", batch_norm},
    {"aten::native_batch_norm_backward", native_batch_norm_backward},
    {"aten::native_channel_shuffle", channel_shuffle},
    {"aten::native_group_norm", native_group_norm},
    {"aten::native_group_norm_backward", native_group_norm_backward},
    {"aten::native_layer_norm_backward", native_layer_norm_backward},
    {"aten::reflection_pad1d", pad<1, 0>},
    {"aten::reflection_pad1d_backward", reflection_pad_backward<1>},
    {"aten::reflection_pad2d", pad<2, 0>},
    {"aten::reflection_pad2d_backward", reflection_pad_backward<2>},
    {"aten::reflection_pad3d", pad<3, 0>},
    {"aten::reflection_pad3d_backward", reflection_pad_backward<3>},
    {"aten::replication_pad1d", pad<1, 0>},
    {"aten::replication_pad1d_backward", pad_backward<1>},
    {"aten::replication_pad2d", pad<2, 0>},
    {"aten::replication_pad2d_backward", pad_backward<2>},
    {"aten::replication_pad3d", pad<3, 0>},
    {"aten::replication_pad3d_backward", pad_backward<3>},
    {"aten::upsample_bicubic2d", upsample},
    {"aten::upsample_bicubic2d_backward", upsample},
    {"aten::upsample_bilinear2d", upsample},
    {"aten::upsample_bilinear2d_backward", upsample},
    {"aten::upsample_linear1d", upsample},
    {"aten::upsample_linear1d_backward", upsample},
    {"aten::upsample_nearest1d", upsample},
    {"aten::upsample_nearest1d_backward", upsample},
    {"aten::upsample_nearest2d", upsample},
    {"aten::upsample_nearest2d_backward", upsample},
    {"aten::upsample_nearest3d", upsample},
    {"aten::upsample_nearest3d_backward", upsample},
    {"aten::upsample_trilinear3d", upsample},
    {"aten::upsample_trilinear3d_backward", upsample},
});

}  // namespace

std::span<const GuardRow> layers_guards() {
  return kLayerGuards;
}

}  // namespace djinn::exec
