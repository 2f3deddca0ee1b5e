// SPDX-License-Identifier: Apache-2.0

// The passes, each in a file of its own. They change the draft, and count what they did.
#pragma once

#include <string>

#include "kernel/srg/pass_report.h"
#include "kernel/srg/rewrite/draft.h"

namespace djinn::srg {

// In the order in which they run: what one makes, the next ones look for.

// Copies into zeros of another dtype become aten::_to_copy.
[[nodiscard]] PassReport rewrite_casts(Draft& draft);
// Products with a constant matrix become djinn::linear_rows(input, weight, bias, turned), those of
// groups of rows djinn::grouped_rows(input, weights, ends).
[[nodiscard]] PassReport rewrite_linear(Draft& draft);
// Lookups in weights that are int8 become djinn::embedding_rows(weight, indices, dtype).
[[nodiscard]] PassReport rewrite_embeddings(Draft& draft);
// Those of one value become djinn::linears(input, weights, biases, turned), up to four.
[[nodiscard]] PassReport rewrite_linears(Draft& draft);
// Composed root mean square norms become djinn::rms_norm(x, weight, epsilon, from_one,
// contiguous).
[[nodiscard]] PassReport rewrite_norms(Draft& draft);
// Activations and the products behind them become djinn::gate(x, factor, activation,
// factor_first).
[[nodiscard]] PassReport rewrite_gates(Draft& draft);
// Rotary position embeddings become djinn::rope(x, cos, sin).
[[nodiscard]] PassReport rewrite_ropes(Draft& draft);
// Attention but for causal prompts' becomes djinn::attend(query, key, value, mask, scale, grouped).
[[nodiscard]] PassReport rewrite_attention(Draft& draft);

// Removes views of weights that are int8 which nobody uses now. Gives what still reads such a
// weight otherwise than internal operators do, in a sentence; empty where nothing does.
[[nodiscard]] std::string left_with_forms(Draft& draft);

}  // namespace djinn::srg
