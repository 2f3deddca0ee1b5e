// djinnctl completion bash|zsh|fish: prints a script that completes verbs, options and live ids.
#include "djinnctl/command_line.h"
#include "djinnctl/completion.h"

namespace djinn::ctl {
namespace {

std::vector<CompletedVerb> verbs_of(const CLI::App& app) {
  std::vector<CompletedVerb> verbs;
  for (const CLI::App* verb : app.get_subcommands({})) {
    verbs.push_back({verb->get_name(), verb->get_description()});
  }
  return verbs;
}

Shell shell_named(const std::string& name) {
  if (name == "zsh") return Shell::kZsh;
  return name == "fish" ? Shell::kFish : Shell::kBash;
}

}  // namespace

void add_completion(CommandLine& line) {
  auto* const verb = line.app.add_subcommand("completion", "print a script for a shell");
  auto shell = std::make_shared<std::string>();
  verb->add_option("SHELL", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  verb->callback([&line, shell] {
    line.action = [&app = line.app, shell](const Invocation&) {
      return write_out(completion_script(shell_named(*shell), verbs_of(app)));
    };
  });
}

}  // namespace djinn::ctl
