// SPDX-License-Identifier: Apache-2.0

// djinnctl drain, djinnctl resume: whether djinnd takes in new sessions and models.
#include "djinnctl/command_line.h"

namespace djinn::ctl {
namespace {

void add(CommandLine& line, const char* name, const char* what, bool draining) {
  line.verb(name, what).does([name, draining](const Invocation& invocation) -> Status {
    DJINN_TRY(const auto client, observe(invocation));
    DJINN_CHECK(client->set_draining(draining));
    if (!invocation.wants_json()) return {};
    return print_json(invocation, name, {Json{{"draining", draining}}});
  });
}

}  // namespace

void add_drain(CommandLine& line) {
  add(line, "drain", "take in no new session and no new model", true);
}

void add_resume(CommandLine& line) {
  add(line, "resume", "end a drain", false);
}

}  // namespace djinn::ctl
