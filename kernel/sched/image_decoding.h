// SPDX-License-Identifier: Apache-2.0

// Which nodes make an image, or a map of one: a picture, the mask or the depth of each pixel.
//
//   image       a result [rows, channels, height, width] of at most four channels, which the last
//               convolution, with what is done to each of its numbers, makes
//   enlarges    a node whose result has more pixels than what it is given: upsampling, a transposed
//               convolution, a shuffle of channels into pixels
//
// A graph that is given no image makes one of a latent, and all of it decodes. Of one that is given
// an image the nodes decode that come behind one that enlarges what is known of it, and the
// convolutions that make the channels that are shuffled into pixels; the others encode.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "kernel/sched/cost.h"
#include "kernel/sched/dataflow.h"
#include "kernel/srg/graph.h"

namespace djinn::sched {

// Of each node. Precondition: verify() passed graph; flow and shapes are of it. Linear in its size.
[[nodiscard]] std::vector<bool> into_image(const srg::Graph& graph, const Dataflow& flow,
                                           std::span<const std::optional<Shape>> shapes);

}  // namespace djinn::sched
