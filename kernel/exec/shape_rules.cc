// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/shape_rules.h"

#include <ATen/ExpandUtils.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/pixel_shuffle.h>
#include <ATen/ops/pixel_unshuffle.h>
#include <ATen/ops/result_type.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <string_view>

#include "kernel/exec/torch_headers.h"

namespace djinn::exec {
namespace {

using Results = std::vector<at::Tensor>;
using Arguments = std::vector<c10::IValue>;

at::Tensor meta_tensor(at::IntArrayRef sizes, at::ScalarType type) {
  return at::empty(sizes, at::TensorOptions().dtype(type).device(c10::kMeta));
}

// Gives a tensor of the CPU without memory, by whose geometry its kernels are chosen.
at::Tensor on_cpu(const at::Tensor& tensor) {
  at::Tensor shell = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, c10::kCPU), nullptr,
                   false),
      c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  shell.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  return shell;
}

std::optional<at::Tensor> optional_on_cpu(const c10::IValue& value) {
  const auto tensor = value.toOptional<at::Tensor>();
  if (!tensor || !tensor->defined()) return std::nullopt;
  return on_cpu(*tensor);
}

size_t wrapped(int64_t dimension, int64_t rank) {
  TORCH_CHECK_INDEX(dimension >= -rank && dimension < rank, "dimension ", dimension,
                    " is out of range for ", rank, " dimensions");
  return static_cast<size_t>(dimension < 0 ? dimension + rank : dimension);
}

Results embedding(const Arguments& arguments) {
  const at::Tensor& weight = arguments[0].toTensor();
  const at::Tensor& indices = arguments[1].toTensor();
  TORCH_CHECK(weight.dim() == 2, "'weight' must be 2-D");
  TORCH_CHECK(indices.scalar_type() == at::kLong || indices.scalar_type() == at::kInt,
              "indices must be of int64 or int32, and are of ", indices.scalar_type());
  std::vector<int64_t> sizes = indices.sizes().vec();
  sizes.push_back(weight.size(1));
  return {meta_tensor(sizes, weight.scalar_type())};
}

Results index_select(const Arguments& arguments) {
  const at::Tensor& self = arguments[0].toTensor();
  const at::Tensor& index = arguments[2].toTensor();
  TORCH_CHECK_VALUE(index.dim() <= 1, "index must have one dimension");
  std::vector<int64_t> sizes = self.sizes().vec();
  if (!sizes.empty()) sizes[wrapped(arguments[1].toInt(), self.dim())] = index.numel();
  return {meta_tensor(sizes, self.scalar_type())};
}

// The fused kernel gives the query's layout, the products of matrices a contiguous one.
Results attention(const Arguments& arguments) {
  const at::Tensor& query = arguments[0].toTensor();
  const at::Tensor& key = arguments[1].toTensor();
  const at::Tensor& value = arguments[2].toTensor();
  TORCH_CHECK_VALUE(query.dim() >= 2 && key.dim() == query.dim() && value.dim() == query.dim(),
                    "query, key and value must have the same number of dimensions, two or more");
  TORCH_CHECK_VALUE(query.size(-1) == key.size(-1),
                    "query and key differ in their last dimension: ", query.size(-1), " and ",
                    key.size(-1));
  TORCH_CHECK_VALUE(key.size(-2) == value.size(-2), "key has ", key.size(-2), " tokens, value ",
                    value.size(-2));
  const int64_t choice = at::_fused_sdp_choice(
      on_cpu(query), on_cpu(key), on_cpu(value), optional_on_cpu(arguments[3]),
      arguments[4].toDouble(), arguments[5].toBool(), arguments[6].toOptional<double>(),
      arguments[7].toBool());
  if (choice != static_cast<int64_t>(sdp::SDPBackend::math)) return {at::empty_like(query)};
  std::vector<int64_t> sizes = query.sizes().vec();
  sizes.back() = value.size(-1);
  return {meta_tensor(sizes, query.scalar_type())};
}

// The CPU computes one dimension of space as two, of which the first has one element.
at::Tensor as_planes(const at::Tensor& tensor) {
  return tensor.dim() == 3 ? tensor.unsqueeze(2) : tensor;
}

