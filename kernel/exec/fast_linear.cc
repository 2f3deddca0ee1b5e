// SPDX-License-Identifier: Apache-2.0

// djinn::linear_rows(Tensor input, Tensor weight, Tensor? bias, bool turned) -> Tensor
//
// An internal operator: what kernel/srg/rewrite makes of a product with a constant matrix. weight
// is [outputs, inputs], or turned [inputs, outputs]. Any number of rows, with a bias of one
// dimension or none, is computed by our own kernels: no library gives a row the same bits beside
// others, and with other threads. All else is what the graph said before, by one thread:
// aten::linear, or, turned, aten::addmm and aten::matmul.
//
// djinn::linears(Tensor input, Tensor[] weights, Tensor?[] biases, bool turned) -> Tensor[]
//
// The same of one input with several weights: their outputs are shared out among the threads as if
// they were one's, which changes no result.
//
// djinn::grouped_rows(Tensor input, Tensor weights, Tensor? ends) -> Tensor
//
// Rows that are sorted by which matrix of [groups, inputs, outputs] each is multiplied with, as
// experts are: rows of a group end where `ends`, int32, says; without it each group has as many,
// [groups, rows, inputs]. A matrix without rows is not read. What does not fit is aten::_grouped_mm
// or aten::bmm, by one thread.
//
// A weight that the model has in int8 (kernel/base/int8_rows.h) is bound as its values, int8, whose
// rows lie apart as far as those of the form do. Any number of rows is computed by our own kernels.
//
// djinn::embedding_rows(Tensor weight, Tensor indices, ScalarType dtype) -> Tensor
//
// Rows of such a weight, widened: aten::embedding.
#include "kernel/exec/fast_linear.h"

#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "kernel/base/assert.h"
#include "kernel/base/int8_rows.h"
#include "kernel/exec/as_before.h"
#include "kernel/exec/fast_rows.h"
#include "kernel/exec/guards.h"
#include "kernel/exec/inner_pulse.h"
#include "kernel/exec/joint_products.h"
#include "kernel/exec/one_thread.h"
#include "kernel/exec/own_operators.h"
#include "kernel/exec/shape_rules.h"
#include "kernel/exec/torch_headers.h"
#include "kernel/srg/rewrite/rewrite.h"

namespace djinn::exec {
namespace {

using Bias = std::optional<at::Tensor>;

constexpr int64_t kRowsGrain = 16;  // rows of an embedding that are worth a thread
// Elements that are worth a thread, where they are split.
constexpr int64_t kSplitGrain = 16 * 1024;

bool lies_inputs_dense(const at::Tensor& weight, bool turned) {
  return weight.stride(turned ? 0 : 1) == 1;
}

bool is_int8(const at::Tensor& weight) {
  return weight.scalar_type() == at::kChar;
}

bool has_rows_of_int8(const at::Tensor& weight) {
  if (weight.dim() != 2 || !is_int8(weight) || weight.numel() == 0) return false;
  const int dense = weight.stride(1) == 1 ? 1 : 0;
  return weight.stride(dense) == 1 &&
         weight.stride(1 - dense) == int8_row_bytes(weight.size(dense));
}

// There is no other kernel for such a weight, so what does not fit is an error.
void check_int8(const at::Tensor& input, const at::Tensor& weight, const Bias& bias, bool turned) {
  TORCH_CHECK(has_rows_of_int8(weight), "the weight's rows are not int8 as a loader makes them");
  TORCH_CHECK(input.dim() >= 1 && input.size(-1) == weight.size(turned ? 0 : 1),
              "the input has other columns than the weight takes");
  TORCH_CHECK(element_of(input.scalar_type()), "weights in int8 take no ", input.scalar_type());
  if (!bias) return;
  TORCH_CHECK(bias->scalar_type() == input.scalar_type() && bias->dim() <= 1,
              "beside weights in int8 a bias has one dimension, and the input's dtype");
}

// Tells whether our kernels can compute the product: they do then, of any number of rows.
bool fits_ours(const at::Tensor& input, const at::Tensor& weight, const Bias& bias, bool turned) {
  if (is_int8(weight)) {
    check_int8(input, weight, bias, turned);
    return true;
  }
  if (input.dim() < 1 || weight.dim() != 2) return false;
  const int64_t inputs = weight.size(turned ? 0 : 1), outputs = weight.size(turned ? 1 : 0);
  if (input.size(-1) != inputs || inputs == 0 || outputs == 0) return false;
  const at::ScalarType type = weight.scalar_type();
  if (input.numel() == 0) return false;
  if (weight.stride(0) != 1 && weight.stride(1) != 1) return false;
  if (input.scalar_type() != type || !element_of(type)) return false;
  return !bias || (bias->scalar_type() == type && bias->dim() <= 1 &&
                   (bias->numel() == 1 || bias->numel() == outputs));
}

// Rows as they are multiplied with weights in int8 whose inputs lie side by side.
at::Tensor quantised(const at::Tensor& input, kernels::Element element) {
  const int64_t inputs = input.size(-1), rows = input.numel() / inputs;
  const int64_t x_bytes = row_stride(input).value() * static_cast<int64_t>(input.element_size());
  const int64_t row_bytes = kernels::quantised_bytes(inputs);
  const at::Tensor made = at::empty({rows, row_bytes}, at::kByte);
  const auto* const x = static_cast<const std::byte*>(input.const_data_ptr());
  auto* const to = static_cast<std::byte*>(made.mutable_data_ptr());
  const kernels::QuantiseKernel quantise =
      fast_kernels().linear.int8.quantise[static_cast<size_t>(element)];
  for_each_part(rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      quantise(x + row * x_bytes, inputs, to + row * row_bytes);
    }
  });
  return made;
}

