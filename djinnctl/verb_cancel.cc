// SPDX-License-Identifier: Apache-2.0

// djinnctl cancel SESSION ends the session's run in flight; djinnctl terminate SESSION ends all of
// it.
#include "djinnctl/command_line.h"
#include "djinnctl/object.h"
#include "djinnctl/text.h"

namespace djinn::ctl {
namespace {

using Order = Status (client::Client::*)(SessionId);

Status steer(const Invocation& invocation, const std::string& prefix, const char* verb,
             Order order) {
  DJINN_TRY(const auto client, observe(invocation));
  DJINN_TRY(const ipc::SessionReport session, find_session(*client, prefix));
  DJINN_CHECK((client.get()->*order)(session.session));
  if (!invocation.wants_json()) return {};
  const Json item{
      {"id", id_text(session.session)}, {"name", session.client_name}, {"pid", session.pid}};
  return print_json(invocation, verb, {item});
}

void add(CommandLine& line, const char* name, const char* what, Order order) {
  const Verb verb = line.verb(name, what);
  auto prefix = std::make_shared<std::string>();
  verb.option("SESSION", *prefix, "its id, or the first four digits of it").required();
  verb.does([prefix, name, order](const Invocation& invocation) {
    return steer(invocation, *prefix, name, order);
  });
}

}  // namespace

void add_cancel(CommandLine& line) {
  add(line, "cancel", "give up the run that a session has in flight", &client::Client::cancel_run);
}

void add_terminate(CommandLine& line) {
  add(line, "terminate", "end a session and free what it holds",
      &client::Client::terminate_session);
}

}  // namespace djinn::ctl
