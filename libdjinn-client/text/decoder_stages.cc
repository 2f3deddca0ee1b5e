// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/text/decoder_stages.h"

#include <array>
#include <charconv>
#include <optional>
#include <string_view>

#include "libdjinn-client/text/byte_characters.h"
#include "libdjinn-client/text/unicode.h"

namespace djinn::text {
namespace {

constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";

void replace_all(std::string& text, std::string_view what, std::string_view by) {
  if (what.empty()) return;
  std::string out;
  size_t end = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, end)) {
    out.append(text, end, at - end);
    out += by;
    end = at + what.size();
  }
  out.append(text, end);
  text = std::move(out);
}

// The most that bytes may go on with a character that begins with `first`, and what its second byte
// may be (Unicode, table 3-7). 0: none begins so.
struct Lead {
  size_t bytes;
  unsigned char second_min;
  unsigned char second_max;
};
Lead lead_of(unsigned char first) {
  if (first < 0x80) return {1, 0, 0};
  if (first < 0xc2 || first > 0xf4) return {0, 0, 0};
  if (first < 0xe0) return {2, 0x80, 0xbf};
  if (first == 0xe0) return {3, 0xa0, 0xbf};
  if (first == 0xed) return {3, 0x80, 0x9f};
  if (first < 0xf0) return {3, 0x80, 0xbf};
  if (first == 0xf0) return {4, 0x90, 0xbf};
  if (first == 0xf4) return {4, 0x80, 0x8f};
  return {4, 0x80, 0xbf};
}

// How many bytes from `at` on are the beginning of a character; whole: all of one.
struct Beginning {
  size_t bytes;
  bool whole;
};
Beginning beginning_at(std::string_view bytes, size_t at) {
  const Lead lead = lead_of(static_cast<unsigned char>(bytes[at]));
  if (lead.bytes <= 1) return {1, lead.bytes == 1};
  size_t count = 1;
  while (count < lead.bytes && at + count < bytes.size()) {
    const auto next = static_cast<unsigned char>(bytes[at + count]);
    const bool fits =
        count == 1 ? next >= lead.second_min && next <= lead.second_max : (next & 0xc0) == 0x80;
    if (!fits) break;
    ++count;
  }
  return {count, count == lead.bytes};
}

// Takes from `bytes` what is decided: whole characters, and U+FFFD for what will be none.
std::string take_characters(std::string& bytes, bool is_end) {
  std::string out;
  size_t at = 0;
  while (at < bytes.size()) {
    const Beginning beginning = beginning_at(bytes, at);
    const bool may_go_on = at + beginning.bytes == bytes.size() &&
                           lead_of(static_cast<unsigned char>(bytes[at])).bytes > beginning.bytes;
    if (!beginning.whole && may_go_on && !is_end) break;
    if (beginning.whole) {
      out.append(bytes, at, beginning.bytes);
    } else {
      out += kReplacementCharacter;
    }
    at += beginning.bytes;
  }
  bytes.erase(0, at);
  return out;
}

// Of <0x0A>.
std::optional<char> fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  std::string_view digits = token.substr(3, 2);
  if (digits.front() == '+') digits.remove_prefix(1);  // a number to Rust
  unsigned byte = 0;
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), byte, 16);
  if (error != std::errc() || end != digits.end()) return std::nullopt;
  return static_cast<char>(byte);
}

// What a tokenizer of English made of text that had been parted at punctuation.
void clean_up(std::string& text) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kParted = {{
      {" .", "."},
      {" ?", "?"},
      {" !", "!"},
      {" ,", ","},
      {" ' ", "'"},
      {" n't", "n't"},
      {" 'm", "'m"},
      {" do not", " don't"},
      {" 's", "'s"},
      {" 've", "'ve"},
      {" 're", "'re"},
  }};
  for (const auto& [parted, joined] : kParted) replace_all(text, parted, joined);
}

}  // namespace

std::string SpacedStage::changed(std::string token) {
  if (!is_first_) token.insert(0, " ");
  is_first_ = false;
  return token;
}

void HoldStage::take(std::string token, std::vector<std::string>&) {
  all_ += token;
}

void HoldStage::finish(std::vector<std::string>& done) {
  done.push_back(std::move(all_));
  all_.clear();
}

void ByteLevelStage::take(std::string token, std::vector<std::string>& done) {
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const Character one = character_at(token, at);
    const auto byte = byte_of_character(one.point);
    if (!byte) {  // an added token in letters of its own
      bytes = token;
      break;
    }
    bytes += static_cast<char>(*byte);
    at += one.bytes;
  }
  waiting_ += bytes;
  done.push_back(take_characters(waiting_, false));
}

void ByteLevelStage::finish(std::vector<std::string>& done) {
  done.push_back(take_characters(waiting_, true));
}

void ByteFallbackStage::take(std::string token, std::vector<std::string>& done) {
  if (const auto byte = fallback_byte(token)) {
    run_ += *byte;
    return;
  }
  finish(done);
  done.push_back(std::move(token));
}

void ByteFallbackStage::finish(std::vector<std::string>& done) {
  if (run_.empty()) return;
  if (valid_bytes(run_) == run_.size()) {
    done.push_back(std::move(run_));
  } else {
    for (size_t i = 0; i < run_.size(); ++i) done.emplace_back(kReplacementCharacter);
  }
  run_.clear();
}

std::string TrimStage::changed(std::string token) {
  if (of_ == Of::kEach) left_ = most_;
  size_t begin = 0;
  while (left_ > 0 && std::string_view(token).substr(begin).starts_with(character_)) {
    begin += character_.size();
    --left_;
  }
  if (begin < token.size()) left_ = 0;
  return token.substr(begin);
}

std::string ReplaceStage::changed(std::string token) {
  std::string out;
  size_t end = 0;
  for (const Range& match : pattern_->find_literal(token)) {
    out.append(token, end, match.begin - end);
    out += content_;
    end = match.end;
  }
  out.append(token, end);
  return out;
}

std::string MetaspaceStage::changed(std::string token) {
  replace_all(token, mark_, drops_ ? "" : " ");
  drops_ = false;
  return token;
}

std::string WordPieceStage::changed(std::string token) {
  if (!is_first_) {
    if (token.starts_with(prefix_)) {
      token.erase(0, prefix_.size());
    } else {
      token.insert(0, " ");
    }
  }
  is_first_ = false;
  if (cleans_up_) clean_up(token);
  return token;
}

void SuffixStage::take(std::string token, std::vector<std::string>& done) {
  if (has_waiting_) {
    replace_all(waiting_, suffix_, " ");
    done.push_back(std::move(waiting_));
  }
  waiting_ = std::move(token);
  has_waiting_ = true;
}

void SuffixStage::finish(std::vector<std::string>& done) {
  if (!has_waiting_) return;
  replace_all(waiting_, suffix_, "");
  done.push_back(std::move(waiting_));
  has_waiting_ = false;
}

}  // namespace djinn::text
