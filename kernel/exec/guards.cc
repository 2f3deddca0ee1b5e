// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/guards.h"

#include <ATen/ExpandUtils.h>

#include <algorithm>
#include <array>

namespace djinn::exec {
namespace {

using Stack = std::vector<c10::IValue>;

void require_no_dropout(double probability) {
  TORCH_CHECK_VALUE(probability == 0,
                    "Dropout draws random numbers without a seed and an offset. Use "
                    "djinn::bernoulli, or a probability of 0.");
}

template <size_t kPosition>
void no_dropout(const Stack& stack) {
  require_no_dropout(stack[kPosition].toDouble());
}

// Arguments that are tensors at all have one element for each channel of the input.
void require_channels(const Stack& stack, size_t first, size_t last) {
  const at::Tensor& input = stack[0].toTensor();
  TORCH_CHECK_VALUE(input.dim() >= 2 && input.size(1) > 0, "the input has no channels");
  for (size_t i = first; i <= last; ++i) {
    if (!stack[i].isTensor()) continue;
    TORCH_CHECK_VALUE(stack[i].toTensor().numel() == input.size(1), "argument ", i, " must have ",
                      input.size(1), " elements, one a channel");
  }
}

// In training these change the running statistics, and their schemas do not say so.
void require_no_unsaid_change(const Stack& stack) {
  const bool changes = stack[5].toBool() && (stack[3].isTensor() || stack[4].isTensor());
  TORCH_CHECK_VALUE(!changes,
                    "It would change the running statistics unsaid. Use "
                    "aten::_native_batch_norm_legit_functional.");
}

void batch_norm(const Stack& stack) {
  require_no_unsaid_change(stack);
  require_channels(stack, 1, 4);
}

template <size_t kLast>
void channels(const Stack& stack) {
  require_channels(stack, 1, kLast);
}

void require_same_sizes(const Stack& stack, size_t a, size_t b) {
  TORCH_CHECK_VALUE(stack[a].toTensor().sizes() == stack[b].toTensor().sizes(), "arguments ", a,
                    " and ", b, " must have the same sizes");
}

template <size_t kFirst, size_t kSecond>
void same_sizes(const Stack& stack) {
  require_same_sizes(stack, kFirst, kSecond);
}

void native_batch_norm_backward(const Stack& stack) {
  require_same_sizes(stack, 0, 1);
  const bool training = stack[7].toBool();
  require_channels(stack, 2, training ? 6 : 4);  // what evaluation saves has no elements
  const size_t statistics = training ? 5 : 3;
  TORCH_CHECK_VALUE(stack[statistics].isTensor() && stack[statistics + 1].isTensor(),
                    "the statistics are missing");
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
}

// [batch, heads, tokens, dim], all of one batch and one dim; so many heads of the query share one
// of the key.
void require_heads(const Stack& stack, size_t query, size_t key, size_t value) {
  const at::Tensor& q = stack[query].toTensor();
  const at::Tensor& k = stack[key].toTensor();
  TORCH_CHECK_VALUE(q.dim() == 4 && k.dim() == 4, "attention takes four dimensions");
  const bool shares = k.size(1) > 0 && q.size(1) % k.size(1) == 0;
  TORCH_CHECK_VALUE(q.size(0) == k.size(0) && shares && q.size(3) == k.size(3),
                    "query and key differ in batch, heads or dim");
  require_same_sizes(stack, key, value);
}

void flash_attention(const Stack& stack) {
  require_no_dropout(stack[3].toDouble());
  require_heads(stack, 0, 1, 2);
}

void flash_attention_backward(const Stack& stack) {
  require_no_dropout(stack[6].toDouble());
  require_heads(stack, 1, 2, 3);
  require_same_sizes(stack, 0, 1);
  require_same_sizes(stack, 4, 1);
  const at::Tensor& query = stack[1].toTensor();
  TORCH_CHECK_VALUE(stack[5].toTensor().numel() * query.size(3) == query.numel(),
                    "logsumexp must have one element a row of the query");
}

// Weights of a recurrent network of so many gates.
class Recurrent {
 public:
  Recurrent(const Stack& stack, int64_t gates)
      : input_(stack[0].toTensor()),
        weights_(stack[2].toTensorVector()),
        biases_(stack[3].toBool()),
        layers_(stack[4].toInt()),
        directions_(stack[7].toBool() ? 2 : 1),
        batch_(stack[8].toBool() ? 0 : 1),
        gates_(gates) {
    if (stack[6].toBool()) require_no_dropout(stack[5].toDouble());
    TORCH_CHECK_VALUE(input_.dim() == 3 && layers_ >= 1 && layers_ <= 1024,
                      "the input must be [tokens, batch, features], of 1 to 1024 layers");
  }

