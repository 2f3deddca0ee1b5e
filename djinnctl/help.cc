// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/help.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>

namespace djinn::ctl {
namespace {

// The parser says "SECONDS:FLOAT in [0.1 - 10]" and "TIER:{host,disk}".
std::string value_word(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return type.substr(0, type.find(':'));
}

// Of an option that may stand alone and takes its value behind "=".
std::string choice(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t begin = type.find('{');
  const size_t end = type.find('}');
  if (begin == std::string::npos || end == std::string::npos) return "";
  std::string values = type.substr(begin + 1, end - begin - 1);
  std::ranges::replace(values, ',', '|');
  return "[=" + values + "]";
}

class Formatter : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    if (is_positional) return option->get_name(true, false);
    std::string names;
    const auto add = [&](const std::string& name) { names += (names.empty() ? "" : ", ") + name; };
    for (const std::string& name : option->get_snames()) add("-" + name);
    for (const std::string& name : option->get_lnames()) add("--" + name);
    return names;
  }

  std::string make_option_opts(const CLI::Option* option) const override {
    if (!option->nonpositional()) return "";
    if (option->get_items_expected_min() == 0) return choice(*option);
    return " " + value_word(*option);
  }
};

}  // namespace

std::shared_ptr<CLI::FormatterBase> help_formatter() {
  return std::make_shared<Formatter>();
}

}  // namespace djinn::ctl
