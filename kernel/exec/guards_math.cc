// SPDX-License-Identifier: Apache-2.0

// These are the guards of integers, transforms, products and distances.
#include <ATen/ExpandUtils.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <limits>

#include "kernel/base/checked.h"
#include "kernel/exec/guard_checks.h"
#include "kernel/exec/guards.h"

namespace djinn::exec {
namespace {

void cdist_backward(const Stack& stack) {
  const at::Tensor& a = stack[1].toTensor();
  const at::Tensor& b = stack[2].toTensor();
  TORCH_CHECK_VALUE(a.dim() >= 2 && b.dim() >= 2, "cdist takes two dimensions or more");
  TORCH_CHECK_VALUE(a.size(-1) == b.size(-1), "points of ", a.size(-1), " and of ", b.size(-1),
                    " coordinates");
  at::DimVector sizes = at::infer_size_dimvector(a.sizes().slice(0, a.sizes().size() - 2),
                                                 b.sizes().slice(0, b.sizes().size() - 2));
  sizes.push_back(a.size(-2));
  sizes.push_back(b.size(-2));
  TORCH_CHECK_VALUE(stack[0].toTensor().sizes() == sizes && stack[4].toTensor().sizes() == sizes,
                    "gradient and distances must be ", at::IntArrayRef(sizes));
}

void unfold_backward(const Stack& stack) {
  at::DimVector sizes = stack[1].toDimVector();
  const int64_t dim = stack[2].toInt();
  const int64_t size = stack[3].toInt();
  const int64_t step = stack[4].toInt();
  const auto rank = static_cast<int64_t>(sizes.size());
  TORCH_CHECK_INDEX(dim >= -rank && dim < rank, "dimension ", dim, " is out of range");
  int64_t& length = sizes[static_cast<size_t>(dim < 0 ? dim + rank : dim)];
  TORCH_CHECK_VALUE(size >= 1 && step >= 1 && size <= length, "windows of ", size, " each ", step,
                    " do not fit ", length);
  length = (length - size) / step + 1;
  sizes.push_back(size);
  TORCH_CHECK_VALUE(stack[0].toTensor().sizes() == sizes, "the gradient must be ",
                    at::IntArrayRef(sizes));
}

// Dimensions must be the input's, named once each and counted from 0. ATen has three ways to
// normalise.
void fft(const Stack& stack) {
  const int64_t normalization = stack[2].toInt();
  TORCH_CHECK_VALUE(normalization >= 0 && normalization <= 2, "normalization must be 0, 1 or 2");
  const auto dims = stack[1].toDimVector();
  uint64_t seen = 0;
  for (const int64_t dim : dims) {
    TORCH_CHECK_INDEX(dim >= 0 && dim < std::min<int64_t>(stack[0].toTensor().dim(), 64) &&
                          (seen >> dim & 1) == 0,
                      "dimension ", dim, " is out of range or named twice");
    seen |= uint64_t{1} << dim;
  }
}

void fft_r2c(const Stack& stack) {
  fft(stack);
  TORCH_CHECK_VALUE(!stack[1].toDimVector().empty(), "a transform of reals needs a dimension");
}

void fft_c2r(const Stack& stack) {
  fft_r2c(stack);
  const int64_t size = stack[3].toInt();
  TORCH_CHECK_VALUE(
      size >= 1 && stack[0].toTensor().size(stack[1].toDimVector().back()) == size / 2 + 1,
      "a real signal of ", size, " has another number of frequencies");
}

// Rows that belong to no group would stay uninitialised.
void grouped_mm(const Stack& stack) {
  const at::Tensor& self = stack[0].toTensor();
  const at::Tensor& other = stack[1].toTensor();
  if (given(stack, 2) == nullptr) return;
  const at::Tensor& ends = *given(stack, 2);
  TORCH_CHECK_VALUE(self.dim() >= 2 && other.dim() >= 2 && ends.dim() == 1 && ends.numel() > 0 &&
                        ends.scalar_type() == at::kInt,
                    "grouped_mm takes matrices and the ends of groups as int32");
  const int64_t grouped = self.dim() == 3    ? other.size(-1)
                          : other.dim() == 3 ? self.size(0)
                                             : self.size(1);
  if (!ends.is_cpu()) return;
  const at::Tensor dense = ends.contiguous();
  const auto* const data = dense.const_data_ptr<int32_t>();
  const bool ascend = data[0] >= 0 && std::is_sorted(data, data + dense.numel());
  TORCH_CHECK_INDEX(ascend && data[dense.numel() - 1] == grouped, "the groups must ascend to ",
                    grouped);
}

template <typename T>
bool holds(const at::Tensor& tensor, T number) {
  const at::Tensor dense = tensor.contiguous();
  const T* const data = dense.const_data_ptr<T>();
  return std::find(data, data + dense.numel(), number) != data + dense.numel();
}

// Tells whether one of the numbers has no absolute value in its type. Smaller types compute in int.
bool holds_least(const at::Tensor& numbers) {
  if (numbers.scalar_type() == at::kInt) return holds(numbers, std::numeric_limits<int32_t>::min());
  if (numbers.scalar_type() == at::kLong)
    return holds(numbers, std::numeric_limits<int64_t>::min());
  return false;
}

// The numbers are looked at in the type that lcm computes in.
void lcm(const Stack& stack) {
  const at::ScalarType type = at::result_type(stack[0].toTensor(), stack[1].toTensor());
  for (const size_t i : {0, 1}) {
    const at::Tensor& numbers = stack[i].toTensor();
    TORCH_CHECK_VALUE(!numbers.is_cpu() || !holds_least(numbers.to(type)), "argument ", i,
                      " holds the least number of its type, whose multiples trap");
  }
}

// Dividing the least number of a type by -1 traps where the quotient is cut to an integer.
void require_quotients(const at::Tensor& dividend, const at::Tensor& divisor,
                       const c10::IValue& rounding) {
  if (!dividend.is_cpu() || !divisor.is_cpu()) return;
  if (!rounding.isString() || rounding.toStringRef() != "trunc") return;
  const at::ScalarType type = at::result_type(dividend, divisor);
  if (type != at::kInt && type != at::kLong) return;
  const at::Tensor by = divisor.to(type);
  const bool traps = holds_least(dividend.to(type)) &&
                     (type == at::kInt ? holds<int32_t>(by, -1) : holds<int64_t>(by, -1));
  TORCH_CHECK_VALUE(!traps, "the least number of ", type, " divided by -1 is none of that type");
}

void divide(const Stack& stack) {
  require_quotients(stack[0].toTensor(), stack[1].toTensor(), stack[2]);
}

void divide_by_scalar(const Stack& stack) {
  require_quotients(stack[0].toTensor(), at::scalar_tensor(stack[1].toScalar()), stack[2]);
}

// With other sizes the tensor that is written in place would grow, over what lies behind it.
void addbmm_in_place(const Stack& stack) {
  const at::Tensor& a = stack[1].toTensor();
  const at::Tensor& b = stack[2].toTensor();
  if (a.dim() == 3 && b.dim() == 3) require_sizes(stack, 0, {a.size(1), b.size(2)});
}

// Kernels walk an expanded dimension as if each index had an element of its own.
void median(const Stack& stack) {
  const at::Tensor& self = stack[0].toTensor();
  const int64_t rank = self.dim();
  const int64_t dim = stack[1].toInt();
  if (dim < -rank || dim >= rank) return;  // kernels refuse it
  TORCH_CHECK_VALUE(self.size(dim) <= 1 || self.stride(dim) != 0, "dimension ", dim,
                    " is expanded; clone the tensor first");
}

void pdist(const Stack& stack) {
  TORCH_CHECK_VALUE(stack[0].toTensor().dim() == 2, "distances are those of a matrix's rows");
}

// The kernel writes an element's repeats before it looks at the next one's, so where sums wrap or
// fall again it has written too many by then.
void repeat_interleave(const Stack& stack) {
  const at::Tensor& repeats = stack[0].toTensor();
  if (!repeats.is_cpu() || !c10::isIntegralType(repeats.scalar_type(), false)) return;
  const at::Tensor dense = repeats.to(at::kLong).contiguous();
  const auto* const data = dense.const_data_ptr<int64_t>();
  int64_t total = 0;
  for (int64_t i = 0; i < dense.numel(); ++i) {
    const auto sum = checked_add(total, data[i]);
    TORCH_CHECK_VALUE(data[i] >= 0 && sum, "repeats must not be negative, and their sum an int64");
    total = *sum;
  }
}

// For int64 the kernel counts the elements by a division of integers, which may trap.
void arange(const Stack& stack) {
  const at::Scalar start = stack[0].toScalar(), end = stack[1].toScalar();
  const at::Scalar step = stack[2].toScalar();
  const bool is_integral = start.isIntegral(true) && end.isIntegral(true) && step.isIntegral(true);
  const auto type = stack[3].toOptional<at::ScalarType>();
  if (type ? *type != at::kLong : !is_integral) return;
  TORCH_CHECK_VALUE(step.toLong() != 0, "a step of ", step, " is 0 as an int64");
  int64_t length = 0;
  const bool wraps = __builtin_sub_overflow(end.toLong(), start.toLong(), &length);
  TORCH_CHECK_VALUE(!wraps && length != INT64_MIN, "a range from ", start, " to ", end,
                    " has more elements than an int64 counts");
}

// Where a dimension is given, the parts along it are compared as tensors.
template <size_t kDim>
void unique_parts(const Stack& stack) {
  if (!stack[kDim].isNone()) require_views(stack[0].toTensor(), stack[kDim].toInt());
}

constexpr auto kMathGuards = std::to_array<GuardRow>({
    {"aten::_cdist_backward", cdist_backward},
    {"aten::_fft_c2c", fft},
    {"aten::_fft_c2r", fft_c2r},
    {"aten::_fft_r2c", fft_r2c},
    {"aten::_grouped_mm", grouped_mm},
    {"aten::_pdist_forward", pdist},
    {"aten::addbmm_", addbmm_in_place},
    {"aten::arange.start_step", arange},
    {"aten::div.Scalar_mode", divide_by_scalar},
    {"aten::div.Tensor_mode", divide},
    {"aten::div_.Scalar_mode", divide_by_scalar},
    {"aten::div_.Tensor_mode", divide},
    {"aten::lcm", lcm},
    {"aten::lcm_", lcm},
    {"aten::median.dim", median},
    {"aten::nanmedian.dim", median},
    {"aten::repeat_interleave.Tensor", repeat_interleave},
    {"aten::unfold_backward", unfold_backward},
    {"aten::unique_consecutive", unique_parts<3>},
    {"aten::unique_dim", unique_parts<1>},
    {"aten::unique_dim_consecutive", unique_parts<1>},
});

}  // namespace

std::span<const GuardRow> math_guards() {
  return kMathGuards;
}

}  // namespace djinn::exec
