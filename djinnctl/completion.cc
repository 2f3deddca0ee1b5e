// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>
#include <string_view>
#include <utility>

namespace djinn::ctl {
namespace {

using Argument = CompletedVerb::Argument;

// These are the scripts, with @PLACES@ that are filled with what the parser knows. A script asks
// for ids at the daemon that the line itself names with --host.

// The line is split at blanks. COMP_WORDS is not used, because in it ':' and '=' are words of their
// own.
constexpr std::string_view kBash = R"sh(# bash completion of djinnctl
_djinnctl_ids() {
  djinnctl -q --timeout 0.06 ${host:+-H "$host"} completion-ids "$1" 2>/dev/null | cut -f1
}
_djinnctl_values() {
  case $1 in
@VALUES@  esac
}
_djinnctl() {
  local -a words
  local verb= host= kind= mine= list= word previous i
  read -ra words <<<"${COMP_LINE:0:COMP_POINT}."
  word=${words[-1]%.}
  previous=${words[-2]}
  for ((i = 1; i < ${#words[@]} - 1; i++)); do
    case ${words[i]} in
      -H | --host) host=${words[i + 1]} ;;
      --host=*) host=${words[i]#*=} ;;
      @VERBS_OR@) verb=${verb:-${words[i]}} ;;
    esac
  done
  case $verb in
@VERB_CASES@  esac
  if [[ $word == --*=* ]]; then
    list=$(_djinnctl_values "${word%%=*}")
    word=${word#*=}
  elif [[ " @TAKING_VALUE@ " == *" $previous "* ]]; then
    list=$(_djinnctl_values "$previous")
  elif [[ $word == -* ]]; then
    list="$mine @OPTIONS@"
  elif [[ -z $verb ]]; then
    list="@VERBS@"
  else
    case $kind in
      models | sessions | objects) list=$(_djinnctl_ids "$kind") ;;
      path) compopt -o default ;;
      *) list=$kind ;;
    esac
  fi
  mapfile -t COMPREPLY < <(compgen -W "$list" -- "$word")
}
complete -F _djinnctl djinnctl
)sh";