c10::SymIntArrayRef symbolic(const std::vector<int64_t>& list) {
  return c10::fromIntArrayRefSlow(list);
}

// The result is channels last where the CPU's kernel for it is.
Results convolution(const Arguments& arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  const at::Tensor& weight = arguments[1].toTensor();
  const auto bias = arguments[2].toOptional<at::Tensor>();
  auto stride = arguments[3].toIntVector(), padding = arguments[4].toIntVector(),
       dilation = arguments[5].toIntVector(), beyond = arguments[7].toIntVector();
  const bool transposed = arguments[6].toBool();
  const int64_t groups = arguments[8].toInt();
  const at::Tensor output =
      at::convolution(input, weight, bias, stride, padding, dilation, transposed, beyond, groups);
  if (weight.dim() < 3 || input.dim() != weight.dim()) return {output};
  const bool line = weight.dim() == 3;
  if (line) {
    for (auto* const list : {&stride, &dilation}) list->insert(list->begin(), 1);
    for (auto* const list : {&padding, &beyond}) list->insert(list->begin(), 0);
  }
  const at::Tensor cpu_input = on_cpu(as_planes(line ? input.contiguous() : input));
  const at::Tensor cpu_weight = on_cpu(as_planes(weight));
  const auto backend = at::native::select_conv_backend(
      cpu_input, cpu_weight, optional_on_cpu(arguments[2]), symbolic(stride), symbolic(padding),
      symbolic(dilation), transposed, symbolic(beyond), groups, std::nullopt);
  const at::Tensor made =
      at::empty(as_planes(output).sizes(), output.options(),
                at::native::_determine_backend_memory_format(cpu_input, cpu_weight, backend));
  return {line ? made.squeeze(2) : made};
}

// The result is contiguous, whatever the input is.
Results contiguous(const Arguments& arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  return {meta_tensor(input.sizes(), input.scalar_type())};
}

// Kernels that work element by element give the input's layout.
Results like_input(const Arguments& arguments) {
  return {at::empty_like(arguments[0].toTensor())};
}

// The result is contiguous, or channels last as the input is.
Results in_format_of_input(const Arguments& arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  return {at::empty_like(input, input.suggest_memory_format())};
}

// The CPU's kernels keep the memory format of their input; the meta kernels do not.
Results in_format_of(const at::Tensor& input, const at::Tensor& shuffled) {
  return {at::empty(shuffled.sizes(), shuffled.options(), input.suggest_memory_format())};
}

Results pixel_shuffle(const Arguments& arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  return in_format_of(input, at::pixel_shuffle(input, arguments[1].toInt()));
}

Results pixel_unshuffle(const Arguments& arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  return in_format_of(input, at::pixel_unshuffle(input, arguments[1].toInt()));
}

// at::native's kernels for batches give a contiguous result for a contiguous input, whatever else
// that is.
at::Tensor normalized(const at::Tensor& input) {
  return at::empty_like(
      input, input.is_contiguous() ? at::MemoryFormat::Contiguous : input.suggest_memory_format());
}

Results batch_norm(const Arguments& arguments) {
  return {normalized(arguments[0].toTensor())};
}

Results rolled(const Arguments& arguments) {
  return arguments[2].toDimVector().empty() ? contiguous(arguments) : in_format_of_input(arguments);
}

void check_normalized(const Arguments& arguments) {
  const at::IntArrayRef sizes = arguments[0].toTensor().sizes();
  const auto inner = arguments[1].toDimVector();
  TORCH_CHECK(sizes.size() >= inner.size() && sizes.slice(sizes.size() - inner.size()) == inner,
              "normalized_shape is ", at::IntArrayRef(inner), ", and the input of ", sizes,
              " does not end so");
}

Results layer_norm(const Arguments& arguments) {
  check_normalized(arguments);
  return contiguous(arguments);
}

Results rms_norm(const Arguments& arguments) {
  check_normalized(arguments);
  return in_format_of_input(arguments);
}

