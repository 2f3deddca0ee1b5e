// The command line: which verb with which options, what runs, and what the process exits with.
//
//   Invocation   what all verbs share: where djinnd is, how to print
//   Action       what a verb does once its options are known; its Error ends the process
//   CommandLine  the parser while the verbs add themselves to it
//
// Each verb is a file verb_*.cc with one function, listed here.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>

#include "libdjinn-client/client.h"

namespace djinn::ctl {

struct Invocation {
  std::string host;  // as --host gives it
  bool json = false;
};

using Action = std::function<Status(const Invocation&)>;

struct CommandLine {
  CLI::App& app;
  Action action;  // of the verb that was given
};

void add_status(CommandLine& line);
void add_sessions(CommandLine& line);
void add_ps(CommandLine& line);
void add_show(CommandLine& line);
void add_load(CommandLine& line);
void add_unload(CommandLine& line);
void add_generate(CommandLine& line);

// A connection for control requests only.
Result<std::unique_ptr<client::Client>> observe(const Invocation& invocation);
// A session with a data path.
Result<std::unique_ptr<client::Client>> attach(const Invocation& invocation);

// The whole program; gives its exit code (exit_code.h).
int run(int argc, const char* const* argv);

}  // namespace djinn::ctl