// This works as a file of fpath, where calling it completes, and also when it is sourced.
constexpr std::string_view kZsh = R"sh(#compdef djinnctl
_djinnctl_ids() {
  local -a at ids
  [[ -z $host ]] || at=(-H $host)
  ids=(${(f)"$(djinnctl -q --timeout 0.06 $at completion-ids $1 2>/dev/null)"})
  ids=(${ids//$'\t'/:})
  (( $#ids )) && _describe id ids
}
_djinnctl_values() {
  case $1 in
@VALUES@  esac
}
_djinnctl() {
  local verb host kind i
  local -a verbs options mine values
  verbs=(
@VERBS_DESCRIBED@  )
  options=(
@OPTIONS_DESCRIBED@  )
  for ((i = 2; i < CURRENT; i++)); do
    case $words[i] in
      (-H|--host) host=$words[i+1] ;;
      (--host=*) host=${words[i]#*=} ;;
      (@VERBS_OR@) verb=${verb:-$words[i]} ;;
    esac
  done
  case $verb in
@VERB_CASES_DESCRIBED@  esac
  if [[ $PREFIX == --*=* ]]; then
    values=(${=$(_djinnctl_values ${PREFIX%%=*})})
    compset -P '*='
    compadd -a values
  elif [[ " @TAKING_VALUE@ " == *" $words[CURRENT-1] "* ]]; then
    values=(${=$(_djinnctl_values $words[CURRENT-1])})
    compadd -a values
  elif [[ $PREFIX == -* ]]; then
    options+=($mine)
    _describe -o option options
  elif [[ -z $verb ]]; then
    _describe verb verbs
  else
    case $kind in
      (models|sessions|objects) _djinnctl_ids $kind ;;
      (path) _files -/ ;;
      (*) values=(${=kind}); compadd -a values ;;
    esac
  fi
}
if [[ $funcstack[1] == _djinnctl ]]; then
  _djinnctl "$@"
else
  compdef _djinnctl djinnctl
fi
)sh";

constexpr std::string_view kFish = R"sh(# fish completion of djinnctl
function __djinnctl_ids
    set -l words (commandline -opc)
    set -l host
    for i in (seq (count $words))
        switch $words[$i]
            case -H --host
                set host -H $words[(math $i + 1)]
            case '--host=*'
                set host $words[$i]
        end
    end
    djinnctl -q --timeout 0.06 $host completion-ids $argv 2>/dev/null
end
# Whether the line's verb is this one; "none" before there is one.
function __djinnctl_verb_is
    set -l words (commandline -opc)
    for word in $words[2..]
        if contains -- $word @VERBS@
            test $word = $argv
            return
        end
    end
    test $argv = none
end
complete -c djinnctl -f
@FISH@)sh";

// Puts the text in single quotes, as all three shells read them.
std::string shell_quoted(std::string_view text) {
  std::string out = "'";
  for (const char byte : text) out += byte == '\'' ? std::string("'\\''") : std::string(1, byte);
  return out + "'";
}

using Places = std::vector<std::pair<std::string_view, std::string>>;

std::string filled(std::string_view script, const Places& places) {
  std::string out(script);
  for (const auto& [place, text] : places) {
    for (size_t at = out.find(place); at != std::string::npos; at = out.find(place, at)) {
      out.replace(at, place.size(), text);
      at += text.size();
    }
  }
  return out;
}

std::string kind_of(const CompletedVerb& verb) {
  switch (verb.argument) {
    case Argument::kNone:
      return "";
    case Argument::kModel:
      return "models";
    case Argument::kSession:
      return "sessions";
    case Argument::kObject:
      return "objects";
    case Argument::kPath:
      return "path";
    case Argument::kWord:
      return fmt::format("{}", fmt::join(verb.words, " "));
  }
  return "";
}

std::string names_of(std::span<const CompletedVerb> verbs, std::string_view separator) {
  std::vector<std::string> names;
  for (const CompletedVerb& verb : verbs) names.push_back(verb.name);
  return fmt::format("{}", fmt::join(names, separator));
}

std::string names_of(std::span<const CompletedOption> options) {
  std::vector<std::string> names;
  for (const CompletedOption& option : options) {
    names.insert(names.end(), option.names.begin(), option.names.end());
  }
  return fmt::format("{}", fmt::join(names, " "));
}

// Gives the options of all verbs, and those that the verbs share.
std::vector<CompletedOption> all_options(std::span<const CompletedVerb> verbs,
                                         std::span<const CompletedOption> shared) {
  std::vector<CompletedOption> all(shared.begin(), shared.end());
  for (const CompletedVerb& verb : verbs) {
    all.insert(all.end(), verb.options.begin(), verb.options.end());
  }
  return all;
}

std::string values_cases(std::span<const CompletedOption> options) {
  std::set<std::string> lines;  // a set, since verbs may have the same option
  for (const CompletedOption& option : options) {
    if (option.values.empty()) continue;
    lines.insert(fmt::format("    ({}) echo {} ;;\n", fmt::join(option.names, "|"),
                             fmt::join(option.values, " ")));
  }
  return fmt::format("{}", fmt::join(lines, ""));
}

std::string taking_value(std::span<const CompletedOption> options) {
  std::set<std::string> names;
  for (const CompletedOption& option : options) {
    if (option.takes_value) names.insert(option.names.begin(), option.names.end());
  }
  return fmt::format("{}", fmt::join(names, " "));
}

std::string described(std::string_view name, std::string_view what) {
  return shell_quoted(fmt::format("{}:{}", name, what));
}

std::string described(std::span<const CompletedOption> options) {
  std::string lines;
  for (const CompletedOption& option : options) {
    for (const std::string& name : option.names)
      lines += "    " + described(name, option.what) + '\n';
  }
  return lines;
}

// Gives the places that the scripts of bash and zsh have in common.
Places shared_places(std::span<const CompletedVerb> verbs,
                     std::span<const CompletedOption> options) {
  const auto all = all_options(verbs, options);
  return {{"@VERBS_OR@", names_of(verbs, "|")},
          {"@VALUES@", values_cases(all)},
          {"@TAKING_VALUE@", taking_value(all)}};
}

std::string bash(std::span<const CompletedVerb> verbs, std::span<const CompletedOption> options) {
  std::string cases;
  for (const CompletedVerb& verb : verbs) {
    cases += fmt::format("    {}) kind={} mine={} ;;\n", verb.name, shell_quoted(kind_of(verb)),
                         shell_quoted(names_of(verb.options)));
  }
  Places places = shared_places(verbs, options);
  places.emplace_back("@VERBS@", names_of(verbs, " "));
  places.emplace_back("@OPTIONS@", names_of(options));
  places.emplace_back("@VERB_CASES@", cases);
  return filled(kBash, places);
}

std::string zsh(std::span<const CompletedVerb> verbs, std::span<const CompletedOption> options) {
  std::string names;
  std::string cases;
  for (const CompletedVerb& verb : verbs) {
    names += "    " + described(verb.name, verb.what) + '\n';
    cases += fmt::format("    ({}) kind={} mine=(\n{}    ) ;;\n", verb.name,
                         shell_quoted(kind_of(verb)), described(verb.options));
  }
  Places places = shared_places(verbs, options);
  places.emplace_back("@VERBS_DESCRIBED@", names);
  places.emplace_back("@OPTIONS_DESCRIBED@", described(options));
  places.emplace_back("@VERB_CASES_DESCRIBED@", cases);
  return filled(kZsh, places);
}

// Gives fish's line for an option; if the condition is empty, the option is of all verbs.
std::string fish(const CompletedOption& option, std::string_view condition) {
  std::string line = "complete -c djinnctl";
  if (!condition.empty()) line += fmt::format(" -n {}", shell_quoted(condition));
  for (const std::string& name : option.names) {
    const bool is_long = name.starts_with("--");
    line += fmt::format(" {} {}", is_long ? "-l" : "-s", name.substr(is_long ? 2 : 1));
  }
  if (option.takes_value) line += " -x";
  if (!option.values.empty()) {
    line += " -a " + shell_quoted(fmt::format("{}", fmt::join(option.values, " ")));
  }
  return line + " -d " + shell_quoted(option.what) + '\n';
}

std::string fish_arguments(const CompletedVerb& verb) {
  switch (verb.argument) {
    case Argument::kNone:
      return "";
    case Argument::kPath:
      return "(__fish_complete_directories)";
    case Argument::kWord:
      return kind_of(verb);
    default:
      return fmt::format("(__djinnctl_ids {})", kind_of(verb));
  }
}

std::string fish(std::span<const CompletedVerb> verbs, std::span<const CompletedOption> options) {
  std::string lines;
  for (const CompletedOption& option : options) lines += fish(option, "");
  for (const CompletedVerb& verb : verbs) {
    lines += fmt::format("complete -c djinnctl -n '__djinnctl_verb_is none' -a {} -d {}\n",
                         verb.name, shell_quoted(verb.what));
    const std::string seen = "__djinnctl_verb_is " + verb.name;
    for (const CompletedOption& option : verb.options) lines += fish(option, seen);
    const std::string arguments = fish_arguments(verb);
    if (arguments.empty()) continue;
    lines += fmt::format("complete -c djinnctl -n {} -a {}\n", shell_quoted(seen),
                         shell_quoted(arguments));
  }
  return filled(kFish, {{"@VERBS@", names_of(verbs, " ")}, {"@FISH@", lines}});
}

}  // namespace

std::string completion_script(Shell shell, std::span<const CompletedVerb> verbs,
                              std::span<const CompletedOption> options) {
  switch (shell) {
    case Shell::kBash:
      return bash(verbs, options);
    case Shell::kZsh:
      return zsh(verbs, options);
    case Shell::kFish:
      return fish(verbs, options);
  }
  return "";
}

}  // namespace djinn::ctl
