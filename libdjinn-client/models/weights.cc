// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/models/weights.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace djinn::client {
namespace {

bool has_sizes(const srg::TensorEntry& tensor, const std::vector<srg::Expr>& wanted) {
  return std::ranges::equal(tensor.sizes, wanted, [](uint64_t size, const srg::Expr& expr) {
    return expr.is_constant() && expr.constant >= 0 && size == static_cast<uint64_t>(expr.constant);
  });
}

template <typename Sizes, typename Number>
std::string text_of(const Sizes& sizes, Number number) {
  std::string text;
  for (const auto& size : sizes) {
    text += (text.empty() ? "[" : ", ") + std::to_string(number(size));
  }
  return text.empty() ? "[]" : text + "]";
}

std::optional<int64_t> layer_of(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  int64_t number = 0;
  const auto [end, error] = std::from_chars(name.begin(), name.end(), number);
  if (error == std::errc::result_out_of_range) return INT64_MAX;
  return error == std::errc() && end != name.end() && *end == '.' ? std::optional(number)
                                                                  : std::nullopt;
}

Error differs(const srg::TensorEntry& tensor, const std::vector<srg::Expr>& wanted) {
  const std::string found = text_of(tensor.sizes, [](uint64_t size) { return size; });
  const std::string asked = text_of(wanted, [](const srg::Expr& size) { return size.constant; });
  return {ErrorCode::kShapeMismatch, "The tensor '" + tensor.name + "' has the sizes " + found +
                                         ", and config.json asks for " + asked +
                                         ". Use the config.json that the weights were saved with."};
}

}  // namespace

const srg::TensorEntry* find_tensor(const srg::ModelManifest& manifest, const std::string& name) {
  const auto found = std::ranges::find(manifest.tensors, name, &srg::TensorEntry::name);
  return found == manifest.tensors.end() ? nullptr : &*found;
}

Status check_layers(int64_t layers, const std::string& prefix, const srg::ModelManifest& manifest) {
  const auto refused = [&](const std::string& held) {
    return Error{ErrorCode::kShapeMismatch,
                 "config.json asks for " + std::to_string(layers) + " layers, and the files hold " +
                     held + ". Use the config.json that the weights were saved with."};
  };
  const size_t tensors = manifest.tensors.size();
  if (layers < 0 || static_cast<uint64_t>(layers) > tensors) {
    return refused(std::to_string(tensors) + " tensors in all");
  }
  for (const srg::TensorEntry& tensor : manifest.tensors) {
    const auto layer = layer_of(tensor.name, prefix);
    if (layer && *layer >= layers) return refused("one more, '" + tensor.name + "'");
  }
  return {};
}

Status check_weights(const srg::Graph& graph, const srg::ModelManifest& manifest) {
  for (const srg::Value& value : graph.values) {
    if (value.storage == srg::kLocalStorage) continue;
    const srg::Storage& storage = graph.storages[value.storage];
    if (storage.kind != srg::StorageKind::kWeight) continue;
    const srg::TensorEntry* const tensor = find_tensor(manifest, storage.name);
    if (tensor == nullptr) {
      return Error{ErrorCode::kNotFound, "The files have no tensor '" + storage.name +
                                             "', which config.json asks for. Use the config.json "
                                             "that the weights were saved with."};
    }
    if (!has_sizes(*tensor, value.sizes)) return differs(*tensor, value.sizes);
  }
  return {};
}

Status check_dtype(const ModelConfig& config, DType stored) {
  DJINN_TRY(const std::string old_key, config.text_or("torch_dtype", std::string(name_of(stored))));
  DJINN_TRY(const std::string named, config.text_or("dtype", old_key));
  if (named == name_of(stored)) return {};
  return Error{ErrorCode::kUnsupported,
               "'dtype' of config.json is '" + named + "', and the weights are stored in " +
                   std::string(name_of(stored)) +
                   ". Save the model again in the one that it shall compute in."};
}

}  // namespace djinn::client
