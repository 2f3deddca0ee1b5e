// SPDX-License-Identifier: Apache-2.0

// djinnctl drain [--wait[=SECONDS]], djinnctl resume: whether djinnd takes in new sessions and
// models.
#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <limits>
#include <thread>

#include "djinnctl/command_line.h"
#include "djinnctl/output.h"

namespace djinn::ctl {
namespace {

constexpr const char* kForever = "forever";
constexpr std::chrono::milliseconds kLookEvery{200};
constexpr uint64_t kSecondsMax = 1'000'000;

struct DrainOptions {
  std::string wait;  // empty: not at all
};

std::optional<uint64_t> seconds_of(const std::string& text) {
  uint64_t seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  const bool is_one = error == std::errc() && end == text.data() + text.size();
  return is_one && seconds <= kSecondsMax ? std::optional(seconds) : std::nullopt;
}

std::string left_text(uint32_t sessions) {
  return sessions == 1 ? "1 session is left" : fmt::format("{} sessions are left", sessions);
}

Error still_there(uint32_t sessions, const std::string& seconds) {
  return {ErrorCode::kTimeout,
          fmt::format("{} after {} s. djinnd goes on draining. Wait again, look with 'djinnctl "
                      "sessions', or end the drain with 'djinnctl resume'.",
                      left_text(sessions), seconds)};
}

// Waits until no session is left that may run something. Errors: kTimeout; kCancelled when the
// drain was ended.
Status wait_until_empty(const Invocation& invocation, client::Client& client,
                        const std::string& wait) {
  const auto seconds = seconds_of(wait);
  const auto began = std::chrono::steady_clock::now();
  uint32_t told = std::numeric_limits<uint32_t>::max();
  for (;;) {
    DJINN_TRY(const ipc::StatusReport now, client.status());
    if (!now.draining) {
      return Error{ErrorCode::kCancelled, "Somebody has ended the drain. Drain again."};
    }
    const uint32_t left = now.data_sessions;
    if (left == 0) return {};
    if (std::exchange(told, left) != left && !invocation.quiet) {
      write_error("djinnctl: " + left_text(left) + '\n');
    }
    if (seconds && std::chrono::steady_clock::now() - began >= std::chrono::seconds(*seconds)) {
      return still_there(left, wait);
    }
    std::this_thread::sleep_for(kLookEvery);
  }
}

Status set_draining(const Invocation& invocation, const char* name, bool draining,
                    const std::string& wait) {
  DJINN_TRY(const auto client, observe(invocation));
  DJINN_CHECK(client->set_draining(draining));
  if (!wait.empty()) DJINN_CHECK(wait_until_empty(invocation, *client, wait));
  if (!invocation.wants_json()) return {};
  return print_json(invocation, name, {Json{{"draining", draining}}});
}

Status drain(const Invocation& invocation, const DrainOptions& options) {
  return set_draining(invocation, "drain", true, options.wait);
}

}  // namespace

void add_drain(CommandLine& line) {
  const Verb verb = line.verb("drain", "take in no new session and no new model");
  auto options = std::make_shared<DrainOptions>();
  verb.optional("--wait", options->wait, kForever,
                "wait until no session is left, or for so many seconds at most")
      .called("SECONDS")
      .checked([](const std::string& text) {
        const bool is_time = text == kForever || seconds_of(text);
        return is_time ? std::string() : "'" + text + "' is no number of seconds, like 60.";
      });
  verb.does(options, drain);
}

void add_resume(CommandLine& line) {
  line.verb("resume", "end a drain").does([](const Invocation& invocation) {
    return set_draining(invocation, "resume", false, "");
  });
}

}  // namespace djinn::ctl
