// SPDX-License-Identifier: Apache-2.0

// Whether a directory's configuration and its tensors are of one model. A builder makes a graph of
// the configuration alone, so whatever it says is compared with the files before it is believed.
#pragma once

#include <string>

#include "kernel/base/result.h"
#include "kernel/srg/graph.h"
#include "kernel/srg/load_plan.h"
#include "libdjinn-client/models/directory.h"

namespace djinn::client {

// nullptr: the model has no such tensor.
[[nodiscard]] const srg::TensorEntry* find_tensor(const srg::ModelManifest& manifest,
                                                  const std::string& name);

// Before a graph is built: no more layers than tensors, and no tensor of a layer beyond them; the
// name of a layer's begins with the prefix and its number, from 0. Errors: kShapeMismatch.
Status check_layers(int64_t layers, const std::string& prefix, const srg::ModelManifest& manifest);

// Every weight of the graph is a tensor of the model, of the same sizes. Errors: kNotFound and
// kShapeMismatch, naming the tensor.
Status check_weights(const srg::Graph& graph, const srg::ModelManifest& manifest);

// The dtype that config.json names, if any, is that of the weights: transformers casts what is
// stored in another one. Errors: kUnsupported.
Status check_dtype(const ModelConfig& config, DType stored);

}  // namespace djinn::client
