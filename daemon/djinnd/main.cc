// SPDX-License-Identifier: Apache-2.0

// djinnd reads its command line, wires its parts, and runs until it is told to stop.

#include <fmt/format.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "daemon/djinnd/daemon.h"
#include "daemon/djinnd/host/config.h"
#include "daemon/djinnd/host/service.h"
#include "daemon/djinnd/loop/log.h"

namespace djinn::daemon {
namespace {

// Each session takes a handful of descriptors, and each model a few more.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// A signal that comes while the loop's handlers are removed would end djinnd in the middle of that,
// and its exit would look like a crash. All other threads block signals already.
void block_signals() {
  sigset_t all;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
}

uint64_t random_seed() {
  uint64_t seed = 0;
  if (::getrandom(&seed, sizeof seed, 0) != sizeof seed) seed = 1;
  return seed;
}

// Combines the configuration, the command line, which overrides it, and defaults. Errors: those of
// fill_in, and kInvalidArgument for a wrong command line, which has been reported.
Result<Options> complete_options(const Config& config, int argc, char** argv) {
  Options options;
  apply_config(config, options);
  int exit_code = 0;
  auto parsed = parse_options(argc, argv, exit_code, std::move(options));
  if (!parsed) return Error{ErrorCode::kInvalidArgument, "The command line is wrong."};
  DJINN_CHECK(fill_in(*parsed));
  return *std::move(parsed);
}

Status serve(const Options& options, ReloadOptions reload_options) {
  DJINN_TRY(ActivationFds passed, take_activation_fds());
  ::signal(SIGPIPE, SIG_IGN);
  raise_descriptor_limit();
  Loop loop;
  const SystemClock clock;
  Daemon daemon(loop, clock, options, std::move(reload_options), random_seed());
  const Signal terminate(loop, SIGTERM, [&] { daemon.wind_up(); });
  const Signal interrupt(loop, SIGINT, [&] { daemon.wind_up(); });
  const Signal hang_up(loop, SIGHUP, [&] {
    if (options.user_mode) return loop.stop();                 // its terminal is gone
    [[maybe_unused]] const Status reloaded = daemon.reload();  // the log has it
  });
  DJINN_CHECK(daemon.start(std::move(passed)));  // and from now on somebody may send a signal
  loop.run();
  daemon.stop();
  block_signals();
  return {};
}

// Reports problems on standard error, except for those that djinnd emits as events once it serves.
// Gives nothing if the configuration is invalid, or if djinnd was only asked to check or show it.
std::optional<Config> configured(const Options& given, int& exit_code) {
  if (given.user_mode) return Config();
  Config config =
      read_config(given.root, given.check_config ? UnknownKeys::kRefused : UnknownKeys::kIgnored);
  look_up_names(config);
  if (given.check_config && config.is_valid()) {
    check_against_machine(config);
    check_spill_directory(config);
  }
  exit_code = config.is_valid() ? 0 : 1;
  const bool will_serve = config.is_valid() && !given.check_config && !given.show_config;
  if (will_serve) return config;
  for (const ConfigProblem& problem : config.problems) log_line(problem.text);
  if (given.show_config) fmt::print("{}", show_config(config));
  return std::nullopt;
}

int run(int argc, char** argv) {
  int exit_code = 0;
  const auto given = parse_options(argc, argv, exit_code);
  const auto config = given ? configured(*given, exit_code) : std::nullopt;
  if (!config) return exit_code;
  const auto reload_options = [argc, argv](const Config& changed) {
    return complete_options(changed, argc, argv);
  };
  Result<Options> options = reload_options(*config);
  const Status found = options ? find_programs(*options) : options.error();
  const Status ended = found ? serve(*options, reload_options) : found;
  if (ended) return 0;
  log_line(ended.error().message);
  return 1;
}

}  // namespace
}  // namespace djinn::daemon

int main(int argc, char** argv) {
  return djinn::daemon::run(argc, argv);
}
