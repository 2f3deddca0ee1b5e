// SPDX-License-Identifier: Apache-2.0

// Configurations and manifests for tests of the builders: small, and as transformers writes them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "ipc/codec/srg_codec.h"
#include "kernel/srg/verify.h"
#include "libdjinn-client/models/directory.h"

namespace djinn::client::testing {

// json: members of an object, which replace those of the base that have the same key.
inline ModelConfig config_of(const std::string& base, const std::string& changes = "") {
  // nlohmann keeps the last of equal keys.
  const std::string text = "{" + base + (changes.empty() ? "" : "," + changes) + "}";
  auto config = ModelConfig::parse(text);
  EXPECT_TRUE(config) << text;
  return config ? *std::move(config) : ModelConfig();
}

inline srg::ModelManifest manifest_of(const std::vector<std::string>& names,
                                      DType dtype = DType::kFloat32) {
  srg::ModelManifest manifest;
  for (const std::string& name : names) {
    srg::TensorEntry entry;
    entry.name = name;
    entry.dtype = dtype;
    manifest.tensors.push_back(entry);
  }
  return manifest;
}

inline std::set<std::string> weights_of(const srg::Graph& graph) {
  std::set<std::string> names;
  for (const srg::Storage& storage : graph.storages) {
    if (storage.kind == srg::StorageKind::kWeight) names.insert(storage.name);
  }
  return names;
}

inline std::vector<std::string> inputs_of(const srg::Graph& graph) {
  std::vector<std::string> names;
  for (const srg::Storage& storage : graph.storages) {
    if (storage.kind == srg::StorageKind::kInput) names.push_back(storage.name);
  }
  return names;
}

inline std::vector<std::string> outputs_of(const srg::Graph& graph) {
  std::vector<std::string> names;
  for (const srg::ValueId id : graph.outputs) names.push_back(graph.values[id].name);
  return names;
}

inline size_t calls_of(const srg::Graph& graph, const std::string& op) {
  return static_cast<size_t>(std::ranges::count(graph.nodes, op, &srg::Node::op));
}

// What every graph of a builder must be: verified, and the same after a journey as bytes.
inline void expect_sound(const srg::Graph& graph) {
  const Status verified = srg::verify(graph);
  EXPECT_TRUE(verified) << (verified ? "" : verified.error().message);
  const auto decoded = ipc::decode_graph(ipc::encode(graph));
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_TRUE(*decoded == graph);
}

}  // namespace djinn::client::testing
