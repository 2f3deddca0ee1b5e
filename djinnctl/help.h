// SPDX-License-Identifier: Apache-2.0

// Help: how --help looks: an option as the manual writes it, with one word for its value. And the
// verb help, djinnctl help [VERB...], which prints the same.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernel/base/error.h"

namespace CLI {
class App;
class FormatterBase;
}  // namespace CLI

namespace djinn::ctl {

[[nodiscard]] std::shared_ptr<CLI::FormatterBase> help_formatter();

// The names of verbs that help shows.
[[nodiscard]] std::vector<std::string> verbs_of(const CLI::App& app);

// words: what stands before it, each with a space behind.
[[nodiscard]] Error no_such_verb(const std::string& word, const std::string& words,
                                 const std::vector<std::string>& known);

}  // namespace djinn::ctl