// Rows of float32 as SplitLinearKernels takes them.
at::Tensor split(const at::Tensor& input) {
  const int64_t inputs = input.size(-1), rows = input.numel() / inputs;
  const int64_t x_step = row_stride(input).value(), row_bytes = kernels::split_bytes(inputs);
  const at::Tensor made = at::empty({rows, row_bytes}, at::kByte);
  const float* const x = input.const_data_ptr<float>();
  auto* const to = static_cast<std::byte*>(made.mutable_data_ptr());
  const kernels::SplitKernel split_row = fast_kernels().linear.split.split;
  for_each_part(rows, kSplitGrain / inputs + 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      split_row(x + row * x_step, inputs, to + row * row_bytes);
    }
  });
  return made;
}

// Rows as they are multiplied with packed weights.
at::Tensor widened(const at::Tensor& input) {
  return input.scalar_type() == at::kFloat ? input : input.to(at::kFloat).contiguous();
}

// Tells whether rows are split. A token step's are not: of a few rows that is slower. How many
// tokens a row has decides, and not how many rows there are, for these have other bits then.
bool is_split(const at::Tensor& input, const at::Tensor& weight) {
  return weight.scalar_type() == at::kFloat && fast_kernels().linear.split.split != nullptr &&
         input.dim() > 2 && input.size(-2) > srg::kLinearRowsMax;
}

// What is there already: of the same input what quantised(), split() or widened() gives; or, of all
// groups of rows, the result and what kernels need beside it, so that memory does not depend on the
// groups.
struct Ready {
  at::Tensor input = {};
  at::Tensor result = {};  // these rows
  at::Tensor parts = {};   // beside() of all rows
  int64_t all_rows = 0;
  int64_t first_row = 0;
};

// What kernels need beside so many rows' result where the outputs lie side by side: scratch for
// each thread's packed weights, [threads, packed_floats], or the chunks of few rows' sums.
at::Tensor beside(int64_t inputs, int64_t outputs, int64_t rows) {
  if (rows > srg::kLinearRowsMax) {
    return at::empty({lane_threads(), kernels::packed_floats(inputs)}, at::kFloat);
  }
  return at::empty({kernels::chunks_of(inputs), rows, kernels::padded_outputs(outputs)},
                   at::kFloat);
}

