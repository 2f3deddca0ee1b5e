// SPDX-License-Identifier: Apache-2.0

// These are the guards of attention and recurrent networks.
#include <ATen/ExpandUtils.h>

#include <array>

#include "kernel/exec/guard_checks.h"
#include "kernel/exec/guards.h"

namespace djinn::exec {
namespace {

void require_no_dropout(double probability) {
  TORCH_CHECK_VALUE(probability == 0,
                    "Dropout draws random numbers without a seed and an offset. Use "
                    "djinn::bernoulli, or a probability of 0.");
}

// Query, key and value must be [batch, heads, tokens, dim], all of one batch and one dim; equally
// many heads of the query share each of the key.
void require_heads(const Stack& stack, size_t query, size_t key, size_t value) {
  const at::Tensor& q = stack[query].toTensor();
  const at::Tensor& k = stack[key].toTensor();
  TORCH_CHECK_VALUE(q.dim() == 4 && k.dim() == 4, "attention takes four dimensions");
  const bool shares = k.size(1) > 0 && q.size(1) % k.size(1) == 0;
  TORCH_CHECK_VALUE(q.size(0) == k.size(0) && shares && q.size(3) == k.size(3),
                    "query and key differ in batch, heads or dim");
  require_same_sizes(stack, key, value);
}

// Kernels read a row's features one after the other, and divide by the number of rows.
void require_rows(const Stack& stack, size_t first, size_t count) {
  for (size_t i = first; i < first + count; ++i) {
    const at::Tensor& rows = stack[i].toTensor();
    TORCH_CHECK_VALUE(rows.numel() > 0 && (rows.stride(3) == 1 || rows.size(3) == 1), "argument ",
                      i, " must have elements, with a stride of 1 in its last dimension");
  }
}

// The kernel writes a row's features one after the other into a result that lies as the query. Of a
// query whose elements share memory that may be in another order, and some would be left as they
// were.
void require_rows_of_result(const at::Tensor& query) {
  if (query.is_non_overlapping_and_dense() || query.size(3) == 1) return;
  TORCH_CHECK_VALUE(at::infer_dense_strides(query.sizes(), query.strides())[3] == 1,
                    "the query lies so that its result would not have rows. Clone it first.");
}

void flash_attention(const Stack& stack) {
  require_no_dropout(stack[3].toDouble());
  require_heads(stack, 0, 1, 2);
  require_rows(stack, 0, 3);
  require_rows_of_result(stack[0].toTensor());
}

void flash_attention_backward(const Stack& stack) {
  require_no_dropout(stack[6].toDouble());
  require_heads(stack, 1, 2, 3);
  require_rows(stack, 1, 4);
  require_same_sizes(stack, 0, 1);
  require_same_sizes(stack, 4, 1);
  require_sizes(stack, 5, stack[1].toTensor().sizes().slice(0, 3));  // one a row of the query
}

// Kernels share heads by dividing the query's number of heads by the key's, which must not be 0.
void attention(const Stack& stack) {
  require_no_dropout(stack[4].toDouble());
  if (!stack[7].toBool()) return;
  for (const size_t i : {1, 2}) {
    const at::Tensor& shared = stack[i].toTensor();
    TORCH_CHECK_VALUE(shared.dim() >= 3 && shared.size(-3) > 0, "argument ", i,
                      " has no heads to share");
  }
}

// These are the weights of a recurrent network that has `gates` gates.
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
    require_views(input_, 1 - batch_);
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
  // oneDNN reads a bias of any dtype as if it were of the input's.
  void require(const at::Tensor& tensor, at::IntArrayRef sizes) const {
    TORCH_CHECK_VALUE(tensor.sizes() == sizes, "a state or weight is ", tensor.sizes(), ", not ",
                      sizes);
    TORCH_CHECK_VALUE(tensor.scalar_type() == input_.scalar_type(), "a state or weight is ",
                      tensor.scalar_type(), ", and the input ", input_.scalar_type());
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

// The input must be [batch, tokens, features], none of them 0: scores of an empty input stay
// uninitialised.
void require_sequences(const at::Tensor& input, int64_t features, int64_t heads) {
  TORCH_CHECK_VALUE(input.dim() == 3 && input.numel() > 0 && input.size(2) == features,
                    "the input must be [batch, tokens, ", features, "], and not empty");
  TORCH_CHECK_VALUE(heads >= 1 && features % heads == 0, features, " features have no ", heads,
                    " heads");
}

// Kernels read weights as if they had the input's type.
void require_type_of_input(const Stack& stack, std::initializer_list<size_t> positions) {
  for (const size_t i : positions) {
    TORCH_CHECK_VALUE(stack[i].toTensor().scalar_type() == stack[0].toTensor().scalar_type(),
                      "argument ", i, " has another type than the input");
  }
}

// The mask must be of one of nn's three types, and have exactly that type's shape.
void require_attention_mask(const c10::IValue& mask, const c10::IValue& type,
                            const at::Tensor& input, int64_t heads) {
  if (!mask.isTensor() || !mask.toTensor().defined()) return;
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
  require_type_of_input(stack, {1, 2, 5, 6, 7, 8});
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
  require_type_of_input(stack, {3, 4, 5, 6, 10, 11, 12, 13, 14, 15, 16, 17});
}

constexpr auto kAttentionGuards = std::to_array<GuardRow>({
    {"aten::_native_multi_head_attention", native_attention},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", flash_attention},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", flash_attention_backward},
    {"aten::_transformer_encoder_layer_fwd", encoder_layer},
    {"aten::gru.input", recurrent<3>},
    {"aten::lstm.input", lstm},
    {"aten::rnn_relu.input", recurrent<1>},
    {"aten::rnn_tanh.input", recurrent<1>},
    {"aten::scaled_dot_product_attention", attention},
});

}  // namespace

std::span<const GuardRow> attention_guards() {
  return kAttentionGuards;
}

}  // namespace djinn::exec
