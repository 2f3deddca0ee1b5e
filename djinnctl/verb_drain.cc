// SPDX-License-Identifier: Apache-2.0

// djinnctl drain [--wait[=TIME]] and djinnctl resume say whether djinnd takes in new sessions and
// models.
#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <thread>

#include "djinnctl/command_line.h"
#include "djinnctl/output.h"
#include "djinnctl/text.h"
#include "kernel/base/size_text.h"

namespace djinn::ctl {
namespace {

constexpr const char* kForever = "forever";
constexpr std::chrono::milliseconds kLookEvery{200};

struct DrainOptions {
  std::string wait;  // empty: not at all
};

std::string left_text(uint32_t sessions) {
  if (sessions == 0) return "no session is left";
  return count_text(sessions, "session") + (sessions == 1 ? " is left" : " are left");
}

void tell(const Invocation& invocation, const std::string& what) {
  if (!invocation.quiet) write_error("djinnctl: " + what + '\n');
}

Error still_there(uint32_t sessions, uint64_t wait_ms) {
  return {ErrorCode::kTimeout,
          fmt::format("{} after {} s. djinnd goes on draining. Wait again, look with 'djinnctl "
                      "sessions', or end the drain with 'djinnctl resume'.",
                      left_text(sessions), static_cast<double>(wait_ms) / 1000)};
}

// Tells how many sessions are left that may run something; if that is wanted, until none is.
// Errors: kTimeout; kCancelled when the drain was ended.
Status watch(const Invocation& invocation, client::Client& client, const DrainOptions& options) {
  using Clock = std::chrono::steady_clock;
  const auto wait_ms = wait_ms_of(options.wait);  // nothing: for ever
  const auto began = Clock::now();
  std::optional<uint32_t> told;
  for (;;) {
    DJINN_TRY(const ipc::StatusReport now, client.status());
    if (!now.draining) {
      return Error{ErrorCode::kCancelled, "Somebody has ended the drain. Drain again."};
    }
    const uint32_t left = now.data_sessions;
    if (told != left) tell(invocation, (told ? "" : "djinnd is draining; ") + left_text(left));
    told = left;
    if (left == 0 || options.wait.empty()) return {};
    if (wait_ms && Clock::now() - began >= std::chrono::milliseconds(*wait_ms)) {
      return still_there(left, *wait_ms);
    }
    std::this_thread::sleep_for(kLookEvery);
  }
}

Status print_state(const Invocation& invocation, const char* name, bool draining) {
  if (!invocation.wants_json()) return {};
  return print_json(invocation, name, {Json{{"draining", draining}}});
}

Status drain(const Invocation& invocation, const DrainOptions& options) {
  DJINN_TRY(const auto client, observe(invocation));
  DJINN_CHECK(client->set_draining(true));
  DJINN_CHECK(watch(invocation, *client, options));
  return print_state(invocation, "drain", true);
}

Status resume(const Invocation& invocation) {
  DJINN_TRY(const auto client, observe(invocation));
  DJINN_TRY(const ipc::StatusReport before, client->status());
  DJINN_CHECK(client->set_draining(false));
  if (!before.draining) tell(invocation, "djinnd was not draining");
  return print_state(invocation, "resume", false);
}

}  // namespace

void add_drain(CommandLine& line) {
  const Verb verb = line.verb("drain", "take in no new session and no new model");
  auto options = std::make_shared<DrainOptions>();
  verb.optional("--wait", options->wait, kForever,
                "wait until no session is left, or for so long at most, like 5m")
      .called("TIME")
      .checked([](const std::string& text) {
        return text == kForever ? std::string() : wait_fault(text, "0", "1000000s");
      });
  verb.does(options, drain);
}

void add_resume(CommandLine& line) {
  line.verb("resume", "end a drain").does(resume);
}

}  // namespace djinn::ctl
