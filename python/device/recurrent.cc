// SPDX-License-Identifier: Apache-2.0

#include "python/device/recurrent.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <array>

namespace djinn::device {
namespace {

using Tensors = std::vector<at::Tensor>;

// Holds the weights of one layer in one direction.
struct Weights {
  at::Tensor input, hidden, input_bias, hidden_bias, projection;
};

struct Network {
  explicit Network(const Stack& stack)
      : input(stack[0].toTensor()),
        weights(stack[2].toTensorVector()),
        biases(stack[3].toBool()),
        layers(stack[4].toInt()),
        dropout(stack[5].toDouble()),
        train(stack[6].toBool()),
        directions(stack[7].toBool() ? 2 : 1),
        batch_first(stack[8].toBool()) {}

  [[nodiscard]] size_t plain_parts() const { return biases ? 4 : 2; }
  [[nodiscard]] size_t parts() const {
    const auto cells = static_cast<size_t>(std::max<int64_t>(layers * directions, 1));
    TORCH_CHECK(weights.size() % cells == 0, "Incorrect number of RNN parameters");
    return weights.size() / cells;
  }
  [[nodiscard]] Weights of(int64_t cell) const {
    const size_t each = parts();
    const size_t first = static_cast<size_t>(cell) * each;
    TORCH_CHECK(each == plain_parts() || each == plain_parts() + 1,
                "Incorrect number of RNN parameters");
    Weights found{weights[first], weights[first + 1], {}, {}, {}};
    if (biases) found.input_bias = weights[first + 2];
    if (biases) found.hidden_bias = weights[first + 3];
    if (each > plain_parts()) found.projection = weights[first + each - 1];
    return found;
  }

