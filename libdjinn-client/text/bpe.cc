// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/text/bpe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <queue>
#include <utility>

#include "libdjinn-client/text/slot_steps.h"
#include "libdjinn-client/text/unicode.h"

namespace djinn::text {
namespace {

struct Merge {
  uint32_t rank;
  int32_t made;
};

// By the two ids that it joins.
class Merges {
 public:
  static Result<Merges> make(const std::vector<std::pair<std::string, std::string>>& pairs,
                             const Words& words, size_t prefix_bytes) {
    Merges merges;
    merges.slots_.resize(std::bit_ceil(pairs.size() * 2 + 1));
    SlotSteps steps(pairs.size());
    for (size_t rank = 0; rank < pairs.size(); ++rank) {
      const auto& [left, right] = pairs[rank];
      const auto left_id = words.id_of(left);
      const auto right_id = words.id_of(right);
      const auto made = words.id_of(left + right.substr(std::min(prefix_bytes, right.size())));
      if (!left_id || !right_id || !made || prefix_bytes > right.size()) {
        return malformed("the merge of '" + shown(left) + "' and '" + shown(right) +
                         "' is of words that its vocabulary does not have");
      }
      // Of a pair that is there twice the last counts.
      const uint64_t key = key_of(*left_id, *right_id);
      const size_t at = merges.slot_of(key);
      if (!steps.allow((at - merges.own_slot_of(key)) & (merges.slots_.size() - 1))) {
        return malformed("its merges are of ids that were chosen to take for ever");
      }
      merges.slots_[at] = {key, {static_cast<uint32_t>(rank), *made}};
    }
    return merges;
  }

  [[nodiscard]] const Merge* find(int32_t left, int32_t right) const {
    const Slot& slot = slots_[slot_of(key_of(left, right))];
    return slot.key == kFree ? nullptr : &slot.merge;
  }

 private:
  // No pair's: ids are not negative.
  static constexpr uint64_t kFree = UINT64_MAX;
  struct Slot {
    uint64_t key = kFree;
    Merge merge = {};
  };

  static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  [[nodiscard]] size_t own_slot_of(uint64_t key) const {
    return (key * 0x9e3779b97f4a7c15) >> 32 & (slots_.size() - 1);
  }
  // The slot that has the key, or the free one where it belongs.
  [[nodiscard]] size_t slot_of(uint64_t key) const {
    size_t at = own_slot_of(key);
    while (slots_[at].key != key && slots_[at].key != kFree) at = (at + 1) & (slots_.size() - 1);
    return at;
  }

  std::vector<Slot> slots_;  // a power of two, of which at most half are taken
};

// The symbols of a word, as a list in which neighbours are joined. A word of n symbols takes
// n log n steps, however it is joined.
class Joiner {
 public:
  explicit Joiner(const Merges& merges) : merges_(merges) {}

  void add(int32_t id) {
    const auto at = static_cast<int32_t>(symbols_.size());
    if (at > 0) symbols_.back().next = at;
    symbols_.push_back({id, at - 1, -1, false});
  }

  void join() {
    for (int32_t at = 0; at + 1 < static_cast<int32_t>(symbols_.size()); ++at) consider(at);
    while (!queue_.empty()) {
      const Candidate top = queue_.top();
      queue_.pop();
      Symbol& left = symbol(top.at);
      if (left.is_gone || left.next < 0) continue;
      // Since it was considered, one of the two may have become another.
      const Merge* const merge = merges_.find(left.id, symbol(left.next).id);
      if (merge == nullptr || merge->made != top.made) continue;
      swallow_next(left, top.at, merge->made);
      if (left.previous >= 0) consider(left.previous);
      if (left.next >= 0) consider(top.at);
    }
  }

  void append_to(std::vector<int32_t>& tokens) const {
    for (const Symbol& one : symbols_) {
      if (!one.is_gone) tokens.push_back(one.id);
    }
  }

 private:
  struct Symbol {
    int32_t id;
    int32_t previous;  // -1: none
    int32_t next;      // -1: none
    bool is_gone;
  };
  struct Candidate {
    uint32_t rank;
    int32_t at;
    int32_t made;
    // The first of the queue has the lowest rank, and of those the lowest place.
    bool operator<(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };

  Symbol& symbol(int32_t at) { return symbols_[static_cast<size_t>(at)]; }

