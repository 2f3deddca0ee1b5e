// SPDX-License-Identifier: Apache-2.0

// Recurrent: nn.LSTM, nn.GRU and nn.RNN on padded input. djinnd runs such a network as one
// operator. With a gradient to come, or with draws or projections, it is taken apart here into the
// steps that the CPU takes, and has the bits of the CPU; but for an LSTM's, which oneDNN computes
// there.
#pragma once

#include <optional>
#include <string_view>
#include <tuple>

#include "python/device/recipe.h"

namespace djinn::device {

[[nodiscard]] bool is_recurrent(std::string_view qualified);

// Precondition of these: the stack holds the arguments of such an operator, and no others.

// It draws, or has projections: djinnd refuses it as one operator.
[[nodiscard]] bool needs_parts(const Stack& stack);
// Puts its results in place of its arguments.
void run_in_parts(std::string_view qualified, Stack& stack);

// nn.GRUCell and nn.LSTMCell, which ATen would give fused operators that the CPU has not.
at::Tensor one_gru_cell(const at::Tensor& input, const at::Tensor& hidden,
                        const at::Tensor& input_weight, const at::Tensor& hidden_weight,
                        const std::optional<at::Tensor>& input_bias,
                        const std::optional<at::Tensor>& hidden_bias);
// Gives both states as they are afterwards.
std::tuple<at::Tensor, at::Tensor> one_lstm_cell(const at::Tensor& input, at::TensorList states,
                                                 const at::Tensor& input_weight,
                                                 const at::Tensor& hidden_weight,
                                                 const std::optional<at::Tensor>& input_bias,
                                                 const std::optional<at::Tensor>& hidden_bias);

}  // namespace djinn::device