  at::Tensor input;
  Tensors weights;
  bool biases;
  int64_t layers;
  double dropout;
  bool train;
  int64_t directions;
  bool batch_first;
};

// Holds what a cell keeps from token to token. The first tensor is the cell's output. The steps of
// a cell are those of ATen for the CPU (native/RNN.cpp), in place where those are.
using State = std::array<at::Tensor, 2>;
using Cell = State (*)(const at::Tensor& input, const State& state, const Weights& weights);

at::Tensor of_hidden(const State& state, const Weights& weights) {
  return at::linear(state[0], weights.hidden, weights.hidden_bias);
}

State lstm_cell(const at::Tensor& input, const State& state, const Weights& weights) {
  Tensors gates = of_hidden(state, weights).add_(input).unsafe_chunk(4, 1);
  const at::Tensor in = gates[0].sigmoid_();
  const at::Tensor forget = gates[1].sigmoid_();
  const at::Tensor cell = gates[2].tanh_();
  const at::Tensor out = gates[3].sigmoid_();
  const at::Tensor next = (forget * state[1]).add_(in * cell);
  at::Tensor hidden = out * next.tanh();
  if (weights.projection.defined()) hidden = at::matmul(hidden, weights.projection.t());
  return {hidden, next};
}

State gru_cell(const at::Tensor& input, const State& state, const Weights& weights) {
  const Tensors in = input.unsafe_chunk(3, 1);
  Tensors hidden = of_hidden(state, weights).unsafe_chunk(3, 1);
  const at::Tensor reset = hidden[0].add_(in[0]).sigmoid_();
  const at::Tensor update = hidden[1].add_(in[1]).sigmoid_();
  const at::Tensor next = in[2].add(hidden[2].mul_(reset)).tanh_();
  return {(state[0] - next).mul_(update).add_(next), {}};
}

State tanh_cell(const at::Tensor& input, const State& state, const Weights& weights) {
  return {of_hidden(state, weights).add_(input).tanh(), {}};
}

State relu_cell(const at::Tensor& input, const State& state, const Weights& weights) {
  return {of_hidden(state, weights).add_(input).relu(), {}};
}

struct Kind {
  std::string_view op;
  Cell cell;
  size_t states;
};

constexpr std::array kKinds{
    Kind{"aten::lstm.input", lstm_cell, 2}, Kind{"aten::gru.input", gru_cell, 1},
    Kind{"aten::rnn_tanh.input", tanh_cell, 1}, Kind{"aten::rnn_relu.input", relu_cell, 1}};

// Runs all tokens of one layer in one direction. `state` is updated. Gives [tokens, ...].
at::Tensor run_layer(Cell cell, const at::Tensor& input, State& state, const Weights& weights,
                     bool backwards) {
  Tensors steps = at::linear(input, weights.input, weights.input_bias).unbind(0);
  if (backwards) std::ranges::reverse(steps);
  Tensors outputs;
  for (const at::Tensor& step : steps) {
    state = cell(step, state, weights);
    outputs.push_back(state[0]);
  }
  if (backwards) std::ranges::reverse(outputs);
  return at::stack(outputs, 0);
}

at::Tensor run_layers(Cell cell, const Network& network, std::vector<State>& states) {
  at::Tensor value = network.batch_first ? network.input.transpose(0, 1) : network.input;
  for (int64_t layer = 0; layer < network.layers; ++layer) {
    Tensors both;
    for (int64_t d = 0; d < network.directions; ++d) {
      const int64_t number = layer * network.directions + d;
      State& state = states.at(static_cast<size_t>(number));
      both.push_back(run_layer(cell, value, state, network.of(number), d == 1));
    }
    value = both.size() == 1 ? both[0] : at::cat(both, both[0].dim() - 1);
    const bool drops = network.dropout != 0 && network.train && layer + 1 < network.layers;
    if (drops) value = at::dropout(value, network.dropout, network.train);
  }
  return network.batch_first ? value.transpose(0, 1) : value;
}

std::vector<State> states_before(const Tensors& given, int64_t cells) {
  std::vector<State> states(static_cast<size_t>(cells));
  for (size_t part = 0; part < given.size(); ++part) {
    const Tensors each = given[part].unbind(0);
    TORCH_CHECK(each.size() == states.size(), "Expected a hidden state for each of ", cells,
                " layers and directions, got ", each.size());
    for (size_t i = 0; i < each.size(); ++i) states[i][part] = each[i];
  }
  return states;
}

}  // namespace

bool is_recurrent(std::string_view qualified) {
  return std::ranges::find(kKinds, qualified, &Kind::op) != kKinds.end();
}

bool needs_parts(const Stack& stack) {
  const Network network(stack);
  return (network.train && network.dropout > 0) || network.parts() != network.plain_parts();
}

void run_in_parts(std::string_view qualified, Stack& stack) {
  const Kind& kind = *std::ranges::find(kKinds, qualified, &Kind::op);
  const Network network(stack);
  const Tensors given =
      stack[1].isTensor() ? Tensors{stack[1].toTensor()} : stack[1].toTensorVector();
  TORCH_CHECK(given.size() == kind.states, "Expected ", kind.states, " hidden states, got ",
              given.size());
  std::vector<State> states = states_before(given, network.layers * network.directions);
  const at::Tensor output = run_layers(kind.cell, network, states);
  stack.assign(1, output);
  for (size_t part = 0; part < kind.states; ++part) {
    Tensors after;
    for (const State& state : states) after.push_back(state[part]);
    stack.emplace_back(at::stack(after, 0));
  }
}

at::Tensor one_gru_cell(const at::Tensor& input, const at::Tensor& hidden,
                        const at::Tensor& input_weight, const at::Tensor& hidden_weight,
                        const std::optional<at::Tensor>& input_bias,
                        const std::optional<at::Tensor>& hidden_bias) {
  const at::Tensor ready = at::linear(input, input_weight, input_bias);
  return gru_cell(ready, {hidden, {}},
                  {{}, hidden_weight, {}, hidden_bias.value_or(at::Tensor()), {}})[0];
}

std::tuple<at::Tensor, at::Tensor> one_lstm_cell(const at::Tensor& input, at::TensorList states,
                                                 const at::Tensor& input_weight,
                                                 const at::Tensor& hidden_weight,
                                                 const std::optional<at::Tensor>& input_bias,
                                                 const std::optional<at::Tensor>& hidden_bias) {
  TORCH_CHECK(states.size() == 2, "lstm_cell expects two hidden states");
  const at::Tensor ready = at::linear(input, input_weight, input_bias);
  const State after = lstm_cell(ready, {states[0], states[1]},
                                {{}, hidden_weight, {}, hidden_bias.value_or(at::Tensor()), {}});
  return {after[0], after[1]};
}

}  // namespace djinn::device
