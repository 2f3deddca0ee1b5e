// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/formed_biases.h"

#include <fmt/format.h>

#include <optional>
#include <variant>
#include <vector>

#include "kernel/base/assert.h"
#include "kernel/exec/convert.h"

namespace djinn::exec {
namespace {

using Ids = std::vector<std::optional<srg::ValueId>>;

// Of an argument that is one value, several, or none.
Ids ids_of(const srg::ArgumentValue& value) {
  if (const auto* one = std::get_if<srg::ValueRef>(&value)) return {one->id};
  if (const auto* several = std::get_if<srg::ValueList>(&value)) return several->ids;
  return {std::nullopt};
}

class FormedBiases {
 public:
  FormedBiases(const AdmittedGraph& program, const WeightTable& weights, const Sample& sample)
      : program_(program), weights_(weights), sample_(sample) {}

  [[nodiscard]] Status check(const srg::Node& node) const {
    const bool is_product = node.op == "djinn::linear_rows" || node.op == "djinn::linears";
    if (!is_product) return {};
    const Ids products = ids_of(node.arguments[1].value), biases = ids_of(node.arguments[2].value);
    DJINN_ASSERT(products.size() == biases.size());
    for (size_t i = 0; i < products.size(); ++i) {
      const Weight* const formed = formed_weight(*products[i]);
      if (formed == nullptr || !biases[i]) continue;
      const ValueShape& bias = sample_.shapes[*biases[i]];
      if (!bias.known || bias.sizes.size() <= 1) continue;
      return Error{ErrorCode::kUnsupported,
                   fmt::format("It adds a bias of {} dimensions to a product with the weight {}, "
                               "which is int8, and such a product takes one of one. Add it in a "
                               "node of its own, or load the model's weights as the files have "
                               "them.",
                               bias.sizes.size(), formed->name.substr(0, 200))};
    }
    return {};
  }

 private:
  [[nodiscard]] const Weight* formed_weight(srg::ValueId id) const {
    const srg::StorageIndex storage = program_.graph.values[id].storage;
    if (storage == srg::kLocalStorage) return nullptr;
    const srg::Storage& root = program_.graph.storages[storage];
    if (root.kind != srg::StorageKind::kWeight) return nullptr;
    const Weight* const weight = weights_.find(root.name);
    return weight->form == srg::WeightForm::kPlain ? nullptr : weight;
  }

  const AdmittedGraph& program_;
  const WeightTable& weights_;
  const Sample& sample_;
};

}  // namespace

Status check_formed_biases(const AdmittedGraph& program, const WeightTable& weights,
                           const Inference& inference) {
  const FormedBiases biases(program, weights, inference.samples[0]);
  for (const srg::Node& node : program.graph.nodes) {
    Status status = biases.check(node);
    if (!status) return located(std::move(status).error(), describe(node));
  }
  return {};
}

}  // namespace djinn::exec
