// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/command_line.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string_view>
#include <thread>

#include "djinnctl/exit_code.h"
#include "djinnctl/help.h"
#include "djinnctl/nearest.h"
#include "djinnctl/output.h"
#include "djinnctl/screen.h"
#include "djinnctl/text.h"

namespace djinn::ctl {
namespace {

void tell_of_silence() {
  write_error(
      "djinnctl: djinnd has not answered yet. It may have much to do, or hang: 'journalctl -u "
      "djinnd' says more, to root; Ctrl-C ends this.\n");
}

// Says once that djinnd has been silent for a while. A service that cannot start is started again
// and again, and in the meantime its socket accepts connections.
class SilenceNotice {
 public:
  explicit SilenceNotice(const Invocation& invocation) {
    if (!invocation.quiet) thread_ = std::jthread(&wait);
  }

 private:
  static constexpr std::chrono::seconds kSilence{2};

  static void wait(const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any stopped;
    std::unique_lock lock(mutex);
    stopped.wait_for(lock, stop, kSilence, [] { return false; });
    if (stop.stop_requested()) return;
    write_error(
        "djinnctl: djinnd takes connections and has not answered yet. If its service does not "
        "start, 'journalctl -u djinnd' says why, to root; Ctrl-C ends this.\n");
  }

  std::jthread thread_;
};

bool listens(client::ConnectOptions options, const client::Deadline* deadline) {
  options.observer = true;
  options.device.clear();
  return client::Client::connect(options, deadline).ok();
}

Result<std::unique_ptr<client::Client>> connect(const Invocation& invocation,
                                                client::ConnectOptions options,
                                                const client::Deadline* deadline = nullptr) {
  const SilenceNotice notice(invocation);
  options.host = invocation.host;
  options.name = "djinnctl";
  if (options.observer && !invocation.quiet) options.on_silence = &tell_of_silence;
  auto connected = client::Client::connect(options, deadline);
  if (connected || connected.error().code != ErrorCode::kNotFound) return connected;
  // Without a socket there is no daemon. Scripts can tell this error from that of an object that is
  // not there.
  if (!options.device.empty() && listens(std::move(options), deadline)) return connected;
  return Error{ErrorCode::kDisconnected, connected.error().message};
}

void add_verbs(CommandLine& line) {
  add_status(line);
  add_sessions(line);
  add_ps(line);
  add_devices(line);
  add_mem(line);
  add_programs(line);
  add_top(line);
  add_events(line);
  add_show(line);
  add_load(line);
  add_unload(line);
  add_import(line);
  add_models(line);
  add_evict(line);
  add_pin(line);
  add_unpin(line);
  add_cancel(line);
  add_terminate(line);
  add_drain(line);
  add_resume(line);
  add_gc(line);
  add_generate(line);
  add_gate(line);
  add_host(line);
  add_config(line);
  add_diag(line);
  add_completion(line);
  add_version(line);
  add_help(line);
}

JsonStyle json_style(const std::string& name) {
  if (name == "off") return JsonStyle::kOff;
  return name == "pretty" ? JsonStyle::kPretty : JsonStyle::kShort;
}

void add_options(CLI::App& app, Invocation& invocation, std::string& style) {
  app.add_option("-H,--host", invocation.host,
                 "where djinnd listens, as unix:PATH or a path from / "
                 "[$DJINN_HOST, the user's, the system's]")
      ->type_name("ADDRESS");
  app.add_flag("-j{short},--json{short}", style, "JSON instead of tables [short: in one line]")
      ->check(CLI::IsMember({"short", "pretty", "off"}));
  app.add_flag_callback(
      "--no-legend", [&] { invocation.layout.legend = Table::Legend::kHidden; },
      "tables without header");
  app.add_flag_callback(
      "--no-pager", [] {}, "for scripts: output is never paged");
  app.add_flag("-q,--quiet", invocation.quiet, "nothing on stderr: the exit code tells");
  app.add_option_function<std::string>(
         "--timeout",
         [&](const std::string& text) { invocation.timeout_ms = wait_ms_of(text).value(); },
         "give up after so long, like 10s; a number alone: seconds [never]")
      ->type_name("TIME")
      ->check([](const std::string& text) { return wait_fault(text, "1ms", "1000000s"); });
  app.set_version_flag("--version", std::string("djinnctl ") + DJINN_VERSION);
}

// What the signal handler writes, which can be given nothing else. It is no object that goes while
// the process ends, as the handler may run then.
std::array<char, 1024> timeout_text{};
size_t timeout_text_bytes = 0;

// Runs in a signal handler, and so calls only what is safe there.
[[noreturn]] void give_up(int) {
  give_terminal_back();
  if (timeout_text_bytes > 0) write_error({timeout_text.data(), timeout_text_bytes});
  ::_exit(static_cast<int>(ExitCode::kTimeout));
}

// The whole command ends when the time is up, wherever it waits. There is nothing to tidy up:
// djinnd does so when the connection closes.
void set_timeout(const Invocation& invocation) {
  if (invocation.timeout_ms == 0) return;
  const Error error{ErrorCode::kTimeout,
                    "It is not done in the time that --timeout gives. djinnd may be busy, or stand "
                    "still. Give it "
                    "more time; 'systemctl status djinnd' and 'djinnctl diag' tell what there is."};
  const std::string text = invocation.quiet ? "" : failure_text(error, invocation.json);
  timeout_text_bytes = text.copy(timeout_text.data(), timeout_text.size());
  ::signal(SIGALRM, give_up);
  itimerval timer{};
  timer.it_value.tv_sec = static_cast<time_t>(invocation.timeout_ms / 1000);
  timer.it_value.tv_usec = static_cast<suseconds_t>(invocation.timeout_ms % 1000 * 1000);
  ::setitimer(ITIMER_REAL, &timer, nullptr);
}

// Gives the first word that the parser did not know and that is an option ("--no" of "--no=such")
// or stands where a verb must follow; empty if there is none.
std::string unknown_word(const CLI::App& app, const CLI::App& last) {
  for (const std::string& word : app.remaining(true)) {
    if (word.size() > 1 && word.starts_with('-')) return word.substr(0, word.find('='));
    if (!last.get_subcommands({}).empty()) return word;
  }
  return {};
}

// Gives the style that stands behind -j, which takes none: the parser leaves "-pretty" of
// "-jpretty", and "-=pretty" of "-j=pretty". Empty if there is none.
std::string style_behind_j(const CLI::App& app) {
  for (std::string word : app.remaining(true)) {
    if (!word.starts_with('-')) continue;
    word.erase(0, word.starts_with("-=") ? 2 : 1);
    for (const std::string_view style : {"short", "pretty", "off"}) {
      if (word == style) return word;
    }
  }
  return {};
}

// Gives the options of the app and those of the verb that was given.
std::vector<std::string> options_of(const CLI::App& app, const CLI::App& last) {
  std::vector<std::string> names;
  for (const CLI::App* one : {&app, &last}) {
    for (const CLI::Option* option : one->get_options()) {
      if (option->get_group().empty()) continue;
      for (const std::string& name : option->get_snames()) names.push_back("-" + name);
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
  }
  return names;
}

Error no_such_option(const std::string& word, const std::string& words,
                     const std::vector<std::string>& known) {
  // Any letter is as near to another.
  const std::string_view near = word.starts_with("--") ? nearest(word, known) : "";
  const std::string guess = near.empty() ? "." : fmt::format("; did you mean '{}'?", near);
  return {
      ErrorCode::kInvalidArgument,
      fmt::format("There is no option '{}'{} 'djinnctl {}--help' lists all.", word, guess, words)};
}

// Says in our words what the parser says of an option without its value, "--timeout: 1 required
// TIME missing", and of one with a word in place of a number, "Could not convert: --top-k = x".
std::string in_our_words(const CLI::ParseError& stop) {
  const std::string what = stop.what();
  const std::string_view missing = ": 1 required ", end = " missing";
  const std::string_view wrong = "Could not convert: ", equals = " = ";
  if (const size_t at = what.find(missing); at != what.npos && what.ends_with(end)) {
    const size_t value = at + missing.size();
    return fmt::format("{} needs a value: {}.", what.substr(0, at),
                       what.substr(value, what.size() - end.size() - value));
  }
  if (const size_t at = what.find(equals); at != what.npos && what.starts_with(wrong)) {
    return fmt::format("{}: '{}' is no number that it may have.",
                       what.substr(wrong.size(), at - wrong.size()),
                       what.substr(at + equals.size()));
  }
  return what.ends_with('.') ? what : what + '.';
}

Error other_mistake(const CLI::ParseError& stop, const std::string& words) {
  const std::string what = in_our_words(stop);
  return {ErrorCode::kInvalidArgument,
          fmt::format("{} 'djinnctl {}--help' tells what there is.", what, words)};
}

Error mistake(const CLI::App& app, const CLI::ParseError& stop) {
  const CLI::App* last = &app;
  std::string words;
  while (!last->get_subcommands().empty()) {
    last = last->get_subcommands().front();
    words += last->get_name() + ' ';
  }
  if (const std::string style = style_behind_j(app); !style.empty() && app.count("--json") > 0) {
    return {ErrorCode::kInvalidArgument,
            fmt::format("-j stands alone: write --json={}, which takes how it is to look. "
                        "'djinnctl {}--help' lists all.",
                        style, words)};
  }
  if (const std::string word = unknown_word(app, *last); !word.empty()) {
    return word.starts_with('-') ? no_such_option(word, words, options_of(app, *last))
                                 : no_such_verb(word, words, verbs_of(*last));
  }
  if (last->get_require_subcommand_min() > 0 && stop.get_name() == "RequiredError") {
    return {ErrorCode::kInvalidArgument,
            fmt::format("A verb is missing in 'djinnctl {0}VERB'. 'djinnctl {0}--help' lists all.",
                        words)};
  }
  return other_mistake(stop, words);
}

// Gives what --json says where the rest of the command line is wrong.
JsonStyle style_asked(const CLI::App& app) {
  const std::vector<std::string>& given = app.get_option("--json")->results();
  return given.empty() ? JsonStyle::kOff : json_style(given.back());
}

// Help and version are no mistakes. CLI11 writes them to stdout. Options have not reached the
// invocation where the parser stopped, so they are asked for.
int finish_parse(const CLI::App& app, const CLI::ParseError& stop) {
  if (stop.get_exit_code() == 0) return app.exit(stop);
  if (app.count("--quiet") == 0) write_failure(mistake(app, stop), style_asked(app));
  return static_cast<int>(ExitCode::kUsage);
}

}  // namespace

Result<std::unique_ptr<client::Client>> observe(const Invocation& invocation,
                                                const client::Deadline* deadline,
                                                const std::string& device) {
  client::ConnectOptions options;
  options.device = device;
  options.observer = true;
  return connect(invocation, std::move(options), deadline);
}

Result<ipc::StatusReport> status_in_time(const Invocation& invocation) {
  constexpr uint64_t kAnswerMs = 1500;  // a daemon that turns answers in a thousandth of it
  const SystemClock clock;
  const client::Deadline deadline(clock, kAnswerMs);
  DJINN_TRY(const auto client, observe(invocation, &deadline));
  return client->status(&deadline);
}

Result<std::unique_ptr<client::Client>> attach(const Invocation& invocation,
                                               const std::string& device,
                                               const std::string& service_class) {
  client::ConnectOptions options;
  options.device = device;
  options.service_class = service_class;
  return connect(invocation, std::move(options));
}

Status print_json(const Invocation& invocation, const std::string& schema,
                  std::vector<Json> items) {
  return write_out(json_text(schema, std::move(items), invocation.json));
}

int run(int argc, const char* const* argv) {
  Invocation invocation;
  const Terminal out = terminal_of(STDOUT_FILENO);
  invocation.layout.bold = out.takes_escapes;
  invocation.layout.isolates = out.is_terminal;
  invocation.layout.columns_max = out.columns;
  CLI::App app("djinnctl looks into djinnd and steers it", "djinnctl");
  app.formatter(help_formatter());
  std::string style = "off";
  add_options(app, invocation, style);
  app.fallthrough();
  CommandLine line(app);
  add_verbs(line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& stop) {
    return finish_parse(app, stop);
  }
  invocation.json = json_style(style);
  set_timeout(invocation);
  const Status done = line.action()(invocation);
  if (done) return static_cast<int>(ExitCode::kOk);
  if (!invocation.quiet) write_failure(done.error(), invocation.json);
  return static_cast<int>(exit_code_of(done.error().code));
}

}  // namespace djinn::ctl