// The dimension in which the weight is dense, of the two, tells how it is read.
Product prepared(const at::Tensor& given, const at::Tensor& weight, const Bias& bias, bool turned,
                 const Ready& ready = {}) {
  const int64_t outputs = weight.size(turned ? 1 : 0);
  Product it;
  // How rows and bias lie must not change what a row gets.
  it.given = row_stride(given) ? given : given.contiguous();
  it.input = it.given;
  if (bias) it.bias = bias->expand({outputs}).contiguous();
  at::DimVector sizes(given.sizes());
  sizes.back() = outputs;
  it.result = ready.result.defined() ? ready.result : at::empty(sizes, given.options());
  kernels::Linear& call = it.work.call;
  it.work.element = *element_of(given.scalar_type());
  it.work.inputs_dense = lies_inputs_dense(weight, turned);
  it.work.is_int8 = is_int8(weight);
  it.work.is_split = it.work.inputs_dense && is_split(given, weight);
  call.weight = weight.const_data_ptr();
  call.weight_stride = weight.stride(it.work.inputs_dense == turned ? 1 : 0);
  call.bias = it.bias ? it.bias->const_data_ptr() : nullptr;
  call.inputs = given.size(-1);
  call.outputs = outputs;
  const auto element_bytes = static_cast<int64_t>(given.element_size());
  const int64_t rows = given.numel() / given.size(-1);
  const int64_t padded = kernels::padded_outputs(outputs);
  const int64_t all_rows = ready.parts.defined() ? ready.all_rows : rows;
  it.work.packs = !it.work.inputs_dense && all_rows > srg::kLinearRowsMax;
  if (!it.work.inputs_dense) {
    it.parts = ready.parts.defined() ? ready.parts : beside(call.inputs, outputs, rows);
    if (it.work.packs) it.work.scratch = it.parts->mutable_data_ptr<float>();
  }
  const int64_t given_bytes = row_stride(it.given).value() * element_bytes;
  int64_t x_bytes = given_bytes;
  if (it.work.packs) {
    it.input = ready.input.defined() ? ready.input : widened(it.given);
    x_bytes = row_stride(it.input).value() * static_cast<int64_t>(sizeof(float));
  } else if (it.work.is_split || (it.work.is_int8 && it.work.inputs_dense)) {
    it.input = ready.input.defined() ? ready.input
               : it.work.is_split    ? split(it.given)
                                     : quantised(it.given, it.work.element);
    x_bytes = it.input.size(1);
  }
  const auto* const x = static_cast<const std::byte*>(it.input.const_data_ptr());
  auto* const y = static_cast<std::byte*>(it.result.mutable_data_ptr());
  float* const parts = it.parts && !it.work.packs
                           ? it.parts->mutable_data_ptr<float>() + ready.first_row * padded
                           : nullptr;
  const auto* const of =
      it.work.is_split ? static_cast<const std::byte*>(it.given.const_data_ptr()) : nullptr;
  it.work.rows.push_back({rows, x, x_bytes, y, outputs * element_bytes, parts, padded,
                          all_rows * padded, of, given_bytes});
  return it;
}

at::Tensor linear_of_ours(const at::Tensor& input, const at::Tensor& weight, const Bias& bias,
                          bool turned) {
  Product product = prepared(input, weight, bias, turned);
  at::Tensor result = product.result;
  compute_or_join({&product, 1});
  return result;
}

at::Tensor linear_rows(const at::Tensor& input, const at::Tensor& weight, const Bias& bias,
                       bool turned) {
  if (fits_ours(input, weight, bias, turned)) return linear_of_ours(input, weight, bias, turned);
  const OneThread alone(true);
  return linear_as_before(input, weight, bias, turned);
}

