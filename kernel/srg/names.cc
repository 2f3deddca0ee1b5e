// SPDX-License-Identifier: Apache-2.0

#include "kernel/srg/names.h"

#include <array>

namespace djinn::srg {
namespace {

// Holds the names of an enumeration, by number.
template <typename Enum>
struct Table;

template <>
struct Table<SymbolRole> {
  static constexpr std::array<std::string_view, 5> kNames = {"plain", "batch", "tokens", "past",
                                                             "capacity"};
};
template <>
struct Table<InputRole> {
  static constexpr std::array<std::string_view, 4> kNames = {"user", "token_ids", "positions",
                                                             "attention_mask"};
};
template <>
struct Table<SequencePart> {
  static constexpr std::array<std::string_view, 2> kNames = {"key", "value"};
};
template <>
struct Table<Phase> {
  static constexpr std::array<std::string_view, 8> kNames = {
      "unknown",  "forward",         "prefill",         "decode",
      "training", "vision_encoding", "vision_decoding", "multimodal_fusion"};
};
template <>
struct Table<Residency> {
  static constexpr std::array<std::string_view, 6> kNames = {"unknown", "weight",   "activation",
                                                             "state",   "gradient", "output"};
};
template <>
struct Table<Modality> {
  static constexpr std::array<std::string_view, 6> kNames = {"unknown", "text",    "vision",
                                                             "audio",   "tabular", "fusion"};
};
template <>
struct Table<Numerics> {
  static constexpr std::array<std::string_view, 3> kNames = {"exact", "fast", "fast-only"};
};

template <typename Enum>
std::string_view lookup(Enum value, std::string_view otherwise) {
  const auto number = static_cast<size_t>(value);
  return number < Table<Enum>::kNames.size() ? Table<Enum>::kNames[number] : otherwise;
}

}  // namespace

std::string_view name_of(SymbolRole role) {
  return lookup(role, "unknown_role");
}
std::string_view name_of(InputRole role) {
  return lookup(role, "unknown_role");
}
std::string_view name_of(SequencePart part) {
  return lookup(part, "unknown_part");
}
std::string_view name_of(Phase phase) {
  return lookup(phase, "unknown_phase");
}
std::string_view name_of(Residency residency) {
  return lookup(residency, "unknown_residency");
}
std::string_view name_of(Modality modality) {
  return lookup(modality, "unknown_modality");
}
std::string_view name_of(Numerics numerics) {
  return lookup(numerics, "unknown_numerics");
}

template <typename Enum>
std::optional<Enum> from_name(std::string_view name) {
  for (size_t number = 0; number < Table<Enum>::kNames.size(); ++number) {
    if (Table<Enum>::kNames[number] == name) return static_cast<Enum>(number);
  }
  return std::nullopt;
}

template std::optional<SymbolRole> from_name(std::string_view);
template std::optional<InputRole> from_name(std::string_view);
template std::optional<SequencePart> from_name(std::string_view);
template std::optional<Phase> from_name(std::string_view);
template std::optional<Residency> from_name(std::string_view);
template std::optional<Modality> from_name(std::string_view);
template std::optional<Numerics> from_name(std::string_view);

}  // namespace djinn::srg
