// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/dbus/bus_callers.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "kernel/base/assert.h"

namespace djinn::daemon {
namespace {

constexpr uint64_t kCredentialsTimeoutMs = 5000;
constexpr uint32_t kAllowUserInteraction = 1;

struct Credentials {
  std::optional<uint32_t> user;
  std::vector<gid_t> groups;
};

int read_groups(sd_bus_message* answer, std::vector<gid_t>& groups) {
  const void* bytes = nullptr;
  size_t length = 0;
  int failed = ::sd_bus_message_enter_container(answer, 'v', "au");
  if (failed >= 0) failed = ::sd_bus_message_read_array(answer, 'u', &bytes, &length);
  if (failed < 0) return failed;
  const auto* const first = static_cast<const uint32_t*>(bytes);
  groups.assign(first, first + length / sizeof *first);
  return ::sd_bus_message_exit_container(answer);
}

// Reads the answer of GetConnectionCredentials, a{sv}, and skips what is not needed.
int read_credentials(sd_bus_message* answer, Credentials& credentials) {
  int more = ::sd_bus_message_enter_container(answer, 'a', "{sv}");
  while (more >= 0 && (more = ::sd_bus_message_enter_container(answer, 'e', "sv")) > 0) {
    const char* key = nullptr;
    more = ::sd_bus_message_read(answer, "s", &key);
    const std::string name = more > 0 ? key : "";
    if (name == "UnixUserID") {
      uint32_t user = 0;
      more = ::sd_bus_message_read(answer, "v", "u", &user);
      credentials.user = user;
    } else if (name == "UnixGroupIDs") {
      more = read_groups(answer, credentials.groups);
    } else {
      more = ::sd_bus_message_skip(answer, "v");
    }
    if (more >= 0) more = ::sd_bus_message_exit_container(answer);
  }
  return more;
}

// Reads the answer of CheckAuthorization, (bba{ss}): authorized, authorized after a challenge,
// details.
bool read_verdict(sd_bus_message* answer) {
  int authorized = 0;
  const bool read = ::sd_bus_message_enter_container(answer, 'r', "bba{ss}") > 0 &&
                    ::sd_bus_message_read(answer, "b", &authorized) > 0;
  return read && authorized != 0;
}

int make_credentials_call(sd_bus* bus, sd_bus_message** call, const std::string& sender) {
  const int failed =
      ::sd_bus_message_new_method_call(bus, call, "org.freedesktop.DBus", "/org/freedesktop/DBus",
                                       "org.freedesktop.DBus", "GetConnectionCredentials");
  return failed < 0 ? failed : ::sd_bus_message_append(*call, "s", sender.c_str());
}

int make_authority_call(sd_bus* bus, sd_bus_message** call, const char* method) {
  return ::sd_bus_message_new_method_call(bus, call, "org.freedesktop.PolicyKit1",
                                          "/org/freedesktop/PolicyKit1/Authority",
                                          "org.freedesktop.PolicyKit1.Authority", method);
}

int make_question(sd_bus* bus, sd_bus_message** call, const std::string& sender,
                  const std::string& action, Prompt prompt, const std::string& cancellation_id) {
  const int failed = make_authority_call(bus, call, "CheckAuthorization");
  if (failed < 0) return failed;
  return ::sd_bus_message_append(
      *call, "(sa{sv})sa{ss}us", "system-bus-name", 1, "name", "s", sender.c_str(), action.c_str(),
      0, prompt == Prompt::kAllowed ? kAllowUserInteraction : 0, cancellation_id.c_str());
}

// The message expects no reply, and does not start a polkit that is gone.
int send_withdrawal(sd_bus* bus, const std::string& cancellation_id) {
  sd_bus_message* raw = nullptr;
  int failed = make_authority_call(bus, &raw, "CancelCheckAuthorization");
  const Message call(raw);
  if (failed >= 0) failed = ::sd_bus_message_append(raw, "s", cancellation_id.c_str());
  if (failed >= 0) failed = ::sd_bus_message_set_expect_reply(raw, 0);
  if (failed >= 0) failed = ::sd_bus_message_set_auto_start(raw, 0);
  return failed < 0 ? failed : ::sd_bus_send(bus, raw, nullptr);
}

}  // namespace

BusCallers::BusCallers(Bus& bus, const Authority& authority, Timeouts timeouts)
    : bus_(bus), authority_(authority), timeouts_(timeouts) {}

void BusCallers::identify(const std::string& sender, Known known) {
  DJINN_ASSERT(known != nullptr);
  const auto found = known_.find(sender);
  if (found != known_.end()) return known(found->second);
  std::vector<Known>& waiting = waiting_[sender];
  if (waiting.size() >= kWaitingMax) {
    return known(Error{ErrorCode::kQueueFull, "Too many calls wait for an answer. Repeat later."});
  }
  waiting.push_back(std::move(known));
  DJINN_ASSERT(waiting.size() <= kWaitingMax);
  if (waiting.size() > 1) return;
  bus_.call([&](sd_bus* bus, sd_bus_message** m) { return make_credentials_call(bus, m, sender); },
            kCredentialsTimeoutMs,
            [this, sender](sd_bus_message* answer) { credentials_came(sender, answer); });
}

void BusCallers::credentials_came(const std::string& sender, sd_bus_message* answer) {
  Credentials credentials;
  const bool read = ::sd_bus_message_is_method_error(answer, nullptr) <= 0 &&
                    read_credentials(answer, credentials) >= 0 && credentials.user.has_value();
  const auto waiting = waiting_.extract(sender);
  if (waiting.empty()) return;
  if (!read) {
    const Error error{ErrorCode::kPermissionDenied, "The bus does not say who the caller is."};
    for (const Known& known : waiting.mapped()) known(error);
    return;
  }
  const Caller caller = authority_.judge(*credentials.user, credentials.groups);
  if (known_.size() >= kKnownMax) known_.clear();
  known_[sender] = caller;
  DJINN_ASSERT(known_.size() <= kKnownMax);
  for (const Known& known : waiting.mapped()) known(caller);
}

void BusCallers::ask_polkit(const std::string& sender, const std::string& action, Prompt prompt,
                            std::function<void(bool)> allowed) {
  const uint64_t number = ++asked_;
  DJINN_ASSERT(allowed != nullptr && !questions_.contains(number));
  auto asked = std::make_unique<Question>(Question{this, fmt::format("djinnd-{}", number)});
  Question& question = *asked;
  questions_[number] = std::move(asked);
  bus_.call(
      [&](sd_bus* bus, sd_bus_message** m) {
        const int failed = watch_for_leaving(bus, sender, question);
        return failed < 0 ? failed : make_question(bus, m, sender, action, prompt, question.id);
      },
      prompt == Prompt::kAllowed ? timeouts_.prompt_ms : timeouts_.polkit_ms,
      [this, number, allowed = std::move(allowed)](sd_bus_message* answer) {
        const auto answered = questions_.extract(number);
        const bool late = ::sd_bus_message_is_method_error(answer, SD_BUS_ERROR_NO_REPLY) > 0;
        if (late && !answered.empty()) withdraw(answered.mapped()->id);
        allowed(::sd_bus_message_is_method_error(answer, nullptr) <= 0 && read_verdict(answer));
      });
  bus_.ask_whether_gone(sender, [this, number] {
    const auto open = questions_.find(number);
    if (open != questions_.end()) withdraw(open->second->id);
  });
}

// If the bus takes no more matches, the question still ends with its timeout.
int BusCallers::watch_for_leaving(sd_bus* bus, const std::string& sender, Question& question) {
  const auto installed = [](sd_bus_message*, void*, sd_bus_error*) { return 1; };
  return ::sd_bus_add_match_async(bus, &question.watch, Bus::rule_for_leaving(sender).c_str(),
                                  &caller_left, installed, &question);
}

// polkit answers a question that is withdrawn with an error, so the question still ends.
int BusCallers::caller_left(sd_bus_message*, void* question, sd_bus_error*) {
  const auto& left = *static_cast<const Question*>(question);
  left.callers->withdraw(left.id);
  return 0;
}

void BusCallers::withdraw(const std::string& id) {
  bus_.use([&](sd_bus* bus) { return send_withdrawal(bus, id); });
}

void BusCallers::forget() {
  known_.clear();
  waiting_.clear();
  questions_.clear();
}

}  // namespace djinn::daemon
