// SPDX-License-Identifier: Apache-2.0

// djinnctl completion bash|zsh|fish prints a script that completes verbs, options and live ids.
// Such a script, and no person, calls djinnctl completion-ids KIND, which prints lines of
// "ID<TAB>what it is", and of "NAME<TAB>what it is" for models.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <span>

#include "djinnctl/command_line.h"
#include "djinnctl/completion.h"
#include "djinnctl/others.h"
#include "djinnctl/text.h"
#include "kernel/base/text.h"

namespace djinn::ctl {
namespace {

using Argument = CompletedVerb::Argument;

// The parser shows a closed list as "TEXT:{a,b,c}".
std::vector<std::string> closed_list(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t begin = type.find('{');
  const size_t end = type.find('}');
  if (begin == std::string::npos || end == std::string::npos) return {};
  return CLI::detail::split(type.substr(begin + 1, end - begin - 1), ',');
}

CompletedOption completed(const CLI::Option& option) {
  CompletedOption out;
  for (const std::string& name : option.get_snames()) out.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) out.names.push_back("--" + name);
  out.what = option.get_description();
  out.takes_value = option.get_items_expected_min() > 0;
  out.values = closed_list(option);
  return out;
}

std::vector<CompletedOption> options_of(const CLI::App& app) {
  std::vector<CompletedOption> options;
  for (const CLI::Option* option : app.get_options()) {
    if (option->nonpositional()) options.push_back(completed(*option));
  }
  return options;
}

// Gives the verb's options without --help, which every verb has.
std::vector<CompletedOption> own_options_of(const CLI::App& verb) {
  std::vector<CompletedOption> options = options_of(verb);
  std::erase_if(options, [](const auto& option) { return option.names.back() == "--help"; });
  return options;
}

// Tells the kind of an argument by the name that help gives it.
Argument argument_of(const CLI::Option& positional) {
  const std::string name = positional.get_name();
  if (name == "OBJECT") return Argument::kObject;
  if (name == "MODEL") return Argument::kModel;
  if (name == "SESSION") return Argument::kSession;
  if (name == "PATH" || name == "MODEL_DIR") return Argument::kPath;
  return Argument::kWord;
}

CompletedVerb completed(const CLI::App& app) {
  CompletedVerb verb{app.get_name(), app.get_description(), {}, {}, own_options_of(app)};
  for (const CLI::Option* option : app.get_options()) {
    if (option->nonpositional()) continue;
    verb.argument = argument_of(*option);
    verb.words = closed_list(*option);
  }
  for (const CLI::App* inner : app.get_subcommands({})) {
    verb.argument = Argument::kWord;
    verb.words.push_back(inner->get_name());
    for (CompletedOption& option : own_options_of(*inner)) {
      // Several inner verbs may have one of a name; what it means there, help says.
      const bool is_new = std::ranges::find(verb.options, option.names, &CompletedOption::names) ==
                          verb.options.end();
      if (is_new) verb.options.push_back(std::move(option));
    }
  }
  return verb;
}

bool is_hidden(const CLI::App& verb) {
  return verb.get_group().empty();
}

std::vector<CompletedVerb> completed_verbs_of(const CLI::App& app) {
  std::vector<CompletedVerb> verbs;
  std::vector<std::string> names;
  for (const CLI::App* verb : app.get_subcommands({})) {
    if (is_hidden(*verb)) continue;
    verbs.push_back(completed(*verb));
    names.push_back(verb->get_name());
  }
  const auto help = std::ranges::find(verbs, "help", &CompletedVerb::name);
  if (help != verbs.end()) help->words = names;
  return verbs;
}

Shell shell_named(const std::string& name) {
  if (name == "zsh") return Shell::kZsh;
  return name == "fish" ? Shell::kFish : Shell::kBash;
}

std::string line_of(const ipc::ModelReport& model) {
  return fmt::format("{}\tmodel {}, {}, {}\n", id_text(model.model), showable(model.label),
                     size_text(model.bytes), state_text(model.state));
}

// Gives a line for the model's name, if no other model has that name and each shell takes it as one
// word.
std::string name_line_of(const ipc::ModelReport& model, std::span<const ipc::ModelReport> all) {
  const auto is_plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' || c == '-' ||
           c == '/';
  };
  const bool is_word = !model.label.empty() && model.label.front() != '-' &&
                       std::ranges::all_of(model.label, is_plain);
  if (!is_word || std::ranges::count(all, model.label, &ipc::ModelReport::label) > 1) return "";
  return fmt::format("{}\tmodel {}, {}, {}\n", model.label, id_text(model.model),
                     size_text(model.bytes), state_text(model.state));
}

std::string line_of(const ipc::SessionReport& session) {
  return fmt::format("{}\tsession {} of {}, process {}\n", id_text(session.session),
                     showable(session.client_name), showable(session.owner), session.pid);
}

Status print_ids(const Invocation& invocation, const std::string& kind) {
  DJINN_TRY(const auto client, observe(invocation));
  std::string lines;
  if (kind != "sessions") {
    DJINN_TRY(const auto models, client->models());
    for (const ipc::ModelReport& model : models) {
      lines += line_of(model) + name_line_of(model, models);
    }
  }
  if (kind != "models") {
    DJINN_TRY(const auto sessions, other_sessions(*client));
    for (const ipc::SessionReport& session : sessions) lines += line_of(session);
  }
  return write_out(lines);
}

void add_ids(CommandLine& line) {
  const Verb verb = line.verb("completion-ids", "for completion scripts");
  verb.hide();
  auto kind = std::make_shared<std::string>();
  verb.option("KIND", *kind, "of what").required().one_of({"models", "sessions", "objects"});
  verb.does([kind](const Invocation& invocation) { return print_ids(invocation, *kind); });
}

}  // namespace

void add_completion(CommandLine& line) {
  const Verb verb = line.verb("completion", "print a script for a shell");
  auto shell = std::make_shared<std::string>();
  verb.option("SHELL", *shell, "bash, zsh or fish").required().one_of({"bash", "zsh", "fish"});
  verb.does([&app = line.app(), shell](const Invocation&) {
    return write_out(
        completion_script(shell_named(*shell), completed_verbs_of(app), options_of(app)));
  });
  add_ids(line);
}

}  // namespace djinn::ctl
