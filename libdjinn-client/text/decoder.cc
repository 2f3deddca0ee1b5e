// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/text/decoder.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "libdjinn-client/text/decoder_stages.h"
#include "libdjinn-client/text/pre_tokenizer.h"
#include "libdjinn-client/text/unicode.h"

namespace djinn::text {
namespace {

template <typename Stage, typename... Arguments>
Decoder::MakeStage maker(Arguments... arguments) {
  return [=] { return std::make_unique<Stage>(arguments...); };
}

// What is known of a decoder when its file is read. `fuses`: what comes behind it sees one token.
struct Planned {
  Decoder::MakeStage make;
  bool fuses = false;
  Decoder::MakeStage make_of_fused = nullptr;  // the same of one token that comes in parts
  size_t growth = 1;                           // how many times as long a token's text may become
};
using Plan = std::vector<Planned>;

// Published ones make texts shorter.
constexpr size_t kGrowthMax = 256;

Status plan_decoder(const Json& json, Plan& plan);

Status plan_sequence(Settings& settings, Plan& plan) {
  const Json& list = settings.any("decoders");
  if (!list.is_array()) return malformed("its decoder has no list of decoders");
  for (const Json& one : list) DJINN_CHECK(plan_decoder(one, plan));
  return {};
}

Status plan_strip(Settings& settings, Plan& plan) {
  const std::string content = settings.text_or("content", "");
  const uint64_t start = settings.count("start", 0);
  if (count_characters(content) != 1) return malformed("its Strip is not of one character");
  if (settings.count("stop", 0) != 0) return not_known("a Strip of a text's end");
  plan.push_back({maker<TrimStage>(content, start, TrimStage::Of::kEach), false,
                  maker<TrimStage>(content, start, TrimStage::Of::kAll)});
  return {};
}

Status plan_replace(Settings& settings, Plan& plan) {
  DJINN_TRY(auto pattern, Pattern::make(settings.any("pattern"), "decoder"));
  if (pattern.is_regex()) return not_known("a regular expression in its decoder");
  const auto shared = std::make_shared<const Pattern>(std::move(pattern));
  const std::string content = settings.affix_or("content", "");
  plan.push_back({maker<ReplaceStage>(shared, content)});
  const size_t size = shared->literal().size();
  plan.back().growth = std::max<size_t>((content.size() + size - 1) / size, 1);
  return {};
}

Status plan_metaspace(Settings& settings, Plan& plan) {
  DJINN_TRY(const auto metaspace, metaspace_of(settings));
  const bool drops_first = metaspace.scheme != PrependScheme::kNever;
  plan.push_back({maker<MetaspaceStage>(metaspace.replacement, drops_first)});
  return {};
}

Status plan_word_piece(Settings& settings, Plan& plan) {
  const std::string prefix = settings.text_or("prefix", "##");
  plan.push_back({maker<WordPieceStage>(prefix, settings.flag("cleanup", true))});
  return {};
}

Status plan_named(Settings& settings, const std::string& type, Plan& plan) {
  if (type == "Sequence") return plan_sequence(settings, plan);
  if (type == "Strip") return plan_strip(settings, plan);
  if (type == "Replace") return plan_replace(settings, plan);
  if (type == "Metaspace") return plan_metaspace(settings, plan);
  if (type == "WordPiece") return plan_word_piece(settings, plan);
  if (type == "ByteFallback") {
    plan.push_back({maker<ByteFallbackStage>()});
  } else if (type == "Fuse") {
    plan.push_back({nullptr, true});
  } else if (type == "ByteLevel") {
    for (const char* const key : {"add_prefix_space", "trim_offsets", "use_regex"}) {
      settings.pass_over(key);
    }
    plan.push_back({maker<ByteLevelStage>(), true});
  } else if (type == "BPEDecoder") {
    const std::string suffix = settings.text_or("suffix", "</w>");
    if (suffix.empty()) return not_known("a BPEDecoder without a suffix");
    plan.push_back({maker<SuffixStage>(suffix)});
  } else {
    return not_known(settings.name());
  }
  return {};
}

Status plan_decoder(const Json& json, Plan& plan) {
  Settings settings(json, "decoder");
  DJINN_CHECK(plan_named(settings, settings.type(), plan));
  return settings.finish();
}

}  // namespace

Result<Decoder> Decoder::make(const Json& json) {
  Decoder decoder;
  if (json.is_null()) {
    decoder.stages_.push_back(maker<SpacedStage>());
    return decoder;
  }
  Plan plan;
  DJINN_CHECK(plan_decoder(json, plan));
  size_t growth = 1;
  for (const Planned& one : plan) {
    growth *= one.growth;
    if (growth > kGrowthMax) return not_known("a decoder that makes texts so much longer");
  }
  for (size_t i = 0; i < plan.size(); ++i) {
    const Planned& one = plan[i];
    if (one.make) decoder.stages_.push_back(one.make);
    if (!one.fuses || i + 1 == plan.size()) continue;
    // The parts of a fused token are as good as all of it where only its beginning matters.
    if (plan[i + 1].make_of_fused && i + 2 == plan.size()) {
      decoder.stages_.push_back(plan[i + 1].make_of_fused);
      break;
    }
    decoder.stages_.push_back(maker<HoldStage>());
  }
  return decoder;
}

Decoder::Text Decoder::begin() const {
  Text text;
  for (const MakeStage& make : stages_) text.stages_.push_back(make());
  return text;
}

std::string Decoder::Text::pass(std::vector<std::string> tokens, bool is_last) {
  for (const auto& stage : stages_) {
    std::vector<std::string> done;
    for (std::string& token : tokens) stage->take(std::move(token), done);
    if (is_last) stage->finish(done);
    tokens = std::move(done);
  }
  std::string out;
  for (const std::string& one : tokens) out += one;
  return out;
}

std::string Decoder::Text::next(std::string token) {
  return pass({std::move(token)}, false);
}

std::string Decoder::Text::finish() {
  return pass({}, true);
}

}  // namespace djinn::text
