#include "djinnctl/command_line.h"

#include "djinnctl/exit_code.h"
#include "djinnctl/output.h"

namespace djinn::ctl {
namespace {

Result<std::unique_ptr<client::Client>> connect(const Invocation& invocation, bool observer) {
  client::ConnectOptions options;
  options.host = invocation.host;
  options.name = "djinnctl";
  options.observer = observer;
  auto connected = client::Client::connect(options);
  // No socket is no daemon: scripts tell it apart from an object that is not there.
  if (!connected && connected.error().code == ErrorCode::kNotFound) {
    return Error{ErrorCode::kDisconnected, connected.error().message};
  }
  return connected;
}

void add_verbs(CommandLine& line) {
  add_status(line);
  add_sessions(line);
  add_ps(line);
  add_show(line);
  add_load(line);
  add_unload(line);
  add_generate(line);
}

// Help and version are no mistakes; CLI11 writes them to stdout and all else to stderr.
int finish_parse(const CLI::App& app, const CLI::ParseError& stop) {
  const auto code = app.exit(stop) == 0 ? ExitCode::kOk : ExitCode::kUsage;
  return static_cast<int>(code);
}

}  // namespace

Result<std::unique_ptr<client::Client>> observe(const Invocation& invocation) {
  return connect(invocation, true);
}

Result<std::unique_ptr<client::Client>> attach(const Invocation& invocation) {
  return connect(invocation, false);
}

int run(int argc, const char* const* argv) {
  Invocation invocation;
  CLI::App app("djinnctl looks into djinnd and steers it", "djinnctl");
  app.add_option("--host", invocation.host,
                 "where djinnd listens, as unix:PATH [$DJINN_HOST, the user's, the system's]");
  app.add_flag("--json", invocation.json, "print JSON instead of tables");
  app.set_version_flag("--version", std::string("djinnctl ") + DJINN_VERSION);
  app.require_subcommand(1);
  app.fallthrough();
  CommandLine line{app, {}};
  add_verbs(line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& stop) {
    return finish_parse(app, stop);
  }
  const Status done = line.action(invocation);
  if (done) return static_cast<int>(ExitCode::kOk);
  write_error(error_text(done.error()));
  return static_cast<int>(exit_code_of(done.error().code));
}

}  // namespace djinn::ctl
