#include "djinnctl/completion.h"

#include <fmt/format.h>

#include <string_view>

namespace djinn::ctl {
namespace {

// What the three scripts share; {verbs} differs. Ids come from the daemon, and none if it is away.
constexpr std::string_view kBash = R"sh(# bash completion of djinnctl
_djinnctl_ids() {{
  djinnctl -q -j --timeout 0.1 "$1" 2>/dev/null | grep -o '"id":"[0-9a-f]*"' | cut -d'"' -f4
}}
_djinnctl() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} verb= i
  for ((i = 1; i < COMP_CWORD; i++)); do
    [[ ${{COMP_WORDS[i]}} == -* ]] || {{ verb=${{COMP_WORDS[i]}}; break; }}
  done
  local list="{verbs}"
  case $verb in
    '') [[ $word != -* ]] || list="{options}" ;;
    pin | unpin | unload | evict) list=$(_djinnctl_ids ps) ;;
    cancel | terminate) list=$(_djinnctl_ids sessions) ;;
    show) list=$(_djinnctl_ids ps; _djinnctl_ids sessions) ;;
    completion) list="bash zsh fish" ;;
    load | generate) compopt -o default; list= ;;
    *) list= ;;
  esac
  mapfile -t COMPREPLY < <(compgen -W "$list" -- "$word")
}}
complete -F _djinnctl djinnctl
)sh";

constexpr std::string_view kZsh = R"sh(#compdef djinnctl
_djinnctl_ids() {{
  djinnctl -q -j --timeout 0.1 "$1" 2>/dev/null | grep -o '"id":"[0-9a-f]*"' | cut -d'"' -f4
}}
_djinnctl() {{
  local -a verbs=(
{verbs}  )
  local -a ids
  if (( CURRENT == 2 )); then
    _describe verb verbs
    return
  fi
  case $words[2] in
    pin|unpin|unload|evict) ids=(${{(f)"$(_djinnctl_ids ps)"}}) ;;
    cancel|terminate) ids=(${{(f)"$(_djinnctl_ids sessions)"}}) ;;
    show) ids=(${{(f)"$(_djinnctl_ids ps; _djinnctl_ids sessions)"}}) ;;
    completion) ids=(bash zsh fish) ;;
    load|generate) _files -/; return ;;
  esac
  compadd -a ids
}}
compdef _djinnctl djinnctl
)sh";

constexpr std::string_view kFish = R"sh(# fish completion of djinnctl
function __djinnctl_ids
    djinnctl -q -j --timeout 0.1 $argv 2>/dev/null | string match -ra '(?<="id":")[0-9a-f]+'
end
complete -c djinnctl -f
{verbs}complete -c djinnctl -n '__fish_seen_subcommand_from pin unpin unload evict show' \
    -a '(__djinnctl_ids ps)'
complete -c djinnctl -n '__fish_seen_subcommand_from cancel terminate show' \
    -a '(__djinnctl_ids sessions)'
complete -c djinnctl -n '__fish_seen_subcommand_from completion' -a 'bash zsh fish'
complete -c djinnctl -n '__fish_seen_subcommand_from load generate' \
    -a '(__fish_complete_directories)'
)sh";

constexpr std::string_view kOptions =
    "-H --host -j --json --no-legend --no-pager -q --quiet --timeout --help --version";

std::string bash(std::span<const CompletedVerb> verbs) {
  std::string names;
  for (const CompletedVerb& verb : verbs) names += (names.empty() ? "" : " ") + verb.name;
  return fmt::format(kBash, fmt::arg("verbs", names), fmt::arg("options", kOptions));
}

std::string zsh(std::span<const CompletedVerb> verbs) {
  std::string lines;
  for (const CompletedVerb& verb : verbs)
    lines += fmt::format("    '{}:{}'\n", verb.name, verb.what);
  return fmt::format(kZsh, fmt::arg("verbs", lines));
}

std::string fish(std::span<const CompletedVerb> verbs) {
  std::string lines;
  for (const CompletedVerb& verb : verbs) {
    lines += fmt::format("complete -c djinnctl -n __fish_use_subcommand -a {} -d '{}'\n", verb.name,
                         verb.what);
  }
  return fmt::format(kFish, fmt::arg("verbs", lines));
}

}  // namespace

std::string completion_script(Shell shell, std::span<const CompletedVerb> verbs) {
  switch (shell) {
    case Shell::kBash:
      return bash(verbs);
    case Shell::kZsh:
      return zsh(verbs);
    case Shell::kFish:
      return fish(verbs);
  }
  return "";
}

}  // namespace djinn::ctl
