// SPDX-License-Identifier: Apache-2.0

// djinnctl events: what happened in djinnd lately, a line each; with -f, what happens from now on.
#include <fmt/format.h>
#include <unistd.h>

#include "djinnctl/command_line.h"
#include "djinnctl/output.h"
#include "djinnctl/text.h"
#include "libdjinn-client/connect_advice.h"

namespace djinn::ctl {
namespace {

// djinnd keeps some hundred; others may come while these are read.
constexpr size_t kOldMax = size_t{64} << 10;

struct EventOptions {
  bool follow = false;
  bool new_only = false;
};

// The event's text as the log has it.
std::string whole_text(const ipc::EventReport& event) {
  std::string text = event.text;
  if (!event.path.empty()) text += ", from " + event.path;
  if (!event.reason.empty()) text += ": " + event.reason;
  return text;
}

// The event's line; on a terminal, which has no room for nanoseconds, with seconds alone.
std::string line_of(const ipc::EventReport& event) {
  const Terminal out = terminal_of(STDOUT_FILENO);
  const std::string time = out.is_terminal ? second_text(event.wall_ns) : time_text(event.wall_ns);
  return fmt::format("{}  {:<17}  {}\n", time, name_of(event.kind),
                     sentence_for(out, whole_text(event)));
}

// RFC 7464: each text begins with a record separator and ends with a newline.
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

Status events(const Invocation& invocation, const EventOptions& options) {
  DJINN_TRY(const auto client, observe(invocation));
  uint64_t after = 0;
  size_t told = 0;
  bool old = true;  // what was before: it comes in pages, until one is empty
  for (;;) {
    DJINN_TRY(ipc::EventList list, client->events(after, options.follow && !old));
    if (after == 0) list.missed = 0;  // nobody asked for those
    after = list.last;
    if (!old || !options.new_only) DJINN_CHECK(print(invocation, list));
    told += list.events.size();
    if (old && told > kOldMax) {
      return client::not_as_djinnd_answers(ErrorCode::kProtocolViolation,
                                           "The daemon's events have no end.");
    }
    if (old && !list.events.empty()) continue;
    if (!options.follow) return {};
    old = false;
  }
}

}  // namespace

void add_events(CommandLine& line) {
  const Verb verb = line.verb("events", "what happened in djinnd lately");
  auto options = std::make_shared<EventOptions>();
  verb.flag("-f,--follow", options->follow, "and go on with what happens");
  verb.flag("-n,--new", options->new_only, "leave out what was before; with -f");
  verb.does(options, events);
}

}  // namespace djinn::ctl
