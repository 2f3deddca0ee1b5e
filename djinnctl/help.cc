// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/help.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>

#include "djinnctl/command_line.h"
#include "djinnctl/nearest.h"
#include "kernel/base/wrap.h"

namespace djinn::ctl {
namespace {

// The parser's type name is, for example, "SHARE:FLOAT in [0 - 1]" or "TIER:{host,disk}".
std::string value_word(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return type.substr(0, type.find(':'));
}

// Gives the choices of an option that may stand alone and takes its value behind "=".
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
    if (option->get_items_expected_min() > 0) return " " + value_word(*option);
    const std::string choices = choice(*option);
    const bool may_have_value = choices.empty() && option->get_items_expected_max() > 0;
    return may_have_value ? " [" + value_word(*option) + "]" : choices;
  }

  std::string make_option_desc(const CLI::Option* option) const override {
    return wrapped(option->get_description(), kHelpColumns - get_column_width());
  }
};

// Prints the --help of the verb that the words name.
Status help(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* verb = &app;
  std::string name = app.get_name();
  std::string before;
  for (const std::string& word : words) {
    const auto inner = verb->get_subcommands(
        [&](const CLI::App* one) { return one->get_name() == word && !one->get_group().empty(); });
    if (inner.empty()) return no_such_verb(word, before, verbs_of(*verb));
    verb = inner.front();
    name += ' ' + word;
    before += word + ' ';
  }
  return write_out(verb->get_formatter()->make_help(verb, name, CLI::AppFormatMode::Normal));
}

}  // namespace

std::shared_ptr<CLI::FormatterBase> help_formatter() {
  auto formatter = std::make_shared<Formatter>();
  formatter->label("SUBCOMMAND", "VERB");
  formatter->label("Positionals", "Arguments");
  return formatter;
}

std::vector<std::string> verbs_of(const CLI::App& app) {
  std::vector<std::string> names;
  const auto shown = [](const CLI::App* verb) { return !verb->get_group().empty(); };
  for (const CLI::App* verb : app.get_subcommands(shown)) names.push_back(verb->get_name());
  return names;
}

// What other programs do that somebody looks for here; empty for other words.
std::string done_elsewhere(const std::string& word) {
  if (word == "check") return "'djinnd --check-config' checks the configuration.";
  if (word == "log" || word == "logs") return "'journalctl -u djinnd' shows the service's log.";
  if (word == "list") return "'djinnctl ps' lists models, 'djinnctl sessions' sessions.";
  const bool is_of_service =
      word == "reload" || word == "start" || word == "stop" || word == "restart";
  return is_of_service ? fmt::format("'systemctl {} djinnd' does it, as root.", word) : "";
}

Error no_such_verb(const std::string& word, const std::string& words,
                   const std::vector<std::string>& known) {
  const std::string_view near = nearest(word, known);
  const std::string elsewhere = done_elsewhere(word);
  const std::string guess = !elsewhere.empty() ? ": " + elsewhere
                            : near.empty()     ? "."
                                               : fmt::format("; did you mean '{}{}'?", words, near);
  return {ErrorCode::kInvalidArgument,
          fmt::format("There is no verb '{}{}'{} 'djinnctl {}--help' lists all.", words, word,
                      guess, words)};
}

void add_help(CommandLine& line) {
  const Verb verb = line.verb("help", "what --help prints, of a verb too");
  auto words = std::make_shared<std::vector<std::string>>();
  verb.option("VERB", *words, "the verb");
  verb.does([words, &app = line.app()](const Invocation&) { return help(app, *words); });
}

}  // namespace djinn::ctl
