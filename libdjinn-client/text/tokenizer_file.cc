// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/text/tokenizer_file.h"

#include <optional>

#include "libdjinn-client/text/regex.h"

namespace djinn::text {
namespace {

// Sequences of sequences; published ones have eight levels.
constexpr size_t kDepthMax = 32;

// Hears the events of a file: of a list of words or merges it keeps texts and numbers, of the rest
// it makes JSON values.
class Listener : public nlohmann::json_sax<Json> {
 public:
  explicit Listener(TokenizerFile& file) : file_(file) {}

  [[nodiscard]] const std::optional<Error>& error() const { return error_; }

  bool null() override { return list_ == List::kNone ? add(Json()) : stray(); }
  bool boolean(bool value) override { return list_ == List::kNone ? add(Json(value)) : stray(); }
  bool number_integer(int64_t value) override {
    return list_ == List::kNone ? add(Json(value)) : add_number(static_cast<double>(value));
  }
  bool number_unsigned(uint64_t value) override {
    return list_ == List::kNone ? add(Json(value)) : add_number(static_cast<double>(value));
  }
  bool number_float(double value, const std::string&) override {
    return list_ == List::kNone ? add(Json(value)) : add_number(value);
  }
  bool string(std::string& value) override {
    if (list_ != List::kNone) return add_text(std::move(value));
    return fits(value) && add(Json(std::move(value)));
  }
  bool binary(Json::binary_t&) override { return stray(); }

  bool start_object(size_t) override {
    if (list_ != List::kNone) return stray();
    if (at_model_key("vocab")) return begin(List::kWords, file_.words.empty());
    return open(Json::object());
  }
  bool key(std::string& value) override {
    if (list_ == List::kWords) {
      texts_.assign(1, std::move(value));
    } else {
      keys_.back() = std::move(value);
    }
    return true;
  }
  bool end_object() override {
    if (list_ == List::kNone) return close();
    list_ = List::kNone;
    return true;
  }
  bool start_array(size_t) override {
    if (list_ != List::kNone) {
      if (list_ == List::kWords || ++list_depth_ > 1) return stray();
      texts_.clear();
      scored_ = 0;
      return true;
    }
    if (at_model_key("vocab")) return begin(List::kScores, file_.scores.empty());
    if (at_model_key("merges")) return begin(List::kMerges, file_.merges.empty());
    return open(Json::array());
  }
  bool end_array() override {
    if (list_ == List::kNone) return close();
    if (list_depth_ == 0) {
      list_ = List::kNone;
      return true;
    }
    list_depth_ = 0;
    if (list_ == List::kScores) return (texts_.empty() && scored_ == 1) || stray();
    if (texts_.size() != 2) return stray();
    return keep(file_.merges, {std::move(texts_[0]), std::move(texts_[1])});
  }
  bool parse_error(size_t position, const std::string&, const Json::exception&) override {
    return fail(malformed("it is no JSON at byte " + std::to_string(position)));
  }

 private:
  enum class List { kNone, kWords, kScores, kMerges };

  bool fail(Error error) {
    if (!error_) error_ = std::move(error);
    return false;
  }
  bool stray() { return fail(malformed("its vocabulary or merges are none")); }
  bool too_many(const std::string& what, size_t most) {
    return fail({ErrorCode::kLimitExceeded,
                 "tokenizer.json has more than " + std::to_string(most) + " " + what +
                     ". Another library has to make tokens of text for this model."});
  }
  // A text that is no word: of what a file may have few of, it is one more.
  bool fits(const std::string& value) {
    if (keys_.empty()) return true;
    if (keys_.back() == "type" && ++stages_ > kStagesMax) return too_many("stages", kStagesMax);
    if (keys_.back() != "Regex") return true;
    pattern_bytes_ += value.size();
    if (++patterns_ > kPatternsMax) return too_many("regular expressions", kPatternsMax);
    return pattern_bytes_ <= kPatternBytesMax ||
           too_many("bytes of regular expressions", kPatternBytesMax);
  }
  // One more of a list of words or merges.
  template <typename T>
  bool keep(std::vector<T>& list, T one) {
    constexpr auto kMost = static_cast<size_t>(kTokensMax);
    if (list.size() == kMost) return too_many("words or merges", kMost);
    list.push_back(std::move(one));
    return true;
  }

