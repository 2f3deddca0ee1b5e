// SPDX-License-Identifier: Apache-2.0

// Completion: scripts that complete verbs, options and live ids in bash, zsh and fish. All that
// they know is the parser's, so that nothing is forgotten. Live ids come from one call of
// djinnctl's own, `completion-ids`, which ends in time: no key press waits for a daemon that does
// not answer.
//
//   argument   what the words after a verb are
#pragma once

#include <span>
#include <string>
#include <vector>

#include "libdjinn-client/client.h"

namespace djinn::ctl {

struct CompletedOption {
  std::vector<std::string> names;   // "-j", "--json"
  std::string what;                 // one line for people
  bool takes_value = false;         // in the next word
  std::vector<std::string> values;  // where they are a closed list
};

struct CompletedVerb {
  enum class Argument { kNone, kModel, kSession, kObject, kPath, kWord };
  std::string name;
  std::string what;  // one line for people
  Argument argument = Argument::kNone;
  std::vector<std::string> words;  // kWord: which
  std::vector<CompletedOption> options;
};

enum class Shell { kBash, kZsh, kFish };

// options: those that every verb has.
[[nodiscard]] std::string completion_script(Shell shell, std::span<const CompletedVerb> verbs,
                                            std::span<const CompletedOption> options);

}  // namespace djinn::ctl
