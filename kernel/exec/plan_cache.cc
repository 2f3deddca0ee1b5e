// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/plan_cache.h"

#include <algorithm>
#include <bit>

#include "kernel/base/alignment.h"
#include "kernel/base/assert.h"
#include "kernel/exec/inference.h"

namespace djinn::exec {
namespace {

// Each lifetime gets the larger size, and lasts while either lasts. Events compare only where
// allocations and frees come in the same order. Elsewhere this keeps too many pairs apart, and
// never too few of those that were seen; the replayer checks that, too.
void widen(std::vector<vmu::Lifetime>& known, const std::vector<vmu::Lifetime>& recorded) {
  for (size_t i = 0; i < known.size(); ++i) {
    known[i].bytes = std::max(known[i].bytes, recorded[i].bytes);
    known[i].first = std::min(known[i].first, recorded[i].first);
    known[i].last = std::max(known[i].last, recorded[i].last);
  }
}

int64_t round_up(const srg::Symbol& symbol, int64_t value) {
  if (value <= 0) return value;
  const uint64_t power = std::bit_ceil(static_cast<uint64_t>(value));
  return power > static_cast<uint64_t>(symbol.max) ? symbol.max : static_cast<int64_t>(power);
}

}  // namespace

void Plan::learn(std::vector<vmu::Lifetime> recorded) {
  if (recorded.size() == lifetimes.size()) {
    widen(lifetimes, recorded);
  } else {
    lifetimes = std::move(recorded);
  }
  const vmu::OffsetPlan plan = vmu::plan_offsets(lifetimes, kTensorAlignment);
  DJINN_ASSERT(vmu::check_no_overlap(lifetimes, plan).ok());
  Placements places;
  places.reserve(lifetimes.size());
  for (size_t i = 0; i < lifetimes.size(); ++i) {
    places.push_back({plan.offsets[i], lifetimes[i].bytes});
  }
  placements = std::make_shared<const Placements>(std::move(places));
  planned_bytes = plan.planned_bytes;
  peak_live_bytes = plan.peak_live_bytes;
  needs_record = false;
  is_alone = false;
  ++records;
}

void Plan::use_arena(uint64_t bytes) {
  lifetimes = {};
  placements = std::make_shared<const Placements>();
  in_arena = true;
  planned_bytes = bytes;
  needs_record = false;
  ++records;
}

std::vector<int64_t> bucket_top(const srg::Graph& graph, std::span<const int64_t> symbols) {
  std::vector<int64_t> top;
  for (size_t i = 0; i < symbols.size(); ++i) {
    top.push_back(round_up(graph.symbols[i], symbols[i]));
  }
  return top;
}

Plan& PlanCache::plan(const void* program, const std::vector<int64_t>& bucket) {
  Buckets& buckets = programs_[program];
  auto found = buckets.find(bucket);
  if (found == buckets.end()) {
    if (buckets.size() >= kPlansMax) {
      const auto use_of = [this](const auto& entry) {
        return &entry.second == kept_ ? UINT64_MAX : entry.second.last_use;
      };
      const auto oldest = std::ranges::min_element(buckets, {}, use_of);
      places_ -= oldest->second.placements->size();
      buckets.erase(oldest);
    }
    found = buckets.emplace(bucket, Plan{}).first;
  }
  found->second.last_use = ++uses_;
  return found->second;
}

Plan* PlanCache::find(const void* program, const std::vector<int64_t>& bucket) {
  const auto buckets = programs_.find(program);
  if (buckets == programs_.end()) return nullptr;
  const auto found = buckets->second.find(bucket);
  if (found == buckets->second.end()) return nullptr;
  found->second.last_use = ++uses_;
  return &found->second;
}

void PlanCache::learn(Plan& plan, std::vector<vmu::Lifetime> recorded) {
  DJINN_ASSERT(recorded.size() <= Recorder::kAllocationsMax);
  places_ -= plan.placements->size();
  plan.learn(std::move(recorded));
  places_ += plan.placements->size();
  while (places_ > kPlacesMax) drop_oldest_but(plan);
}

void PlanCache::use_arena(Plan& plan, uint64_t bytes) {
  places_ -= plan.placements->size();
  plan.use_arena(bytes);
}

void PlanCache::drop_oldest_but(const Plan& kept) {
  Buckets* of = nullptr;
  Buckets::iterator oldest;
  for (auto& [program, buckets] : programs_) {
    for (auto at = buckets.begin(); at != buckets.end(); ++at) {
      const Plan& plan = at->second;
      if (&plan == &kept || &plan == kept_ || plan.placements->empty()) continue;
      if (of != nullptr && oldest->second.last_use < plan.last_use) continue;
      of = &buckets;
      oldest = at;
    }
  }
  DJINN_ASSERT(of != nullptr);  // two plans have no more places than all may
  places_ -= oldest->second.placements->size();
  of->erase(oldest);
}

std::optional<uint64_t> PlanCache::aside_bytes(const void* program) const {
  std::optional<uint64_t> most;
  const auto buckets = programs_.find(program);
  if (buckets == programs_.end()) return most;
  for (const auto& [bucket, plan] : buckets->second) {
    if (plan.records > 0) most = std::max(most.value_or(0), plan.aside_bytes);
  }
  return most;
}

void PlanCache::forget(const void* program) {
  const auto found = programs_.find(program);
  if (found == programs_.end()) return;
  for (const auto& [bucket, plan] : found->second) places_ -= plan.placements->size();
  programs_.erase(found);
}

}  // namespace djinn::exec
