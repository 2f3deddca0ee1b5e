// SPDX-License-Identifier: Apache-2.0

// SRG text: a graph as people read and write it. man/djinn-srg.7.scd has the grammar.
//
//   srg 1 "one linear"
//   symbol tokens 1..512 tokens
//   input %x : float32[tokens, 384]
//   weight %w "encoder.weight" : float32[384, 384]
//   %y = aten::linear(%x, %w, none) {role "mlp"}
//   output %y
//
// parse_text(print_text(g)) == g for every graph that verify() passes, to the bit of every double.
#pragma once

#include <string>
#include <string_view>

#include "kernel/base/result.h"
#include "kernel/srg/graph.h"

namespace djinn::srg {

// Any graph, verified or not; what an unverified one leaves open is printed as well as it can be.
[[nodiscard]] std::string print_text(const Graph& graph);

// The graph is not verified. Errors: kMalformed, its message beginning with "line 3:14: ", both
// counted from 1, columns in bytes; kLimitExceeded for a text over limits::kSourceBytes.
Result<Graph> parse_text(std::string_view text);

}  // namespace djinn::srg
