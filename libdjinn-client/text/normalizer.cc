// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/text/normalizer.h"

#include <utility>
#include <vector>

#include "libdjinn-client/text/byte_characters.h"
#include "libdjinn-client/text/charsmap.h"
#include "libdjinn-client/text/pattern.h"
#include "libdjinn-client/text/unicode.h"

namespace djinn::text {
namespace {

using MadeNormalizer = Result<std::unique_ptr<Normalizer>>;

// Keeps the characters that keeps() says so of. A piece whose first character goes is no longer at
// the start of the text.
template <typename Keeps>
void filter(Piece& piece, const Keeps& keeps) {
  std::string kept;
  kept.reserve(piece.text.size());
  for (size_t at = 0; at < piece.text.size();) {
    const Character one = character_at(piece.text, at);
    if (keeps(one.point)) {
      kept.append(piece.text, at, one.bytes);
    } else if (kept.empty()) {
      piece.at_start = false;
    }
    at += one.bytes;
  }
  piece.text = std::move(kept);
}

void lower(std::string& text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Character one = character_at(text, at);
    append_lower(out, one.point);
    at += one.bytes;
  }
  text = std::move(out);
}

class UnicodeForm final : public Normalizer {
 public:
  explicit UnicodeForm(NormalForm form) : form_(form) {}
  Status change(Piece& piece, Retries&) const override {
    piece.text = normalized(piece.text, form_);
    return {};
  }

 private:
  NormalForm form_;
};

class Lowercase final : public Normalizer {
 public:
  Status change(Piece& piece, Retries&) const override {
    lower(piece.text);
    return {};
  }
};

class StripAccents final : public Normalizer {
 public:
  Status change(Piece& piece, Retries&) const override {
    filter(piece, [](uint32_t point) { return !is_mark(point); });
    return {};
  }
};

class StripSpaces final : public Normalizer {
 public:
  StripSpaces(bool left, bool right) : left_(left), right_(right) {}
  Status change(Piece& piece, Retries&) const override {
    size_t begin = 0;
    size_t end = piece.text.size();
    while (left_ && begin < end) {
      const Character one = character_at(piece.text, begin);
      if (!is_space(one.point)) break;
      begin += one.bytes;
    }
    while (right_ && end > begin) {
      const Character one = character_before(piece.text, end);
      if (!is_space(one.point)) break;
      end -= one.bytes;
    }
    if (begin > 0) piece.at_start = false;
    piece.text = piece.text.substr(begin, end - begin);
    return {};
  }

 private:
  bool left_;
  bool right_;
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string text) : text_(std::move(text)) {}
  Status change(Piece& piece, Retries&) const override {
    if (!piece.text.empty()) piece.text.insert(0, text_);
    return {};
  }

 private:
  std::string text_;
};

class Replace final : public Normalizer {
 public:
  Replace(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  Status change(Piece& piece, Retries& retries) const override {
    DJINN_TRY(const auto matches, pattern_.find_all(piece.text, retries));
    if (matches.empty()) return {};
    if (piece.text.size() + matches.size() * content_.size() > kPiecesBytesMax) return too_much();
    std::string out;
    size_t end = 0;
    for (const Range& match : matches) {
      out.append(piece.text, end, match.begin - end);
      out += content_;
      end = match.end;
    }
    out.append(piece.text, end);
    // What replaces several characters counts as the last of them.
    const Range& first = matches.front();
    if (first.begin == 0 && first.end > 0 &&
        (content_.empty() || first.end > character_at(piece.text, 0).bytes)) {
      piece.at_start = false;
    }
    piece.text = std::move(out);
    return {};
  }

 private:
  Pattern pattern_;
  std::string content_;
};

bool is_chinese(uint32_t point) {
  // The last but two begins 0x100 too late, in `tokenizers` too.
  static constexpr Range kRanges[] = {{0x4e00, 0x9fff},   {0x3400, 0x4dbf},   {0x20000, 0x2a6df},
                                      {0x2a700, 0x2b73f}, {0x2b740, 0x2b81f}, {0x2b920, 0x2ceaf},
                                      {0xf900, 0xfaff},   {0x2f800, 0x2fa1f}};
  for (const Range& range : kRanges) {
    if (point >= range.begin && point <= range.end) return true;
  }
  return false;
}

class BertNormalizer final : public Normalizer {
 public:
  struct Options {
    bool clean_text;
    bool handle_chinese_chars;
    bool strip_accents;
    bool lowercase;
  };
  explicit BertNormalizer(Options options) : options_(options) {}

  Status change(Piece& piece, Retries&) const override {
    if (options_.clean_text) clean(piece);
    if (options_.handle_chinese_chars) part_chinese(piece.text);
    if (options_.strip_accents) {
      piece.text = normalized(piece.text, NormalForm::kD);
      filter(piece, [](uint32_t point) { return !is_accent(point); });
    }
    if (options_.lowercase) lower(piece.text);
    return {};
  }