// What of them has dense inputs and is ours is computed at once.
std::vector<at::Tensor> linears(const at::Tensor& given, at::TensorList weights,
                                const c10::List<Bias>& biases, bool turned) {
  TORCH_CHECK(weights.size() == biases.size(), "there are as many biases as weights");
  const at::Tensor input = row_stride(given) ? given : given.contiguous();
  std::vector<at::Tensor> results(weights.size());
  c10::SmallVector<Product, 4> products;
  for (size_t i = 0; i < weights.size(); ++i) {
    const Bias bias = biases.get(i);
    if (fits_ours(input, weights[i], bias, turned) && lies_inputs_dense(weights[i], turned)) {
      const auto same = std::ranges::find_if(
          products, [&](const Product& one) { return one.work.is_int8 == is_int8(weights[i]); });
      const at::Tensor ready = same == products.end() ? at::Tensor() : same->input;
      products.push_back(prepared(input, weights[i], bias, turned, {.input = ready}));
      results[i] = products.back().result;
    } else {
      if (i > 0) InnerPulse::beat("djinn::linears");
      results[i] = linear_rows(given, weights[i], bias, turned);
    }
  }
  compute_or_join(products);
  return results;
}

std::vector<at::Tensor> linears_as_before(const at::Tensor& input, at::TensorList weights,
                                          const c10::List<Bias>& biases, bool turned) {
  TORCH_CHECK(weights.size() == biases.size(), "there are as many biases as weights");
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < weights.size(); ++i) {
    results.push_back(linear_as_before(input, weights[i], biases.get(i), turned));
  }
  return results;
}

using Ends = std::optional<at::Tensor>;

// Tells whether our kernels can compute the products. Weights of ours in int8 have no groups.
bool are_groups(const at::Tensor& input, const at::Tensor& weights, const Ends& ends) {
  if (weights.dim() != 3 || weights.size(0) == 0 || is_int8(weights)) return false;
  const int64_t groups = weights.size(0);
  const bool is_said = ends ? input.dim() == 2 && ends->dim() == 1 && ends->size(0) == groups
                            : input.dim() == 3 && input.size(0) == groups;
  return is_said && fits_ours(input, weights.select(0, 0), {}, true);
}

at::Tensor groups_as_before(const at::Tensor& input, const at::Tensor& weights, const Ends& ends) {
  const OneThread alone(true);
  return ends ? at::_grouped_mm(input, weights, *ends) : at::bmm(input, weights);
}

// Where the rows of each group end.
std::vector<int64_t> ends_of(const at::Tensor& input, const at::Tensor& weights, const Ends& ends) {
  std::vector<int64_t> found(static_cast<size_t>(weights.size(0)));
  if (!ends) {
    for (size_t i = 0; i < found.size(); ++i)
      found[i] = static_cast<int64_t>(i + 1) * input.size(1);
    return found;
  }
  static const Guard check_groups = guard_of("aten::_grouped_mm");
  check_groups({input, weights, *ends, {}, {}});
  const at::Tensor dense = ends->contiguous();
  std::copy_n(dense.const_data_ptr<int32_t>(), found.size(), found.begin());
  return found;
}

at::Tensor grouped_rows(const at::Tensor& given, const at::Tensor& weights, const Ends& ends) {
  if (!are_groups(given, weights, ends)) return groups_as_before(given, weights, ends);
  const std::vector<int64_t> end = ends_of(given, weights, ends);
  const int64_t inputs = given.size(-1), outputs = weights.size(2);
  const int64_t all_rows = given.numel() / inputs;
  const at::Tensor input = given.reshape({all_rows, inputs}).contiguous();
  const at::Tensor result = at::empty({all_rows, outputs}, input.options());
  Ready ready{.all_rows = all_rows};
  at::Tensor wide;
  if (weights.stride(1) != 1) {
    ready.parts = beside(inputs, outputs, all_rows);
    if (all_rows > srg::kLinearRowsMax) wide = widened(input);
  }
  std::vector<Product> products;
  for (size_t group = 0; group < end.size(); ready.first_row = end[group++]) {
    const int64_t rows = end[group] - ready.first_row;
    if (rows == 0) continue;
    ready.result = result.narrow(0, ready.first_row, rows);
    if (wide.defined()) ready.input = wide.narrow(0, ready.first_row, rows);
    products.push_back(prepared(input.narrow(0, ready.first_row, rows),
                                weights.select(0, static_cast<int64_t>(group)), {}, true, ready));
  }
  compute_or_join(products);
  return ends ? result : result.view({given.size(0), given.size(1), outputs});
}