  bool begin(List list, bool is_first) {
    list_ = list;
    return is_first || stray();
  }

  [[nodiscard]] bool at_model_key(std::string_view key) const {
    return keys_.size() == 2 && keys_[0] == "model" && keys_[1] == key;
  }

  bool add_number(double value) {
    if (texts_.size() != 1) return stray();
    if (list_ == List::kWords) {
      if (value < 0 || value >= static_cast<double>(kTokensMax) ||
          value != static_cast<double>(static_cast<int64_t>(value))) {
        return fail(malformed("an id is no number below " + std::to_string(kTokensMax)));
      }
      if (!keep(file_.words, {std::move(texts_[0]), static_cast<int64_t>(value)})) return false;
    } else if (list_ == List::kScores && list_depth_ == 1) {
      scored_bytes_ += texts_[0].size();
      if (scored_bytes_ > kScoredBytesMax) return too_many("bytes of words", kScoredBytesMax);
      if (!keep(file_.scores, {std::move(texts_[0]), value})) return false;
      ++scored_;
    } else {
      return stray();
    }
    texts_.clear();
    return true;
  }

  bool add_text(std::string&& value) {
    if (list_ == List::kMerges && list_depth_ == 0) return add_legacy_merge(value);
    if (list_ == List::kWords || list_depth_ == 0 || texts_.size() == 2) return stray();
    texts_.push_back(std::move(value));
    return true;
  }

  // "a b", as files had it before merges were pairs.
  bool add_legacy_merge(const std::string& merge) {
    if (merge.starts_with("#version")) return true;
    const size_t gap = merge.find(' ');
    if (gap == std::string::npos || merge.find(' ', gap + 1) != std::string::npos) {
      return fail(malformed("'" + shown(merge) + "' is no merge of two"));
    }
    return keep(file_.merges, {merge.substr(0, gap), merge.substr(gap + 1)});
  }

  // Puts a value where the last key or the innermost list has it, and says where it is now.
  Json* put(Json value) {
    if (open_.empty()) {
      file_.settings = std::move(value);
      return &file_.settings;
    }
    Json& into = *open_.back();
    if (into.is_array()) {
      into.push_back(std::move(value));
      return &into.back();
    }
    Json& place = into[keys_.back()];
    place = std::move(value);
    return &place;
  }
  bool add(Json value) {
    if (++settings_ > kSettingsMax) return too_many("settings", kSettingsMax);
    put(std::move(value));
    return true;
  }
  bool open(Json value) {
    if (++settings_ > kSettingsMax) return too_many("settings", kSettingsMax);
    if (open_.size() >= kDepthMax) return fail(malformed("it is nested too deep"));
    open_.push_back(put(std::move(value)));
    keys_.emplace_back();
    return true;
  }
  bool close() {
    open_.pop_back();
    keys_.pop_back();
    return true;
  }

  TokenizerFile& file_;
  std::vector<Json*> open_;
  std::vector<std::string> keys_;  // of each that is open, the last
  List list_ = List::kNone;
  int list_depth_ = 0;
  int scored_ = 0;           // of the pair that is open
  size_t scored_bytes_ = 0;  // of all
  size_t settings_ = 0;      // values in file_.settings
  size_t stages_ = 0;
  size_t patterns_ = 0;
  size_t pattern_bytes_ = 0;        // of all
  std::vector<std::string> texts_;  // of a word or a merge, so far
  std::optional<Error> error_;
};

}  // namespace

Result<TokenizerFile> read_tokenizer_file(std::string_view json) {
  if (json.size() > kFileBytesMax) {
    return Error{ErrorCode::kLimitExceeded, "tokenizer.json has " + std::to_string(json.size()) +
                                                " bytes, and may have " +
                                                std::to_string(kFileBytesMax) + "."};
  }
  TokenizerFile file;
  Listener listener(file);
  const bool is_read = Json::sax_parse(json.begin(), json.end(), &listener);
  if (listener.error()) return *listener.error();
  if (!is_read || !file.settings.is_object()) return malformed("it is no JSON object");
  return file;
}

}  // namespace djinn::text
