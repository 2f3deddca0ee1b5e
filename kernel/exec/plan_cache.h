// SPDX-License-Identifier: Apache-2.0

// The recorded plans of one lane: for each program and shape bucket the places of all allocations.
//
//   bucket   each symbol rounded up to a power of two within its range; what fits the bucket's top
//            fits all of it
//   record   a run whose allocations are written down: the rehearsal at the top, or, after a miss,
//            an ordinary run
//   arena    where runs of more allocations than a record may have find their places as they go
//
// The thread count is fixed for a lane, and so is no part of the key.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "kernel/exec/allocator_hook.h"
#include "kernel/srg/graph.h"
#include "kernel/vmu/offset_planner.h"

namespace djinn::exec {

struct Plan {
  using Placements = std::vector<Placement>;

  std::vector<vmu::Lifetime> lifetimes;  // empty until the first record
  // A run that is set aside has its own hold of those that it was begun with. Never null.
  std::shared_ptr<const Placements> placements = std::make_shared<const Placements>();
  uint64_t planned_bytes = 0;
  uint64_t peak_live_bytes = 0;
  uint64_t heap_bytes = 0;   // that its last run took beside its places
  uint64_t aside_bytes = 0;  // with symbols: held beside what was foreseen, when it was recorded
  uint32_t records = 0;
  bool needs_record = true;
  bool in_arena = false;  // of planned_bytes, without places
  bool is_alone = false;  // its runs cannot go on together with others
  uint64_t last_use = 0;

  // Takes a record in. One of the same sequence widens the plan, so that both runs fit; another
  // sequence replaces it.
  void learn(std::vector<vmu::Lifetime> recorded);
  // Forgets its places: an arena of so many bytes serves the next runs.
  void use_arena(uint64_t bytes);
};

// The symbols of the bucket's top. Sequence roles keep past + tokens within the capacity.
[[nodiscard]] std::vector<int64_t> bucket_top(const srg::Graph& graph,
                                              std::span<const int64_t> symbols);

class PlanCache {
 public:
  // The plan of that bucket, made empty if there was none. Keeps at most kPlansMax a program and
  // drops the least recently used.
  Plan& plan(const void* program, const std::vector<int64_t>& bucket);
  // Likewise, if there is one; null: there is none. None is dropped.
  Plan* find(const void* program, const std::vector<int64_t>& bucket);
  // Takes a record into the plan that plan() gave last. Drops the least recently used of the others
  // where all of them would have more than kPlacesMax places.
  void learn(Plan& plan, std::vector<vmu::Lifetime> recorded);
  // Likewise, of a run of too many allocations.
  void use_arena(Plan& plan, uint64_t bytes);
  // The most that kernels of the program held beside its results, of the plans that have a record.
  // Nothing where none has.
  [[nodiscard]] std::optional<uint64_t> aside_bytes(const void* program) const;
  void forget(const void* program);
  // A run of this one is set aside: it is not dropped. null: none is. Precondition: its program is
  // not forgotten meanwhile.
  void keep(const Plan* plan) { kept_ = plan; }
  [[nodiscard]] size_t places() const { return places_; }

 private:
  using Buckets = std::map<std::vector<int64_t>, Plan>;
  void drop_oldest_but(const Plan& kept);

  std::unordered_map<const void*, Buckets> programs_;
  const Plan* kept_ = nullptr;
  size_t places_ = 0;  // of all plans
  uint64_t uses_ = 0;
};

// A decode program has a dozen buckets, one with two free symbols about a hundred; a plan of a
// thousand allocations is 40 KB.
inline constexpr size_t kPlansMax = 128;
// Of all plans of a lane: 32 bytes each, 16 MiB, which are part of what a worker has beside its
// grants. It is two plans of a thousand allocations for each of 256 buckets.
inline constexpr size_t kPlacesMax = size_t{512} << 10;
// The one that learns and the one that is kept fit.
static_assert(2 * Recorder::kAllocationsMax <= kPlacesMax);
static_assert(sizeof(vmu::Lifetime) + sizeof(Placement) == 32);
// A bucket whose runs disagree that often is run by malloc from then on, counted as misses.
inline constexpr uint32_t kRecordsMax = 8;

}  // namespace djinn::exec