Results bools_like_input(const Arguments& arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  return {at::empty_like(input, input.options().dtype(at::kBool))};
}

// Gives the dtype of statistics: the input's, but float32 where the first of the parameters that is
// given is of another, as under autocast. A parameter that is left out is None or an undefined
// tensor.
at::ScalarType type_of_statistics(const Arguments& arguments,
                                  std::initializer_list<size_t> parameters) {
  const at::ScalarType type = arguments[0].toTensor().scalar_type();
  for (const size_t i : parameters) {
    const auto given = arguments[i].toOptional<at::Tensor>();
    if (given && given->defined()) return given->scalar_type() == type ? type : at::kFloat;
  }
  return type;
}

// The results are the normalised output, and mean and reciprocal deviation over the leading
// dimensions.
Results native_layer_norm(const Arguments& arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  const size_t inner = arguments[1].toDimVector().size();
  TORCH_CHECK_VALUE(inner >= 1 && inner <= static_cast<size_t>(input.dim()),
                    "normalized_shape has too many dimensions");
  std::vector<int64_t> sizes = input.sizes().vec();
  std::fill(sizes.end() - static_cast<std::ptrdiff_t>(inner), sizes.end(), 1);
  const at::ScalarType type = type_of_statistics(arguments, {2, 3});
  return {meta_tensor(input.sizes(), input.scalar_type()), meta_tensor(sizes, type),
          meta_tensor(sizes, type)};
}

// The results are the normalised output, and mean and reciprocal deviation of each group.
Results native_group_norm(const Arguments& arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  TORCH_CHECK_VALUE(input.dim() >= 2, "the input must have two or more dimensions");
  const at::ScalarType type = type_of_statistics(arguments, {1, 2});
  const std::vector<int64_t> sizes{input.size(0), arguments[6].toInt()};
  return {at::empty_like(input, input.suggest_memory_format()), meta_tensor(sizes, type),
          meta_tensor(sizes, type)};
}

// The results are the gradients of input, weight and bias, as far as the mask wants them.
Results native_group_norm_backward(const Arguments& arguments) {
  const at::Tensor& input = arguments[1].toTensor();
  const auto weight = arguments[4].toOptional<at::Tensor>();
  const c10::List<bool> wanted = arguments[9].toBoolList();
  Results results(3);
  if (wanted[0]) results[0] = at::empty_like(input, input.suggest_memory_format());
  for (const size_t i : {1, 2}) {
    if (!wanted[i]) continue;
    TORCH_CHECK_VALUE(weight && weight->defined(), "a gradient needs the weight");
    results[i] = at::empty_like(*weight);
  }
  return results;
}

// Two of the results are statistics of channels, which only training has.
Results native_batch_norm(const Arguments& arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  TORCH_CHECK_VALUE(input.dim() >= 2, "the input must have two or more dimensions");
  const bool training = arguments[5].toBool();
  const at::ScalarType type = type_of_statistics(arguments, {1, 2, 3, 4});
  const std::vector<int64_t> sizes{training ? input.size(1) : 0};
  return {normalized(input), meta_tensor(sizes, type), meta_tensor(sizes, type)};
}

// The last results are the new running statistics.
Results batch_norm_functional(const Arguments& arguments) {
  Results results = native_batch_norm(arguments);
  for (const size_t i : {3, 4}) results.push_back(at::empty_like(arguments[i].toTensor()));
  return results;
}

Results batch_norm_no_training(const Arguments& arguments) {
  Arguments all = arguments;
  all.insert(all.begin() + 5, false);
  return native_batch_norm(all);
}

// The last result is what another kernel than the CPU's would keep.
Results batch_norm_no_update(const Arguments& arguments) {
  Results results = batch_norm_no_training(arguments);
  results.push_back(meta_tensor({0}, at::kByte));
  return results;
}

