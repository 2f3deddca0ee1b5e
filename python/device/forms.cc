// SPDX-License-Identifier: Apache-2.0

#include "python/device/forms.h"

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "python/device/storage.h"

namespace djinn::device {
namespace {

// Of models that have any, by their number, which may be another model's in another session.
struct Known {
  std::mutex mutex;
  uint64_t session = 0;
  std::map<uint64_t, std::vector<srg::TensorEntry>> models;  // guarded by mutex, as session is
};

Known& known() {
  static auto* const all = new Known;  // never destroyed: threads may outlive it
  return *all;
}

}  // namespace

bool note_forms(uint64_t model, const srg::ModelManifest& manifest) {
  std::vector<srg::TensorEntry> formed;
  for (const srg::TensorEntry& entry : manifest.tensors) {
    if (entry.form != srg::WeightForm::kPlain) formed.push_back(entry);
  }
  Known& all = known();
  const std::lock_guard lock(all.mutex);
  const uint64_t session = storages().session();
  if (std::exchange(all.session, session) != session) all.models.clear();
  const bool any = !formed.empty();
  if (any) all.models[model] = std::move(formed);
  return any;
}

srg::FormedWeights formed_weights_of(uint64_t model, const srg::Graph& graph) {
  Known& all = known();
  const std::lock_guard lock(all.mutex);
  const auto formed = all.models.find(model);
  if (formed == all.models.end() || all.session != storages().session()) return {};
  return srg::formed_weights(graph, formed->second);
}

}  // namespace djinn::device
