// SPDX-License-Identifier: Apache-2.0

// What a rewritten graph adds to products with weights that are int8.
#pragma once

#include "kernel/base/result.h"
#include "kernel/exec/inference.h"
#include "kernel/exec/program.h"
#include "kernel/executor/executor.h"

namespace djinn::exec {

// No other kernel computes such a product, so a bias that ours does not take is no matter of the
// run: that of a computed value is known by what was inferred alone. Errors: kUnsupported, naming
// the weight.
Status check_formed_biases(const AdmittedGraph& program, const WeightTable& weights,
                           const Inference& inference);

}  // namespace djinn::exec
