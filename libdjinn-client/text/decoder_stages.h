// SPDX-License-Identifier: Apache-2.0

// The decoders of `tokenizers`, each as a stage of a chain (decoder.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "libdjinn-client/text/decoder.h"
#include "libdjinn-client/text/pattern.h"

namespace djinn::text {

// A stage that makes one token of each.
class EachStage : public DecoderStage {
 public:
  void take(std::string token, std::vector<std::string>& done) final {
    done.push_back(changed(std::move(token)));
  }
  void finish(std::vector<std::string>&) final {}

 protected:
  virtual std::string changed(std::string token) = 0;
};

// No decoder: a space between two.
class SpacedStage final : public EachStage {
 protected:
  std::string changed(std::string token) override;

 private:
  bool is_first_ = true;
};

// Joins all, and gives them at the end.
class HoldStage final : public DecoderStage {
 public:
  void take(std::string token, std::vector<std::string>& done) override;
  void finish(std::vector<std::string>& done) override;

 private:
  std::string all_;
};

// Characters of GPT-2's alphabet to bytes. What is no UTF-8 becomes U+FFFD; what may still become a
// character waits.
class ByteLevelStage final : public DecoderStage {
 public:
  void take(std::string token, std::vector<std::string>& done) override;
  void finish(std::vector<std::string>& done) override;

 private:
  std::string waiting_;
};

// Runs of tokens like <0x0A> to bytes: the whole run, or U+FFFD for each where it is no UTF-8.
class ByteFallbackStage final : public DecoderStage {
 public:
  void take(std::string token, std::vector<std::string>& done) override;
  void finish(std::vector<std::string>& done) override;

 private:
  std::string run_;
};

// Takes up to so many of a character from the beginning of each token, or of all.
class TrimStage final : public EachStage {
 public:
  enum class Of { kEach, kAll };
  TrimStage(std::string character, uint64_t most, Of of)
      : character_(std::move(character)), most_(most), left_(most), of_(of) {}

 protected:
  std::string changed(std::string token) override;

 private:
  std::string character_;
  uint64_t most_;
  uint64_t left_;
  Of of_;
};

class ReplaceStage final : public EachStage {
 public:
  ReplaceStage(std::shared_ptr<const Pattern> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

 protected:
  std::string changed(std::string token) override;

 private:
  std::shared_ptr<const Pattern> pattern_;  // a literal, whose search has no errors
  std::string content_;
};

// The mark becomes a space, or in the first token nothing.
class MetaspaceStage final : public EachStage {
 public:
  MetaspaceStage(std::string mark, bool drops_first)
      : mark_(std::move(mark)), drops_(drops_first) {}

 protected:
  std::string changed(std::string token) override;

 private:
  std::string mark_;
  bool drops_;
};

// A token with the prefix goes on the word before it.
class WordPieceStage final : public EachStage {
 public:
  WordPieceStage(std::string prefix, bool cleans_up)
      : prefix_(std::move(prefix)), cleans_up_(cleans_up) {}

 protected:
  std::string changed(std::string token) override;

 private:
  std::string prefix_;
  bool cleans_up_;
  bool is_first_ = true;
};

// The suffix becomes a space, or in the last token nothing.
class SuffixStage final : public DecoderStage {
 public:
  explicit SuffixStage(std::string suffix) : suffix_(std::move(suffix)) {}
  void take(std::string token, std::vector<std::string>& done) override;
  void finish(std::vector<std::string>& done) override;

 private:
  std::string suffix_;
  std::string waiting_;  // it may be the last
  bool has_waiting_ = false;
};

}  // namespace djinn::text
