// SPDX-License-Identifier: Apache-2.0

// Typed ids and handles. An id of one kind does not compare with, convert to or hash like another.
// invariant: zero is never a valid id (ARCHITECTURE rule 1).
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace djinn {

template <typename Tag>
struct Id {
  uint64_t value = 0;

  [[nodiscard]] constexpr bool valid() const noexcept { return value != 0; }
  friend constexpr auto operator<=>(const Id&, const Id&) noexcept = default;
};

using SessionId = Id<struct SessionTag>;
using ModelId = Id<struct ModelTag>;
using ProgramId = Id<struct ProgramTag>;
using WorkerId = Id<struct WorkerTag>;
using LoadId = Id<struct LoadTag>;

// A slot of a table and the number of its present tenant; the generation grows with each tenant, so
// that a handle to an earlier one is told apart. invariant: a valid handle's generation is not
// zero.
template <typename Tag>
struct Handle {
  uint32_t index = 0;
  uint32_t generation = 0;

  [[nodiscard]] constexpr bool valid() const noexcept { return generation != 0; }
  friend constexpr auto operator<=>(const Handle&, const Handle&) noexcept = default;
};

using RefHandle = Handle<struct RefTag>;            // a storage in a session extent
using SequenceHandle = Handle<struct SequenceTag>;  // a sequence group

}  // namespace djinn

template <typename Tag>
struct std::hash<djinn::Id<Tag>> {
  size_t operator()(djinn::Id<Tag> id) const noexcept { return std::hash<uint64_t>{}(id.value); }
};
