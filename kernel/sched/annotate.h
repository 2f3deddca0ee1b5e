// SPDX-License-Identifier: Apache-2.0

// The annotator: fills in what the client left out of a graph's annotations, from operators and how
// they are joined. What the client said stays.
//
//   role         what a node is for: roles.h
//   phase        training if there is a backward operator; decode or prefill if the graph works on
//                a sequence group and takes one token a call or more; else, of each node, vision
//                encoding or decoding, multimodal fusion from where data of several kinds meet on,
//                or forward
//                (image_decoding.h says which nodes decode)
//   residency    state for what writes a sequence group; gradient for what backward operators make
//                and what is made of that; output, else activation
//   modality     of the data that reaches a node: text from embeddings of ids, vision from 2-D and
//                audio from 1-D convolutions, fusion where they meet
//   flops, bytes cost.h's estimates at the symbols' upper bounds
//   criticality  of a value: 255 on the longest path through the graph, by cost; less where there
//                is slack
//
// Annotations steer placement, batching and display. They never change what a graph computes.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernel/srg/graph.h"
#include "kernel/srg/weight_form.h"

namespace djinn::sched {

// What a graph is for, as the scheduler sees it.
enum class Workload : uint8_t {
  kUnknown = 0,
  kTextEncoder,  // text in one pass: embeddings, classification
  kPrefill,      // many tokens into a sequence group: bound by arithmetic
  kDecode,       // one token a row: bound by memory
  kVision,
  kAudio,
  kMultimodal,
  kTraining,
};

[[nodiscard]] std::string_view name_of(Workload workload);  // unknown, text_encoder, prefill, ...

// forms: of the model that the graph runs with. Precondition: verify() passed graph. Linear in its
// size.
void annotate(srg::Graph& graph, const srg::WeightForms& forms = {});

// Precondition: graph is annotated.
[[nodiscard]] Workload classify(const srg::Graph& graph);

}  // namespace djinn::sched
