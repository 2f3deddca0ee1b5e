// Completion: scripts that complete verbs, options and live ids in bash, zsh and fish. The verbs
// are those of the parser, so that none is forgotten.
#pragma once

#include <span>
#include <string>

#include "libdjinn-client/client.h"

namespace djinn::ctl {

struct CompletedVerb {
  std::string name;
  std::string what;  // one line for people
};

enum class Shell { kBash, kZsh, kFish };

[[nodiscard]] std::string completion_script(Shell shell, std::span<const CompletedVerb> verbs);

}  // namespace djinn::ctl