  void require_state(const at::Tensor& state) {
    TORCH_CHECK_VALUE(state.dim() == 3, "the state must have three dimensions");
    hidden_ = state.size(2);
    require(state, {layers_ * directions_, input_.size(batch_), hidden_});
  }

  void require_weights() const {
    const size_t each = biases_ ? 4 : 2;
    TORCH_CHECK_VALUE(weights_.size() == each * static_cast<size_t>(layers_ * directions_),
                      "another number of weights than layers and directions need");
    for (size_t i = 0; i < weights_.size(); ++i) {
      const bool first = i < each * static_cast<size_t>(directions_);
      const int64_t features = first ? input_.size(2) : hidden_ * directions_;
      const size_t part = i % each;
      if (part == 0) require(weights_[i], {gates_ * hidden_, features});
      if (part == 1) require(weights_[i], {gates_ * hidden_, hidden_});
      if (part >= 2) require(weights_[i], {gates_ * hidden_});
    }
  }

 private:
  static void require(const at::Tensor& tensor, at::IntArrayRef sizes) {
    TORCH_CHECK_VALUE(tensor.sizes() == sizes, "a state or weight is ", tensor.sizes(), ", not ",
                      sizes);
  }

  const at::Tensor& input_;
  std::vector<at::Tensor> weights_;
  bool biases_;
  int64_t layers_;
  int64_t directions_;
  int64_t batch_;
  int64_t gates_;
  int64_t hidden_ = 0;
};

void lstm(const Stack& stack) {
  Recurrent network(stack, 4);
  const std::vector<at::Tensor> states = stack[1].toTensorVector();
  TORCH_CHECK_VALUE(states.size() == 2, "an LSTM has two states");
  for (const at::Tensor& state : states) network.require_state(state);
  network.require_weights();
}

template <int64_t kGates>
void recurrent(const Stack& stack) {
  Recurrent network(stack, kGates);
  network.require_state(stack[1].toTensor());
  network.require_weights();
}

// [batch, tokens, features], none of them 0: kernels give uninitialised scores of nothing.
void require_sequences(const at::Tensor& input, int64_t features, int64_t heads) {
  TORCH_CHECK_VALUE(input.dim() == 3 && input.numel() > 0 && input.size(2) == features,
                    "the input must be [batch, tokens, ", features, "], and not empty");
  TORCH_CHECK_VALUE(heads >= 1 && features % heads == 0, features, " features have no ", heads,
                    " heads");
}

// Of one of nn's three types, and of exactly its shape.
void require_attention_mask(const c10::IValue& mask, const c10::IValue& type,
                            const at::Tensor& input, int64_t heads) {
  if (!mask.isTensor()) return;
  const int64_t batch = input.size(0);
  const int64_t tokens = input.size(1);
  const std::array<std::vector<int64_t>, 3> sizes{
      {{tokens, tokens}, {batch, tokens}, {batch, heads, tokens, tokens}}};
  const int64_t number = type.isInt() ? type.toInt() : -1;
  TORCH_CHECK_VALUE(number >= 0 && number <= 2, "the type of a mask is 0, 1 or 2");
  const auto& expected = sizes[static_cast<size_t>(number)];
  TORCH_CHECK_VALUE(mask.toTensor().sizes() == at::IntArrayRef(expected), "the mask is ",
                    mask.toTensor().sizes(), ", not ", at::IntArrayRef(expected));
}

void require_sizes(const Stack& stack, size_t position, at::IntArrayRef sizes) {
  TORCH_CHECK_VALUE(stack[position].toTensor().sizes() == sizes, "argument ", position,
                    " must be of ", sizes);
}

void native_attention(const Stack& stack) {
  const at::Tensor& query = stack[0].toTensor();
  const int64_t features = stack[3].toInt();
  require_sequences(query, features, stack[4].toInt());
  require_same_sizes(stack, 0, 1);
  require_same_sizes(stack, 0, 2);
  require_sizes(stack, 5, {3 * features, features});
  require_sizes(stack, 6, {3 * features});
  require_sizes(stack, 7, {features, features});
  require_sizes(stack, 8, {features});
  require_attention_mask(stack[9], stack[12], query, stack[4].toInt());
}

void encoder_layer(const Stack& stack) {
  const at::Tensor& input = stack[0].toTensor();
  const int64_t features = stack[1].toInt();
  require_sequences(input, features, stack[2].toInt());
  require_sizes(stack, 3, {3 * features, features});
  require_sizes(stack, 4, {3 * features});
  require_sizes(stack, 5, {features, features});
  for (const size_t i : {6, 10, 11, 12, 13, 17}) require_sizes(stack, i, {features});
  TORCH_CHECK_VALUE(stack[15].toTensor().dim() == 1, "a bias has one dimension");
  const int64_t inner = stack[15].toTensor().size(0);
  require_sizes(stack, 14, {inner, features});
  require_sizes(stack, 16, {features, inner});
  require_attention_mask(stack[18], stack[19], input, stack[2].toInt());
}

// Every item in [0, end), or equal to exempt.
template <typename T>
void require_items(const at::Tensor& indices, int64_t end, int64_t exempt) {
  const at::Tensor dense = indices.contiguous();
  const T* const data = dense.const_data_ptr<T>();
  const bool fits = std::all_of(data, data + dense.numel(), [&](T index) {
    return (index >= 0 && index < end) || index == exempt;
  });
  TORCH_CHECK_INDEX(fits, "an index is outside of [0, ", end, ")");
}

void require_indices(const at::Tensor& indices, int64_t end, int64_t exempt = 0) {
  if (end == 0) TORCH_CHECK_INDEX(indices.numel() == 0, "an index into nothing");
  if (end == 0) return;
  switch (indices.scalar_type()) {
    case at::kLong:
      return require_items<int64_t>(indices, end, exempt);
    case at::kInt:
      return require_items<int32_t>(indices, end, exempt);
    case at::kByte:
      return require_items<uint8_t>(indices, end, exempt);
    default:
      TORCH_CHECK_TYPE(false, "indices must be int64, int32 or uint8");
  }
}

// Gradient and input of a pooling over the last dimensions agree in the others.
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

// The gradient of a padding: the input's sizes and what was added on both sides.
template <int64_t kDimensions>
void pad_backward(const Stack& stack) {
  pool_backward<kDimensions>(stack);
  const at::Tensor& gradient = stack[0].toTensor();
  const at::Tensor& input = stack[1].toTensor();
  const auto padding = stack[2].toDimVector();
  TORCH_CHECK_VALUE(padding.size() == 2 * kDimensions, "padding has two numbers a dimension");
  for (int64_t i = 1; i <= kDimensions; ++i) {
    const auto at = static_cast<size_t>(2 * (i - 1));
    TORCH_CHECK_VALUE(gradient.size(-i) == input.size(-i) + padding[at] + padding[at + 1],
                      "the gradient's sizes are not those of the padded input");
  }
}

// [batch, channels, the grid's space].
void grid_sampler_backward(const Stack& stack) {
  const at::Tensor& gradient = stack[0].toTensor();
  const at::Tensor& input = stack[1].toTensor();
  const at::Tensor& grid = stack[2].toTensor();
  bool fits = input.dim() >= 4 && grid.dim() == input.dim() && gradient.dim() == input.dim() &&
              gradient.size(0) == grid.size(0) && gradient.size(1) == input.size(1);
  for (int64_t i = 2; fits && i < input.dim(); ++i) fits = gradient.size(i) == grid.size(i - 1);
  TORCH_CHECK_VALUE(fits, "the gradient's sizes are not those of the sampled grid");
}

void cdist_backward(const Stack& stack) {
  const at::Tensor& a = stack[1].toTensor();
  const at::Tensor& b = stack[2].toTensor();
  TORCH_CHECK_VALUE(a.dim() >= 2 && b.dim() >= 2, "cdist takes two dimensions or more");
  at::DimVector sizes = at::infer_size_dimvector(a.sizes().slice(0, a.sizes().size() - 2),
                                                 b.sizes().slice(0, b.sizes().size() - 2));
  sizes.push_back(a.size(-2));
  sizes.push_back(b.size(-2));
  TORCH_CHECK_VALUE(stack[0].toTensor().sizes() == sizes && stack[4].toTensor().sizes() == sizes,
                    "gradient and distances must be ", at::IntArrayRef(sizes));
}

// v, and of each of the others one number an index of v's dimension dim, the first or the last.
void require_weight_norm(const at::Tensor& v, int64_t dim, at::ArrayRef<at::Tensor> others) {
  TORCH_CHECK_VALUE(v.dim() >= 1 && v.numel() > 0 && (dim == 0 || dim == v.dim() - 1),
                    "weights are normalised along their first or last dimension");
  for (const at::Tensor& other : others) {
    TORCH_CHECK_VALUE(other.numel() == v.size(dim), "norms must have ", v.size(dim), " elements");
  }
}

void weight_norm(const Stack& stack) {
  require_weight_norm(stack[0].toTensor(), stack[2].toInt(), {stack[1].toTensor()});
}

void weight_norm_backward(const Stack& stack) {
  require_same_sizes(stack, 0, 1);
  require_weight_norm(stack[1].toTensor(), stack[4].toInt(),
                      {stack[2].toTensor(), stack[3].toTensor()});
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

// Dimensions of the input, each once, counted from 0; one of ATen's three ways to normalise.
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

void nll_loss_backward(const Stack& stack) {
  const at::Tensor& input = stack[1].toTensor();
  TORCH_CHECK_VALUE(input.dim() >= 1, "the input has no classes");
  const int64_t classes = input.size(input.dim() == 1 ? 0 : 1);
  require_indices(stack[2].toTensor(), classes, stack[5].toInt());
}

// Counting how often each index occurs writes at the index unchecked.
void embedding_dense_backward(const Stack& stack) {
  if (stack[4].toBool()) require_indices(stack[1].toTensor(), stack[2].toInt());
}

// Rows that no group has would stay uninitialised.
void grouped_mm(const Stack& stack) {
  const at::Tensor& self = stack[0].toTensor();
  const at::Tensor& other = stack[1].toTensor();
  if (!stack[2].isTensor()) return;
  const at::Tensor& ends = stack[2].toTensor();
  TORCH_CHECK_VALUE(self.dim() >= 2 && other.dim() >= 2 && ends.dim() == 1 && ends.numel() > 0 &&
                        ends.scalar_type() == at::kInt,
                    "grouped_mm takes matrices and the ends of groups as int32");
  const int64_t grouped = self.dim() == 3    ? other.size(-1)
                          : other.dim() == 3 ? self.size(0)
                                             : self.size(1);
  const at::Tensor dense = ends.contiguous();
  const auto* const data = dense.const_data_ptr<int32_t>();
  const bool ascend = data[0] >= 0 && std::is_sorted(data, data + dense.numel());
  TORCH_CHECK_INDEX(ascend && data[dense.numel() - 1] == grouped, "the groups must ascend to ",
                    grouped);
}

struct Row {
  std::string_view op;
  Guard guard;
};

// Sorted.
constexpr auto kRows = std::to_array<Row>({
    {"aten::_adaptive_avg_pool2d_backward", pool_backward<2>},
    {"aten::_adaptive_avg_pool3d_backward", pool_backward<3>},
    {"aten::_batch_norm_no_update", channels<4>},
    {"aten::_batch_norm_with_update", channels<4>},
    {"aten::_batch_norm_with_update_functional", channels<4>},
    {"aten::_cdist_backward", cdist_backward},
    {"aten::_fft_c2c", fft},
    {"aten::_fft_c2r", fft_c2r},
    {"aten::_fft_r2c", fft_r2c},
    {"aten::_grouped_mm", grouped_mm},
    {"aten::_log_softmax_backward_data", same_sizes<0, 1>},
    {"aten::_native_batch_norm_legit", channels<4>},
    {"aten::_native_batch_norm_legit.no_stats", channels<2>},
    {"aten::_native_batch_norm_legit_functional", channels<4>},
    {"aten::_native_batch_norm_legit_no_training", channels<4>},
    {"aten::_native_multi_head_attention", native_attention},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", flash_attention},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", flash_attention_backward},
    {"aten::_softmax_backward_data", same_sizes<0, 1>},
    {"aten::_transformer_encoder_layer_fwd", encoder_layer},
    {"aten::_weight_norm_interface", weight_norm},
    {"aten::_weight_norm_interface_backward", weight_norm_backward},
    {"aten::adaptive_max_pool2d_backward", max_pool_backward<2, 2>},
    {"aten::adaptive_max_pool3d_backward", max_pool_backward<3, 2>},
    {"aten::avg_pool2d_backward", pool_backward<2>},
    {"aten::avg_pool3d_backward", pool_backward<3>},
    {"aten::batch_norm", require_no_unsaid_change},
    {"aten::embedding_dense_backward", embedding_dense_backward},
    {"aten::grid_sampler_2d_backward", grid_sampler_backward},
    {"aten::grid_sampler_3d_backward", grid_sampler_backward},
    {"aten::gru.input", recurrent<3>},
    {"aten::lstm.input", lstm},
    {"aten::max_pool2d_with_indices_backward", max_pool_backward<2, 7>},
    {"aten::max_pool3d_with_indices_backward", max_pool_backward<3, 7>},
    {"aten::native_batch_norm", batch_norm},
    {"aten::native_batch_norm_backward", native_batch_norm_backward},
    {"aten::native_layer_norm_backward", native_layer_norm_backward},
    {"aten::nll_loss2d_backward", nll_loss_backward},
    {"aten::nll_loss_backward", nll_loss_backward},
    {"aten::reflection_pad1d_backward", pad_backward<1>},
    {"aten::reflection_pad2d_backward", pad_backward<2>},
    {"aten::reflection_pad3d_backward", pad_backward<3>},
    {"aten::replication_pad1d_backward", pad_backward<1>},
    {"aten::replication_pad2d_backward", pad_backward<2>},
    {"aten::replication_pad3d_backward", pad_backward<3>},
    {"aten::rnn_relu.input", recurrent<1>},
    {"aten::rnn_tanh.input", recurrent<1>},
    {"aten::scaled_dot_product_attention", no_dropout<4>},
    {"aten::unfold_backward", unfold_backward},
});

static_assert(std::is_sorted(kRows.begin(), kRows.end(),
                             [](const Row& a, const Row& b) { return a.op < b.op; }));

}  // namespace

std::vector<std::string_view> guarded_operators() {
  std::vector<std::string_view> names;
  for (const Row& row : kRows) names.push_back(row.op);
  return names;
}

Guard guard_of(std::string_view op) {
  const auto* row =
      std::lower_bound(kRows.begin(), kRows.end(), op,
                       [](const Row& a, std::string_view name) { return a.op < name; });
  return row != kRows.end() && row->op == op ? row->guard : nullptr;
}

}  // namespace djinn::exec