// The results are the output of a recurrent network, transposed where the batch comes first, and
// its states.
Results recurrent(const Arguments& arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  std::vector<at::Tensor> states;
  if (arguments[1].isTensor()) states.push_back(arguments[1].toTensor());
  if (arguments[1].isTensorList()) states = arguments[1].toTensorVector();
  TORCH_CHECK(
      input.dim() == 3 && !states.empty() && states[0].dim() == 3,
      "a recurrent network takes [tokens, batch, features] and a state of three dimensions");
  const bool batch_first = arguments[8].toBool();
  std::vector<int64_t> sizes = input.sizes().vec();
  sizes[2] = states[0].size(2) * (arguments[7].toBool() ? 2 : 1);
  if (batch_first) std::swap(sizes[0], sizes[1]);
  const at::Tensor output = meta_tensor(sizes, input.scalar_type());
  Results results{batch_first ? output.transpose(0, 1) : output};
  for (const at::Tensor& state : states) {
    results.push_back(meta_tensor(state.sizes(), state.scalar_type()));
  }
  return results;
}

// The second result is the scores, of each head or averaged, if they are asked for.
Results native_attention(const Arguments& arguments) {
  const at::Tensor& query = arguments[0].toTensor();
  TORCH_CHECK(query.dim() == 3, "expected 3-D query, got ", query.dim(), "-D tensor");
  at::Tensor weights;
  if (arguments[10].toBool()) {
    std::vector<int64_t> sizes{query.size(0), arguments[4].toInt(), query.size(1), query.size(1)};
    if (arguments[11].toBool()) sizes.erase(sizes.begin() + 1);
    weights = meta_tensor(sizes, query.scalar_type());
  }
  return {meta_tensor(query.sizes(), query.scalar_type()), weights};
}

// The result is a product for each group, or one whose rows or columns the groups share out. Meta
// kernels know bfloat16 alone. The CPU's kernel pads rows to 16 bytes; what is between them stays
// in the worker.
Results grouped_mm(const Arguments& arguments) {
  const at::Tensor& self = arguments[0].toTensor();
  const at::Tensor& other = arguments[1].toTensor();
  TORCH_CHECK_VALUE((self.dim() == 2 || self.dim() == 3) && (other.dim() == 2 || other.dim() == 3),
                    "grouped_mm takes matrices, or batches of them");
  const bool shared = self.dim() == 2 && other.dim() == 2;
  TORCH_CHECK_VALUE(self.size(-1) == other.size(-2), "the operands have ", self.size(-1), " and ",
                    other.size(-2), " in common");
  TORCH_CHECK_VALUE(arguments[2].isTensor() == (self.dim() == 2 || other.dim() == 2),
                    "ends of groups are for operands that groups share out");
  std::vector<int64_t> sizes{self.size(-2), other.size(-1)};
  if (shared) sizes.insert(sizes.begin(), arguments[2].toTensor().size(0));
  if (self.dim() == 3 && other.dim() == 3) sizes.insert(sizes.begin(), self.size(0));
  const auto type = arguments[4].toOptional<at::ScalarType>();
  return {meta_tensor(sizes, type.value_or(self.scalar_type()))};
}

Results histogram(const Arguments& arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(input.scalar_type()), "histc of ",
                              input.scalar_type(), " is not implemented");
  TORCH_CHECK_VALUE(arguments[1].toInt() > 0, "bins must be > 0");
  return {meta_tensor({arguments[1].toInt()}, input.scalar_type())};
}

// In-place operators give their first argument back.
Results itself(const Arguments& arguments) {
  return {arguments[0].toTensor()};
}

Results one_element(const Arguments& arguments) {
  return {meta_tensor({}, arguments[0].toTensor().scalar_type())};
}

Results masked_fill(const Arguments& arguments) {
  const at::Tensor& self = arguments[0].toTensor();
  return {meta_tensor(at::infer_size(self.sizes(), arguments[1].toTensor().sizes()),
                      self.scalar_type())};
}

// Both operands broadcast and promote; either may be a number. Addition has a meta kernel, and the
// layout is the same for all that go element by element.
Results binary(const Arguments& arguments) {
  const c10::IValue &a = arguments[0], &b = arguments[1];
  if (!a.isTensor()) return {at::add(b.toTensor(), a.toScalar())};
  if (!b.isTensor()) return {at::add(a.toTensor(), b.toScalar())};
  return {at::add(a.toTensor(), b.toTensor())};
}

