// SPDX-License-Identifier: Apache-2.0

// djinnctl events tells what happened in djinnd lately, a line each; with -f, what happens from now
// on.
#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cstdint>
#include <optional>

#include "djinnctl/command_line.h"
#include "djinnctl/output.h"
#include "djinnctl/text.h"
#include "libdjinn-client/connect_advice.h"

namespace djinn::ctl {
namespace {

// djinnd keeps some hundred events; others may come while these are read.
constexpr size_t kOldMax = size_t{64} << 10;

constexpr size_t kLinesAlone = 10;  // as journalctl's -n

struct EventOptions {
  bool follow = false;
  bool new_only = false;
  std::string lines;  // empty: all
};

std::optional<size_t> number_of(const std::string& text) {
  size_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && rest == end ? std::optional(number) : std::nullopt;
}

std::string fault_of_lines(const std::string& text) {
  if (text.empty() || number_of(text)) return {};
  return fmt::format("'{}' is no number of events. Write 'djinnctl events -n {}' for the last {}.",
                     text, kLinesAlone, kLinesAlone);
}

// Gives the event's text as the log has it.
std::string whole_text(const ipc::EventReport& event) {
  std::string text = event.text;
  if (!event.path.empty()) text += ", from " + event.path;
  if (!event.reason.empty()) text += ": " + event.reason;
  return text;
}

// Gives the event's line. A terminal has no room for nanoseconds, so its time is in seconds.
std::string line_of(const ipc::EventReport& event) {
  const Terminal out = terminal_of(STDOUT_FILENO);
  const std::string time = out.is_terminal ? second_text(event.wall_ns) : time_text(event.wall_ns);
  return fmt::format("{}  {:<17}  {}\n", time, name_of(event.kind),
                     sentence_for(out, whole_text(event)));
}

// RFC 7464 wants a record separator before each text, and a newline after it.
std::string record_of(const Invocation& invocation, const ipc::EventReport& event) {
  return '\x1e' + json_text("events", {to_json(event)}, invocation.json);
}

Status print(const Invocation& invocation, const ipc::EventList& list) {
  std::string text;
  if (list.missed > 0 && !invocation.quiet) {
    write_error(fmt::format("djinnctl: {} events are forgotten already\n", list.missed));
  }
  for (const ipc::EventReport& event : list.events) {
    text += invocation.wants_json() ? record_of(invocation, event) : line_of(event);
  }
  return write_out(text);
}

// Gives all events until now. They come in pages, and the last page is empty.
Result<ipc::EventList> old_events(client::Client& client) {
  ipc::EventList all;
  for (;;) {
    DJINN_TRY(const ipc::EventList page, client.events(all.last, false));
    if (all.last != 0) all.missed += page.missed;  // nobody asked for those before the first
    all.last = page.last;
    if (page.events.empty()) return all;
    all.events.insert(all.events.end(), page.events.begin(), page.events.end());
    if (all.events.size() > kOldMax) {
      return client::not_as_djinnd_answers(ErrorCode::kProtocolViolation,
                                           "The daemon's events have no end.");
    }
  }
}

Status events(const Invocation& invocation, const EventOptions& options) {
  DJINN_TRY(const auto client, observe(invocation));
  DJINN_TRY(ipc::EventList list, old_events(*client));
  const size_t lines = options.new_only ? 0 : number_of(options.lines).value_or(SIZE_MAX);
  if (lines < list.events.size()) {
    list.events.erase(list.events.begin(), list.events.end() - static_cast<ptrdiff_t>(lines));
  }
  DJINN_CHECK(print(invocation, list));
  while (options.follow) {
    DJINN_TRY(list, client->events(list.last, true));
    DJINN_CHECK(print(invocation, list));
  }
  return {};
}

}  // namespace

void add_events(CommandLine& line) {
  const Verb verb = line.verb("events", "what happened in djinnd lately");
  auto options = std::make_shared<EventOptions>();
  verb.flag("-f,--follow", options->follow, "and go on with what happens");
  const Option lines = verb.optional("-n,--lines", options->lines, std::to_string(kLinesAlone),
                                     "of what was before only the last so many [all; 10 "
                                     "without a number]")
                           .called("NUMBER")
                           .checked(fault_of_lines);
  verb.flag("--new", options->new_only, "leave out what was before; with -f").excludes(lines);
  verb.does(options, events);
}

}  // namespace djinn::ctl
