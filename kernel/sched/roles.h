// SPDX-License-Identifier: Apache-2.0

// What the nodes of a graph are for. Names and module paths play no part, only operators and how
// they are joined: a graph that was recorded reads like one that a builder wrote.
//
//   embedding    what makes the first layer's input: of token ids, positions, kinds, or of patches
//   norm         of any kind, with the casts into its precision and out of it
//   rope         rotary embedding: its tables, and their use on queries and keys
//   attention    projections of queries, keys and values, scores, softmax, the product with values,
//                gates, the output's projection
//   kv_append    what puts keys and values into a sequence group
//   recurrence   of a layer that keeps a state: its projections, decay, gates, and the state
//   mask         what says where attention may look, and what it adds for distances
//   router       of a mixture of experts: who computes which token, and with what weight, as it
//                is told to the experts
//   mlp          the products and the activation between two norms; experts, what puts rows in
//                their order and back, gates and sum
//   convolution  with its pooling, and the weights that are made for it
//   activation   one that belongs to no mlp
//   residual     sums that join a layer's result with what went in, and its factors
//   lm_head      what makes a vocabulary's logits of the last hidden state
//   head         what makes any other result of it: pooling, a classifier, a likeness
//   view         no work: the same bytes under other sizes
//
// A cast or copy is for whom it is made: into a wider dtype for who reads it, out of it for who
// made it. Memory that is made to be written has its writer's role. Empty: no pattern fits.
#pragma once

#include <optional>
#include <span>

#include "kernel/sched/cost.h"
#include "kernel/sched/dataflow.h"
#include "kernel/srg/graph.h"

namespace djinn::sched {

// Roles that are there stay. Precondition: verify() passed graph; flow and shapes are of it. Linear
// in its size, but for walks that end at a layer's border.
void name_roles(srg::Graph& graph, const Dataflow& flow,
                std::span<const std::optional<Shape>> shapes);

}  // namespace djinn::sched
