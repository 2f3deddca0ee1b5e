// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/sessions/sequence_group.h"

#include <fmt/format.h>

#include "kernel/base/assert.h"

namespace djinn::daemon {
namespace {

constexpr uint32_t kHeadsMax = 4096;  // of a layer, and elements of a head: no model has more
constexpr uint32_t kHeadElementsMax = 65536;

constexpr std::array<Transition<GroupPhase>, 3> kPhaseTransitions{{
    {GroupPhase::kAdding, GroupPhase::kLive},
    {GroupPhase::kAdding, GroupPhase::kDropping},
    {GroupPhase::kLive, GroupPhase::kDropping},
}};
constexpr std::array<Transition<GroupPlace>, 4> kPlaceTransitions{{
    {GroupPlace::kMemory, GroupPlace::kSpilling},
    {GroupPlace::kSpilling, GroupPlace::kSpilled},
    {GroupPlace::kSpilling, GroupPlace::kMemory},
    {GroupPlace::kSpilled, GroupPlace::kMemory},
}};

}  // namespace

bool may_follow(GroupPhase from, GroupPhase to) {
  return is_listed(kPhaseTransitions, from, to);
}

bool may_follow(GroupPlace from, GroupPlace to) {
  return is_listed(kPlaceTransitions, from, to);
}

Result<SequenceGroup*> SequenceSlots::make(const ipc::SequenceGeometry& geometry) {
  for (uint32_t index = 0; index < limits::kSequences; ++index) {
    if (groups_.contains(index)) continue;
    uint32_t& generation = generations_[index];
    if (++generation == 0) ++generation;  // zero is never valid
    SequenceGroup& group = groups_[index];
    group.handle = {index, generation};
    DJINN_ASSERT(group.handle.valid());
    group.geometry = geometry;
    return &group;
  }
  return Error{
      ErrorCode::kLimitExceeded,
      fmt::format("The session has {} sequence groups, which is the limit. Drop one first.",
                  limits::kSequences)};
}

SequenceGroup* SequenceSlots::lookup(SequenceHandle handle) {
  const auto found = groups_.find(handle.index);
  return found != groups_.end() && found->second.handle == handle ? &found->second : nullptr;
}

Result<SequenceGroup*> SequenceSlots::find(SequenceHandle handle) {
  SequenceGroup* const group = lookup(handle);
  if (group != nullptr && group->phase != GroupPhase::kDropping) return group;
  const bool stale = handle.index < limits::kSequences && handle.valid() &&
                     handle.generation <= generations_[handle.index];
  if (stale) return Error{ErrorCode::kStaleHandle, "The sequence group was dropped."};
  return Error{ErrorCode::kNotFound, "The session has no such sequence group."};
}

Status check_geometry(const ipc::SequenceGeometry& g) {
  const bool whole = g.rows > 0 && g.layers > 0 && g.kv_heads > 0 && g.head_dim > 0 &&
                     g.capacity > 0 && size_of(g.dtype) > 0;
  if (!whole) {
    return Error{ErrorCode::kInvalidArgument,
                 "A sequence group needs rows, layers, heads, a head dimension, a capacity and a "
                 "dtype."};
  }
  if (g.banks != 1 && g.banks != 2) {
    return Error{ErrorCode::kInvalidArgument,
                 "A sequence group has one bank of rows, or two if they are to be reordered."};
  }
  if (g.rows > limits::kRows || g.layers > limits::kLayers || g.kv_heads > kHeadsMax ||
      g.head_dim > kHeadElementsMax || g.capacity > limits::kSequenceTokens) {
    return Error{ErrorCode::kLimitExceeded,
                 fmt::format("A sequence group has at most {} rows, {} layers and {} tokens a row.",
                             limits::kRows, limits::kLayers, limits::kSequenceTokens)};
  }
  return {};
}

}  // namespace djinn::daemon