  void consider(int32_t at) {
    const Merge* const merge = merges_.find(symbol(at).id, symbol(symbol(at).next).id);
    if (merge != nullptr) queue_.push({merge->rank, at, merge->made});
  }

  void swallow_next(Symbol& left, int32_t at, int32_t made) {
    Symbol& right = symbol(left.next);
    left.id = made;
    left.next = right.next;
    right.is_gone = true;
    if (left.next >= 0) symbol(left.next).previous = at;
  }

  const Merges& merges_;
  std::vector<Symbol> symbols_;
  std::priority_queue<Candidate> queue_;
};

class Bpe final : public Model {
 public:
  struct Options {
    std::string prefix;              // of each symbol but a word's first
    std::string suffix;              // of a word's last symbol
    bool names_unknown;              // else what is unknown is left out
    std::optional<int32_t> unknown;  // none, though it is named: an error where it is needed
    bool fuse_unknown;
    bool byte_fallback;
    bool ignore_merges;
  };

  Bpe(Words vocabulary, Merges merges, Options options)
      : Model(std::move(vocabulary)), merges_(std::move(merges)), options_(std::move(options)) {}

  Status add_tokens(std::string_view word, std::vector<int32_t>& tokens) const override {
    if (options_.ignore_merges) {
      if (const auto id = words().id_of(word)) {
        tokens.push_back(*id);
        return {};
      }
    }
    Joiner joiner(merges_);
    DJINN_CHECK(add_symbols(word, joiner));
    joiner.join();
    joiner.append_to(tokens);
    return {};
  }

 private:
  Status add_symbols(std::string_view word, Joiner& joiner) const {
    bool has_unknown = false;  // that is not added yet, since others may be fused with it
    const auto flush = [&] {
      if (has_unknown) joiner.add(*options_.unknown);
      has_unknown = false;
    };
    for (size_t at = 0; at < word.size();) {
      const uint32_t bytes = character_at(word, at).bytes;
      const std::string symbol = symbol_of(word, at, bytes);
      at += bytes;
      if (const auto id = words().id_of(symbol)) {
        flush();
        joiner.add(*id);
      } else if (!options_.byte_fallback || !add_bytes(symbol, joiner)) {
        if (!options_.names_unknown) continue;
        if (!options_.unknown) return no_unknown_token(word.substr(at - bytes, bytes));
        if (!options_.fuse_unknown) flush();
        has_unknown = true;
      }
    }
    flush();
    return {};
  }

  [[nodiscard]] std::string symbol_of(std::string_view word, size_t at, uint32_t bytes) const {
    std::string symbol(word.substr(at, bytes));
    if (at > 0) symbol.insert(0, options_.prefix);
    if (at + bytes == word.size()) symbol += options_.suffix;
    return symbol;
  }

  // All bytes, or none where one has no token.
  bool add_bytes(std::string_view symbol, Joiner& joiner) const {
    const auto id_of_byte = [&](char byte) { return bytes_[static_cast<unsigned char>(byte)]; };
    if (std::ranges::any_of(symbol, [&](char byte) { return id_of_byte(byte) < 0; })) return false;
    for (const char byte : symbol) joiner.add(id_of_byte(byte));
    return true;
  }

  Merges merges_;
  Options options_;
  const std::array<int32_t, 256> bytes_ = words().byte_tokens();  // of byte_fallback
};

}  // namespace

Result<std::unique_ptr<Model>> make_bpe(Settings& settings, TokenizerFile& file) {
  const Json& dropout = settings.any("dropout");
  if (!dropout.is_null() && dropout != 0.0) {
    return not_known("'dropout', which draws other tokens each time");
  }
  Bpe::Options options;
  options.prefix = settings.affix_or("continuing_subword_prefix", "");
  options.suffix = settings.affix_or("end_of_word_suffix", "");
  options.fuse_unknown = settings.flag("fuse_unk", false);
  options.byte_fallback = settings.flag("byte_fallback", false);
  options.ignore_merges = settings.flag("ignore_merges", false);
  DJINN_TRY(auto words, Words::make(std::move(file.words)));
  const auto unknown = settings.text("unk_token");
  options.names_unknown = unknown.has_value();
  if (unknown) options.unknown = words.id_of(*unknown);
  DJINN_TRY(auto merges, Merges::make(file.merges, words, count_characters(options.prefix)));
  file.merges = {};
  return std::make_unique<Bpe>(std::move(words), std::move(merges), std::move(options));
}

}  // namespace djinn::text