at::Tensor operand(const c10::IValue& value, at::ScalarType type) {
  return value.isTensor() ? value.toTensor().to(type) : meta_tensor({}, type);
}

// Promotes the dtypes of the two values, and lays the result out as addcmul does its own.
Results where(const Arguments& arguments) {
  const c10::IValue &yes = arguments[1], &no = arguments[2];
  at::ScalarType type = at::kFloat;
  if (yes.isTensor() && no.isTensor())
    type = at::result_type(yes.toTensor(), no.toTensor());
  else if (yes.isTensor())
    type = at::result_type(yes.toTensor(), no.toScalar());
  else if (no.isTensor())
    type = at::result_type(yes.toScalar(), no.toTensor());
  else
    type = at::result_type(yes.toScalar(), no.toScalar());
  const at::ScalarType computed = type == at::kBool ? at::kByte : type;
  return {
      at::addcmul(operand(arguments[0], computed), operand(yes, computed), operand(no, computed))
          .to(type)};
}

struct Rule {
  std::string_view op;
  ShapeRule apply;
};

// The operators are sorted.
constexpr auto kRules = std::to_array<Rule>({
    {"aten::_batch_norm_no_update", batch_norm_no_update},
    {"aten::_grouped_mm", grouped_mm},
    {"aten::_native_batch_norm_legit", native_batch_norm},
    {"aten::_native_batch_norm_legit_functional", batch_norm_functional},
    {"aten::_native_batch_norm_legit_no_training", batch_norm_no_training},
    {"aten::_native_multi_head_attention", native_attention},
    {"aten::_transformer_encoder_layer_fwd", like_input},
    {"aten::batch_norm", batch_norm},
    {"aten::channel_shuffle", in_format_of_input},
    {"aten::convolution", convolution},
    {"aten::embedding", embedding},
    {"aten::fill_.Scalar", itself},
    {"aten::fill_.Tensor", itself},
    {"aten::flip", like_input},
    {"aten::floor_divide", binary},
    {"aten::group_norm", in_format_of_input},
    {"aten::gru.input", recurrent},
    {"aten::hardswish", like_input},
    {"aten::histc", histogram},
    {"aten::index_select", index_select},
    {"aten::isnan", bools_like_input},
    {"aten::layer_norm", layer_norm},
    {"aten::lstm.input", recurrent},
    {"aten::masked_fill.Scalar", masked_fill},
    {"aten::masked_fill.Tensor", masked_fill},
    {"aten::masked_fill_.Scalar", itself},
    {"aten::masked_fill_.Tensor", itself},
    {"aten::max", one_element},
    {"aten::min", one_element},
    {"aten::native_batch_norm", native_batch_norm},
    {"aten::native_group_norm", native_group_norm},
    {"aten::native_group_norm_backward", native_group_norm_backward},
    {"aten::native_layer_norm", native_layer_norm},
    {"aten::pixel_shuffle", pixel_shuffle},
    {"aten::pixel_unshuffle", pixel_unshuffle},
    {"aten::relu", like_input},
    {"aten::relu_", itself},
    {"aten::rms_norm", rms_norm},
    {"aten::rnn_relu.input", recurrent},
    {"aten::rnn_tanh.input", recurrent},
    {"aten::roll", rolled},
    {"aten::rsub.Tensor", binary},
    {"aten::scaled_dot_product_attention", attention},
    {"aten::where.ScalarOther", where},
    {"aten::where.ScalarSelf", where},
    {"aten::where.self", where},
    {"aten::zero_", itself},
});

static_assert(std::is_sorted(kRules.begin(), kRules.end(),
                             [](const Rule& a, const Rule& b) { return a.op < b.op; }));

}  // namespace

ShapeRule shape_rule_of(std::string_view op) {
  const auto* rule =
      std::lower_bound(kRules.begin(), kRules.end(), op,
                       [](const Rule& a, std::string_view name) { return a.op < name; });
  return rule != kRules.end() && rule->op == op ? rule->apply : nullptr;
}

}  // namespace djinn::exec
