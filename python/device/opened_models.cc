// SPDX-License-Identifier: Apache-2.0

#include "python/device/opened_models.h"

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "python/device/storage.h"

namespace djinn::device {
namespace {

struct Asked {
  std::vector<srg::TensorEntry> formed;
  std::optional<srg::Numerics> numerics;
};

// By the models' numbers, which may be other models' in another session.
struct Known {
  std::mutex mutex;
  uint64_t session = 0;
  std::map<uint64_t, Asked> models;  // guarded by mutex, as session is; of which there is anything
};

Known& known() {
  static auto* const all = new Known;  // never destroyed: threads may outlive it
  return *all;
}

// The mutex is held.
const Asked* find(const Known& all, uint64_t model) {
  const auto asked = all.models.find(model);
  const bool is_known = asked != all.models.end() && all.session == storages().session();
  return is_known ? &asked->second : nullptr;
}

}  // namespace

bool note_opened(const client::OpenedModel& model) {
  Asked asked{{}, model.numerics};
  for (const srg::TensorEntry& entry : model.manifest.tensors) {
    if (entry.form != srg::WeightForm::kPlain) asked.formed.push_back(entry);
  }
  Known& all = known();
  const std::lock_guard lock(all.mutex);
  const uint64_t session = storages().session();
  if (std::exchange(all.session, session) != session) all.models.clear();
  const bool is_formed = !asked.formed.empty();
  if (is_formed || asked.numerics) all.models[model.id.value] = std::move(asked);
  return is_formed;
}

srg::FormedWeights formed_weights_of(uint64_t model, const srg::Graph& graph) {
  Known& all = known();
  const std::lock_guard lock(all.mutex);
  const Asked* const asked = find(all, model);
  return asked != nullptr ? srg::formed_weights(graph, asked->formed) : srg::FormedWeights();
}

std::optional<srg::Numerics> numerics_said_of(uint64_t model) {
  Known& all = known();
  const std::lock_guard lock(all.mutex);
  const Asked* const asked = find(all, model);
  return asked != nullptr ? asked->numerics : std::nullopt;
}

}  // namespace djinn::device