at::Tensor grouped_on_meta(const at::Tensor& input, const at::Tensor& weights, const Ends& ends) {
  if (!ends) return at::bmm(input, weights);
  static const ShapeRule rule = shape_rule_of("aten::_grouped_mm");
  return rule({input, weights, *ends, {}, {}}).at(0);
}

at::Tensor embedding_rows(const at::Tensor& weight, const at::Tensor& given, at::ScalarType dtype) {
  TORCH_CHECK(has_rows_of_int8(weight) && weight.stride(1) == 1,
              "the weight's rows are not int8 as a loader makes them");
  const auto element = element_of(dtype);
  TORCH_CHECK(element, "weights in int8 are not widened to ", dtype);
  const at::Tensor indices = given.to(at::kLong).contiguous();
  const int64_t count = indices.numel(), rows = weight.size(0), columns = weight.size(1);
  const auto* const index = indices.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    TORCH_CHECK_INDEX(index[i] >= 0 && index[i] < rows, "index ", index[i], " of ", rows, " rows");
  }
  at::DimVector sizes(given.sizes());
  sizes.push_back(columns);
  const at::Tensor result = at::empty(sizes, at::TensorOptions().dtype(dtype));
  const auto* const from = static_cast<const std::byte*>(weight.const_data_ptr());
  auto* const to = static_cast<std::byte*>(result.mutable_data_ptr());
  const int64_t row_bytes = columns * static_cast<int64_t>(result.element_size());
  const kernels::WidenKernel widen =
      fast_kernels().linear.int8.widen[static_cast<size_t>(*element)];
  for_each_part(count, kRowsGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      widen(from + index[i] * weight.stride(0), columns, to + i * row_bytes);
    }
  });
  return result;
}

// The weight is what the graph says there.
at::Tensor embedding_on_meta(const at::Tensor& weight, const at::Tensor& indices,
                             at::ScalarType dtype) {
  TORCH_CHECK(weight.dim() == 2, "an embedding has two dimensions");
  at::DimVector sizes(indices.sizes());
  sizes.push_back(weight.size(1));
  return at::empty(sizes, at::TensorOptions().dtype(dtype).device(c10::kMeta));
}

}  // namespace

at::Tensor linear_as_before(const at::Tensor& input, const at::Tensor& weight, const Bias& bias,
                            bool turned) {
  if (!turned) return at::linear(input, weight, bias);
  if (!bias) return at::matmul(input, weight);
  // Of more dimensions it was a linear with a weight in int8 that the graph turns.
  return input.dim() == 2 ? at::addmm(*bias, input, weight) : at::linear(input, weight.t(), bias);
}

at::Tensor product_by(ProductBy who, const at::Tensor& input, const at::Tensor& weight,
                      bool turned) {
  DJINN_ASSERT(fits_ours(input, weight, {}, turned));
  return who == ProductBy::kOwn ? linear_of_ours(input, weight, {}, turned)
                                : linear_as_before(input, weight, {}, turned);
}

void define_fast_linear(OwnLibraries& libraries) {
  libraries.definition.def(
      "linear_rows(Tensor input, Tensor weight, Tensor? bias, bool turned) -> Tensor");
  libraries.cpu.impl("linear_rows", &linear_rows);
  libraries.meta.impl("linear_rows", &linear_as_before);
  libraries.definition.def(
      "linears(Tensor input, Tensor[] weights, Tensor?[] biases, bool turned) -> Tensor[]");
  libraries.cpu.impl("linears", &linears);
  libraries.meta.impl("linears", &linears_as_before);
  libraries.definition.def("grouped_rows(Tensor input, Tensor weights, Tensor? ends) -> Tensor");
  libraries.cpu.impl("grouped_rows", &grouped_rows);
  libraries.meta.impl("grouped_rows", &grouped_on_meta);
  libraries.definition.def(
      "embedding_rows(Tensor weight, Tensor indices, ScalarType dtype) -> Tensor");
  libraries.cpu.impl("embedding_rows", &embedding_rows);
  libraries.meta.impl("embedding_rows", &embedding_on_meta);
}

}  // namespace djinn::exec
