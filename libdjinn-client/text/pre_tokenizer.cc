// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/text/pre_tokenizer.h"

#include <utility>
#include <vector>

#include "libdjinn-client/text/byte_characters.h"
#include "libdjinn-client/text/pattern.h"
#include "libdjinn-client/text/unicode.h"

namespace djinn::text {
namespace {

using MadePreTokenizer = Result<std::unique_ptr<PreTokenizer>>;

// How GPT-2 splits text.
constexpr std::string_view kByteLevelPattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

// Gives each piece without a token to split_one(piece, out), which appends its parts.
template <typename SplitOne>
Status split_each(Pieces& pieces, const SplitOne& split_one) {
  Pieces out;
  out.reserve(pieces.size());
  for (Piece& piece : pieces) {
    if (piece.token >= 0) {
      out.push_back(std::move(piece));
    } else {
      DJINN_CHECK(split_one(piece, out));
    }
  }
  pieces = std::move(out);
  return {};
}

class ByteLevel final : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, std::optional<Regex> regex)
      : add_prefix_space_(add_prefix_space), regex_(std::move(regex)) {}

  Status part(Pieces& pieces, Retries& retries) const override {
    const auto split_one = [&](Piece& piece, Pieces& out) -> Status {
      if (add_prefix_space_ && !piece.text.starts_with(' ')) piece.text.insert(0, " ");
      if (!regex_) {
        out.push_back(std::move(piece));
        return {};
      }
      DJINN_TRY(const auto matches, regex_->find_all(piece.text, retries));
      text::split(piece, matches, Behavior::kIsolated, false, out);
      return {};
    };
    DJINN_CHECK(split_each(pieces, split_one));
    for (Piece& piece : pieces) {
      if (piece.token < 0) piece.text = characters_of_bytes(piece.text);
    }
    return {};
  }

 private:
  bool add_prefix_space_;
  std::optional<Regex> regex_;  // none: words are not split
};

class PatternSplit final : public PreTokenizer {
 public:
  PatternSplit(Pattern pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  Status part(Pieces& pieces, Retries& retries) const override {
    return split_each(pieces, [&](const Piece& piece, Pieces& out) -> Status {
      DJINN_TRY(const auto matches, pattern_.find_all(piece.text, retries));
      text::split(piece, matches, behavior_, invert_, out);
      return {};
    });
  }

 private:
  Pattern pattern_;
  Behavior behavior_;
  bool invert_;
};

// Characters of a class split what they stand between.
class ClassSplit final : public PreTokenizer {
 public:
  ClassSplit(bool (*is_one)(uint32_t point), Behavior behavior)
      : is_one_(is_one), behavior_(behavior) {}

  Status part(Pieces& pieces, Retries&) const override {
    return split_each(pieces, [&](const Piece& piece, Pieces& out) -> Status {
      text::split(piece, matches_of(piece.text, is_one_), behavior_, false, out);
      return {};
    });
  }

 private:
  bool (*is_one_)(uint32_t point);
  Behavior behavior_;
};

// Words, and runs of what is neither word nor space.
class Whitespace final : public PreTokenizer {
 public:
  Status part(Pieces& pieces, Retries&) const override {
    return split_each(pieces, [](const Piece& piece, Pieces& out) -> Status {
      text::split(piece, runs_of(piece.text), Behavior::kRemoved, true, out);
      return {};
    });
  }

 private:
  enum class Kind { kSpace, kWord, kOther };

  static std::vector<Range> runs_of(std::string_view text) {
    std::vector<Range> runs;
    Kind before = Kind::kSpace;
    for (size_t at = 0; at < text.size();) {
      const Character one = character_at(text, at);
      const Kind kind = is_word(one.point)    ? Kind::kWord
                        : is_space(one.point) ? Kind::kSpace
                                              : Kind::kOther;
      if (kind != Kind::kSpace) {
        if (kind != before) runs.push_back({at, at});
        runs.back().end = at + one.bytes;
      }
      before = kind;
      at += one.bytes;
    }
    return runs;
  }
};

class Metaspace final : public PreTokenizer {
 public:
  explicit Metaspace(MetaspaceSettings settings) : settings_(std::move(settings)) {}

  Status part(Pieces& pieces, Retries&) const override {
    return split_each(pieces, [&](Piece& piece, Pieces& out) -> Status {
      mark(piece);
      if (settings_.split) {
        text::split(piece, marks_of(piece.text), Behavior::kMergedWithNext, false, out);
      } else {
        out.push_back(std::move(piece));
      }
      return {};
    });
  }

 private:
  void mark(Piece& piece) const {
    std::string out;
    for (const char byte : piece.text) {
      if (byte == ' ') {
        out += settings_.replacement;
      } else {
        out += byte;
      }
    }
    const bool wants_one = settings_.scheme == PrependScheme::kAlways ||
                           (settings_.scheme == PrependScheme::kFirst && piece.at_start);
    if (wants_one && !out.starts_with(settings_.replacement)) {
      out.insert(0, settings_.replacement);
    }
    piece.text = std::move(out);
  }
  std::vector<Range> marks_of(std::string_view text) const {
    std::vector<Range> marks;
    const std::string& mark = settings_.replacement;
    for (size_t at = text.find(mark); at != std::string_view::npos;
         at = text.find(mark, at + mark.size())) {
      marks.push_back({at, at + mark.size()});
    }
    return marks;
  }