 private:
  static bool is_blank(uint32_t point) {
    return point == '\t' || point == '\n' || point == '\r' || is_space(point);
  }
  static void clean(Piece& piece) {
    filter(piece, [](uint32_t point) {
      if (point == '\t' || point == '\n' || point == '\r') return true;
      return point != 0 && point != 0xfffd && !is_control(point);
    });
    std::string out;
    for (size_t at = 0; at < piece.text.size();) {
      const Character one = character_at(piece.text, at);
      if (is_blank(one.point)) {
        out += ' ';
      } else {
        out.append(piece.text, at, one.bytes);
      }
      at += one.bytes;
    }
    piece.text = std::move(out);
  }
  static void part_chinese(std::string& text) {
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const Character one = character_at(text, at);
      const bool is_one = is_chinese(one.point);
      if (is_one) out += ' ';
      out.append(text, at, one.bytes);
      if (is_one) out += ' ';
      at += one.bytes;
    }
    text = std::move(out);
  }

  Options options_;
};

class ByteCharacters final : public Normalizer {
 public:
  Status change(Piece& piece, Retries&) const override {
    piece.text = characters_of_bytes(piece.text);
    return {};
  }
};

class Mapped final : public Normalizer {
 public:
  explicit Mapped(Charsmap map) : map_(std::move(map)) {}
  Status change(Piece& piece, Retries&) const override {
    return map_.apply(piece) ? Status{} : too_much();
  }

 private:
  Charsmap map_;
};

class NormalizerSequence final : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<std::unique_ptr<Normalizer>> all)
      : all_(std::move(all)) {}
  Status change(Piece& piece, Retries& retries) const override {
    for (const auto& one : all_) DJINN_CHECK(one->normalize(piece, retries));
    return {};
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> all_;
};

MadeNormalizer make_replace(Settings& settings) {
  const Json& pattern = settings.any("pattern");
  auto content = settings.affix_or("content", "");
  DJINN_TRY(auto made, Pattern::make(pattern, "normalizer"));
  return std::make_unique<Replace>(std::move(made), std::move(content));
}

MadeNormalizer make_sequence(Settings& settings) {
  const Json& list = settings.any("normalizers");
  if (!list.is_array()) return malformed("its normalizer has no list of normalizers");
  std::vector<std::unique_ptr<Normalizer>> all;
  for (const Json& one : list) {
    DJINN_TRY(auto made, make_normalizer(one));
    all.push_back(std::move(made));
  }
  return std::make_unique<NormalizerSequence>(std::move(all));
}

MadeNormalizer make_bert(Settings& settings) {
  BertNormalizer::Options options{};
  options.clean_text = settings.flag("clean_text", true);
  options.handle_chinese_chars = settings.flag("handle_chinese_chars", true);
  options.lowercase = settings.flag("lowercase", true);
  options.strip_accents = settings.flag("strip_accents", options.lowercase);
  return std::make_unique<BertNormalizer>(options);
}

MadeNormalizer make_named(Settings& settings, const std::string& type) {
  if (type == "NFC") return std::make_unique<UnicodeForm>(NormalForm::kC);
  if (type == "NFD") return std::make_unique<UnicodeForm>(NormalForm::kD);
  if (type == "NFKC") return std::make_unique<UnicodeForm>(NormalForm::kKC);
  if (type == "NFKD") return std::make_unique<UnicodeForm>(NormalForm::kKD);
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "StripAccents") return std::make_unique<StripAccents>();
  if (type == "ByteLevel") return std::make_unique<ByteCharacters>();
  if (type == "BertNormalizer") return make_bert(settings);
  if (type == "Replace") return make_replace(settings);
  if (type == "Sequence") return make_sequence(settings);
  if (type == "Prepend") return std::make_unique<Prepend>(settings.affix_or("prepend", ""));
  if (type == "Strip") {
    const bool left = settings.flag("strip_left", true);
    return std::make_unique<StripSpaces>(left, settings.flag("strip_right", true));
  }
  if (type == "Precompiled") {
    DJINN_TRY(auto map, Charsmap::read(settings.text_or("precompiled_charsmap", "")));
    return std::make_unique<Mapped>(std::move(map));
  }
  return not_known(settings.name());
}

}  // namespace

Status Normalizer::normalize(Piece& piece, Retries& retries) const {
  DJINN_CHECK(change(piece, retries));
  return piece.text.size() > kPiecesBytesMax ? Status(too_much()) : Status{};
}

Result<std::unique_ptr<Normalizer>> make_normalizer(const Json& json) {
  Settings settings(json, "normalizer");
  auto made = make_named(settings, settings.type());
  if (made) DJINN_CHECK(settings.finish());
  if (made) (*made)->name_ = settings.name();
  return made;
}

}  // namespace djinn::text
