// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/text/charsmap.h"

#include <cstring>

#include "libdjinn-client/text/settings.h"
#include "libdjinn-client/text/unicode.h"

namespace djinn::text {
namespace {

std::optional<std::string> from_base64(std::string_view text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (const char one : text) {
    const size_t digit = kDigits.find(one);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count >= 8) {
      count -= 8;
      out.push_back(static_cast<char>(bits >> count & 0xff));
    }
  }
  return out;
}

// darts-clone's units.
bool has_leaf(uint32_t unit) {
  return (unit >> 8 & 1) == 1;
}
uint32_t value_of(uint32_t unit) {
  return unit & 0x7fffffff;
}
uint32_t label_of(uint32_t unit) {
  return unit & 0x800000ff;
}
uint32_t offset_of(uint32_t unit) {
  return unit >> 10 << ((unit & 0x200) >> 6);
}

}  // namespace

Result<Charsmap> Charsmap::read(std::string_view base64) {
  const auto bytes = from_base64(base64);
  uint32_t trie_bytes = 0;
  if (bytes && bytes->size() >= sizeof trie_bytes) {
    std::memcpy(&trie_bytes, bytes->data(), sizeof trie_bytes);
  }
  if (!bytes || trie_bytes < sizeof(uint32_t) || trie_bytes % sizeof(uint32_t) != 0 ||
      trie_bytes > bytes->size() - sizeof trie_bytes) {
    return malformed("its precompiled_charsmap is none");
  }
  Charsmap map;
  map.trie_.resize(trie_bytes / sizeof(uint32_t));
  std::memcpy(map.trie_.data(), bytes->data() + sizeof trie_bytes, trie_bytes);
  map.texts_ = bytes->substr(sizeof trie_bytes + trie_bytes);
  if (valid_bytes(map.texts_) != map.texts_.size()) {
    return malformed("its precompiled_charsmap is no UTF-8");
  }
  return map;
}

std::optional<std::string_view> Charsmap::replacement(std::string_view part) const {
  uint32_t node = offset_of(trie_[0]);
  for (const char one : part) {
    const auto byte = static_cast<unsigned char>(one);
    if (byte == 0) return std::nullopt;
    node ^= byte;
    if (node >= trie_.size() || label_of(trie_[node]) != byte) return std::nullopt;
    const uint32_t unit = trie_[node];
    node ^= offset_of(unit);
    if (!has_leaf(unit)) continue;
    if (node >= trie_.size()) return std::nullopt;
    const uint32_t begin = value_of(trie_[node]);
    const bool is_inside_character = begin < texts_.size() && is_continuation(texts_[begin]);
    if (begin > texts_.size() || is_inside_character) return std::nullopt;
    const size_t end = texts_.find('\0', begin);
    return std::string_view(texts_).substr(
        begin, end == std::string::npos ? std::string::npos : end - begin);
  }
  return std::nullopt;
}

bool Charsmap::apply(Piece& piece) const {
  const std::string_view text = piece.text;
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = cluster_end(text, at);
    const std::string_view cluster = text.substr(at, end - at);
    const auto whole = cluster.size() < 6 ? replacement(cluster) : std::nullopt;
    if (whole) {
      out += *whole;
    } else {
      for (size_t i = 0; i < cluster.size();) {
        const std::string_view one = cluster.substr(i, character_at(cluster, i).bytes);
        out += replacement(one).value_or(one);
        i += one.size();
      }
    }
    if (out.size() > kPiecesBytesMax) return false;
    at = end;
  }
  piece.text = std::move(out);
  return true;
}

}  // namespace djinn::text