  MetaspaceSettings settings_;
};

class PreTokenizerSequence final : public PreTokenizer {
 public:
  explicit PreTokenizerSequence(std::vector<std::unique_ptr<PreTokenizer>> all)
      : all_(std::move(all)) {}
  Status part(Pieces& pieces, Retries& retries) const override {
    for (const auto& one : all_) DJINN_CHECK(one->split(pieces, retries));
    return {};
  }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> all_;
};

MadePreTokenizer make_byte_level(Settings& settings) {
  const bool add_prefix_space = settings.flag("add_prefix_space", true);
  settings.pass_over("trim_offsets");  // tokens have no offsets here
  std::optional<Regex> regex;
  if (settings.flag("use_regex", true)) {
    DJINN_TRY(regex, Regex::compile(kByteLevelPattern));
  }
  return std::make_unique<ByteLevel>(add_prefix_space, std::move(regex));
}

MadePreTokenizer make_split(Settings& settings) {
  DJINN_TRY(auto pattern, Pattern::make(settings.any("pattern"), "pre-tokenizer"));
  DJINN_TRY(const auto behavior, behavior_named(settings.text_or("behavior", ""), "pre-tokenizer"));
  return std::make_unique<PatternSplit>(std::move(pattern), behavior,
                                        settings.flag("invert", false));
}

MadePreTokenizer make_punctuation(Settings& settings) {
  DJINN_TRY(const auto behavior,
            behavior_named(settings.text_or("behavior", "Isolated"), "pre-tokenizer"));
  return std::make_unique<ClassSplit>(is_punctuation, behavior);
}

MadePreTokenizer make_sequence_of(std::vector<std::unique_ptr<PreTokenizer>> all) {
  return std::make_unique<PreTokenizerSequence>(std::move(all));
}

MadePreTokenizer make_bert_pre_tokenizer() {
  std::vector<std::unique_ptr<PreTokenizer>> both;
  both.push_back(std::make_unique<ClassSplit>(is_space, Behavior::kRemoved));
  both.push_back(std::make_unique<ClassSplit>(is_punctuation, Behavior::kIsolated));
  return make_sequence_of(std::move(both));
}

MadePreTokenizer make_pre_tokenizers(Settings& settings) {
  const Json& list = settings.any("pretokenizers");
  if (!list.is_array()) return malformed("its pre-tokenizer has no list of pretokenizers");
  std::vector<std::unique_ptr<PreTokenizer>> all;
  for (const Json& one : list) {
    DJINN_TRY(auto made, make_pre_tokenizer(one));
    all.push_back(std::move(made));
  }
  return make_sequence_of(std::move(all));
}

MadePreTokenizer make_metaspace(Settings& settings) {
  DJINN_TRY(auto metaspace, metaspace_of(settings));
  return std::make_unique<Metaspace>(std::move(metaspace));
}

MadePreTokenizer make_pre_tokenizer_named(Settings& settings, const std::string& type) {
  if (type == "ByteLevel") return make_byte_level(settings);
  if (type == "Split") return make_split(settings);
  if (type == "Metaspace") return make_metaspace(settings);
  if (type == "Whitespace") return std::make_unique<Whitespace>();
  if (type == "WhitespaceSplit") return std::make_unique<ClassSplit>(is_space, Behavior::kRemoved);
  if (type == "BertPreTokenizer") return make_bert_pre_tokenizer();
  if (type == "Punctuation") return make_punctuation(settings);
  if (type == "Sequence") return make_pre_tokenizers(settings);
  if (type == "Digits") {
    const bool each = settings.flag("individual_digits", false);
    return std::make_unique<ClassSplit>(is_number,
                                        each ? Behavior::kIsolated : Behavior::kContiguous);
  }
  return not_known(settings.name());
}

}  // namespace

Status PreTokenizer::split(Pieces& pieces, Retries& retries) const {
  DJINN_CHECK(part(pieces, retries));
  size_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.text.size();
  if (bytes > kPiecesBytesMax || pieces.size() > kPiecesMax) return too_much(name_);
  return {};
}

Result<std::unique_ptr<PreTokenizer>> make_pre_tokenizer(const Json& json) {
  Settings settings(json, "pre-tokenizer");
  auto made = make_pre_tokenizer_named(settings, settings.type());
  if (made) DJINN_CHECK(settings.finish());
  if (made) (*made)->name_ = settings.name();
  return made;
}

Result<MetaspaceSettings> metaspace_of(Settings& settings) {
  MetaspaceSettings metaspace;
  metaspace.replacement = settings.text_or("replacement", "");
  metaspace.split = settings.flag("split", true);
  const std::string scheme = settings.text_or("prepend_scheme", "always");
  const bool add_prefix_space = settings.flag("add_prefix_space", true);
  settings.pass_over("str_rep");
  if (count_characters(metaspace.replacement) != 1) {
    return malformed("the replacement of its Metaspace is not one character");
  }
  if (scheme == "first") {
    metaspace.scheme = PrependScheme::kFirst;
  } else if (scheme == "never") {
    metaspace.scheme = PrependScheme::kNever;
  } else if (scheme != "always") {
    return not_known("the prepend_scheme '" + shown(scheme) + "'");
  }
  if (!add_prefix_space && metaspace.scheme != PrependScheme::kNever) {
    return malformed("its Metaspace has no prefix space and a prepend_scheme");
  }
  return metaspace;
}

}  // namespace djinn::text
