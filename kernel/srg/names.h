// SPDX-License-Identifier: Apache-2.0

// The stable lower-case names of graph.h's enumerations, in the text form, in logs and in --json.
// Numbers that name nothing, which only an unverified graph has, give "unknown_role" and the like.
#pragma once

#include <optional>
#include <string_view>

#include "kernel/srg/graph.h"

namespace djinn::srg {

[[nodiscard]] std::string_view name_of(SymbolRole role);    // plain, batch, tokens, past, capacity
[[nodiscard]] std::string_view name_of(InputRole role);     // user, token_ids, positions, ...
[[nodiscard]] std::string_view name_of(SequencePart part);  // key, value
[[nodiscard]] std::string_view name_of(Phase phase);        // unknown, forward, prefill, ...
[[nodiscard]] std::string_view name_of(Residency residency);  // unknown, weight, activation, ...
[[nodiscard]] std::string_view name_of(Modality modality);    // unknown, text, vision, ...
[[nodiscard]] std::string_view name_of(Numerics numerics);    // exact, fast, fast-only

// Enum is one of the above.
template <typename Enum>
[[nodiscard]] std::optional<Enum> from_name(std::string_view name);

extern template std::optional<SymbolRole> from_name(std::string_view);
extern template std::optional<InputRole> from_name(std::string_view);
extern template std::optional<SequencePart> from_name(std::string_view);
extern template std::optional<Phase> from_name(std::string_view);
extern template std::optional<Residency> from_name(std::string_view);
extern template std::optional<Modality> from_name(std::string_view);
extern template std::optional<Numerics> from_name(std::string_view);

}  // namespace djinn::srg
