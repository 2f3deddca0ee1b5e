// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/text/post_processor.h"

#include <string>

#include "libdjinn-client/text/tokenizer_file.h"

namespace djinn::text {
namespace {

Result<int32_t> id_from(const Json& json) {
  if (!json.is_number_unsigned() || json.get<uint64_t>() >= static_cast<uint64_t>(kTokensMax)) {
    return malformed("a token of its post-processor has no id");
  }
  return json.get<int32_t>();
}

// ["[SEP]", 102]
Result<int32_t> id_of_pair(const Json& json) {
  if (!json.is_array() || json.size() != 2) {
    return malformed("a token of its post-processor has no id");
  }
  return id_from(json[1]);
}

Result<Frame> make_pair(Settings& settings) {
  settings.pass_over("trim_offsets");  // tokens have no offsets here
  settings.pass_over("add_prefix_space");
  DJINN_TRY(const int32_t before, id_of_pair(settings.any("cls")));
  DJINN_TRY(const int32_t behind, id_of_pair(settings.any("sep")));
  return Frame{{before}, {behind}};
}

// The ids of {"SpecialToken": {"id": NAME, ...}}.
Status add_special(const Json& special, const Json& all, std::vector<int32_t>& ids) {
  const auto name = special.find("id");
  if (name == special.end() || !name->is_string() || !all.is_object()) {
    return malformed("a token of its template has no name");
  }
  const auto found = all.find(name->get<std::string>());
  if (found == all.end() || !found->is_object() || !found->contains("ids") ||
      !found->at("ids").is_array()) {
    return malformed("its template has a token that is none of its special_tokens");
  }
  for (const Json& one : found->at("ids")) {
    DJINN_TRY(const int32_t id, id_from(one));
    ids.push_back(id);
  }
  return {};
}

Result<Frame> make_template(Settings& settings) {
  settings.pass_over("pair");  // of two texts
  const Json& single = settings.any("single");
  const Json& special = settings.any("special_tokens");
  if (!single.is_array()) return malformed("its template has no list 'single'");
  Frame frame;
  int texts = 0;
  for (const Json& one : single) {
    if (one.is_object() && one.contains("Sequence")) {
      const Json& which = one.at("Sequence");
      if (!which.is_object() || which.value("id", Json()) != "A") {
        return malformed("its template for one text has another");
      }
      ++texts;
    } else if (one.is_object() && one.contains("SpecialToken")) {
      DJINN_CHECK(
          add_special(one.at("SpecialToken"), special, texts == 0 ? frame.before : frame.behind));
    } else {
      return malformed("its template has a part that is neither text nor token");
    }
  }
  if (texts != 1) return not_known("a template that does not have the text once");
  return frame;
}

bool has_no_tokens(const Json& json) {
  return Settings(json, "post-processor").type() == "ByteLevel";
}

// To `tokenizers` what a template made is several texts, each of which the next one frames.
Result<Frame> make_sequence_of_frames(Settings& settings) {
  const Json& list = settings.any("processors");
  if (!list.is_array()) return malformed("its post-processor has no list of processors");
  Frame all;
  for (const Json& one : list) {
    const bool is_first = all.before.empty() && all.behind.empty();
    if (!is_first && !has_no_tokens(one)) {
      return not_known("a post-processor behind another one with tokens");
    }
    DJINN_TRY(const Frame frame, make_frame(one));
    if (is_first) all = frame;
  }
  return all;
}

Result<Frame> make_frame_named(Settings& settings, const std::string& type) {
  if (type == "TemplateProcessing") return make_template(settings);
  if (type == "BertProcessing" || type == "RobertaProcessing") return make_pair(settings);
  if (type == "Sequence") return make_sequence_of_frames(settings);
  if (type == "ByteLevel") {
    for (const char* const key : {"add_prefix_space", "trim_offsets", "use_regex"}) {
      settings.pass_over(key);
    }
    return Frame{};
  }
  return not_known(settings.name());
}

}  // namespace

Result<Frame> make_frame(const Json& json) {
  if (json.is_null()) return Frame{};
  Settings settings(json, "post-processor");
  auto made = make_frame_named(settings, settings.type());
  if (made) DJINN_CHECK(settings.finish());
  return made;
}

}  // namespace djinn::text
