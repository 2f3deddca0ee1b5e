// SPDX-License-Identifier: Apache-2.0

// The command line: which verb with which options, what runs, and what the process exits with.
//
//   CommandLine  the parser while the verbs add themselves to it (verb.h)
//
// Each verb is a file verb_*.cc with one function, listed here.
#pragma once

#include <memory>
#include <string>

#include "djinnctl/json.h"
#include "djinnctl/output.h"
#include "djinnctl/table.h"
#include "djinnctl/verb.h"
#include "libdjinn-client/client.h"

namespace djinn::ctl {

class CommandLine {
 public:
  explicit CommandLine(CLI::App& app) : app_(app) {}

  Verb verb(const std::string& name, const std::string& what) {
    return Verb(app_, action_).verb(name, what);
  }
  [[nodiscard]] const CLI::App& app() const { return app_; }
  // Of the verb that was given.
  [[nodiscard]] const Action& action() const { return action_; }

 private:
  CLI::App& app_;
  Action action_;
};

void add_status(CommandLine& line);
void add_sessions(CommandLine& line);
void add_ps(CommandLine& line);
void add_devices(CommandLine& line);
void add_mem(CommandLine& line);
void add_programs(CommandLine& line);
void add_pin(CommandLine& line);
void add_unpin(CommandLine& line);
void add_cancel(CommandLine& line);
void add_terminate(CommandLine& line);
void add_config(CommandLine& line);
void add_diag(CommandLine& line);
void add_completion(CommandLine& line);
void add_version(CommandLine& line);
void add_show(CommandLine& line);
void add_load(CommandLine& line);
void add_unload(CommandLine& line);
void add_import(CommandLine& line);
void add_models(CommandLine& line);
void add_evict(CommandLine& line);
void add_drain(CommandLine& line);
void add_resume(CommandLine& line);
void add_gc(CommandLine& line);
void add_events(CommandLine& line);
void add_top(CommandLine& line);
void add_generate(CommandLine& line);
void add_gate(CommandLine& line);
void add_host(CommandLine& line);
void add_help(CommandLine& line);

// A connection for control requests only.
// deadline: how long djinnd may take to answer; nullptr: as long as it takes. device: of what it
// opens; empty: djinnd's first.
Result<std::unique_ptr<client::Client>> observe(const Invocation& invocation,
                                                const client::Deadline* deadline = nullptr,
                                                const std::string& device = {});
// The status of the daemon, for verbs that have something to say without it. Errors: kDisconnected
// where none runs, kTimeout where one does not answer within some seconds.
Result<ipc::StatusReport> status_in_time(const Invocation& invocation);
// A session with a data path. device: as above. service_class: as ConnectOptions says.
Result<std::unique_ptr<client::Client>> attach(const Invocation& invocation,
                                               const std::string& device,
                                               const std::string& service_class);

// What --json prints, in the style that was asked for.
Status print_json(const Invocation& invocation, const std::string& schema, std::vector<Json> items);
// A list: a table, or its reports as JSON.
template <typename Report>
Status print_list(const Invocation& invocation, const std::string& schema,
                  const std::vector<Report>& reports, const Table& table);

// The whole program; gives its exit code (exit_code.h).
int run(int argc, const char* const* argv);

template <typename Report>
Status print_list(const Invocation& invocation, const std::string& schema,
                  const std::vector<Report>& reports, const Table& table) {
  if (!invocation.wants_json()) return write_out(table.text(invocation.layout));
  std::vector<Json> items;
  for (const Report& report : reports) items.push_back(to_json(report));
  return print_json(invocation, schema, std::move(items));
}

}  // namespace djinn::ctl
