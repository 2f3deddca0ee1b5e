// SPDX-License-Identifier: Apache-2.0

// djinnctl gate init|enrol|revoke|list|renew: who may come in through a djinn-gate, by
// certificates. djinn-gate-ca does it.
#include <fmt/format.h>

#include <algorithm>

#include "djinnctl/command_line.h"
#include "djinnctl/gate_authority.h"
#include "djinnctl/output.h"

namespace djinn::ctl {
namespace {

struct GateOptions {
  std::string folder;
  std::string trust_domain;
  std::vector<std::string> addresses;  // of init
  std::string who;
  std::string request;
  std::string address;  // of a profile
  uint32_t days = 30;
  std::string out;
};

std::vector<std::string> words_of(const char* verb, const GateOptions& options) {
  std::vector<std::string> words{verb};
  if (!options.folder.empty()) words.push_back("--credentials=" + options.folder);
  return words;
}

// Also with --quiet the command has done what it says, and the exit code tells.
void tell(const Invocation& invocation, const AuthorityAnswer& answer) {
  if (invocation.quiet || invocation.wants_json()) return;
  for (const std::string& note : answer.notes) write_error("djinnctl: " + note + '\n');
}

Status print(const Invocation& invocation, const char* schema, const AuthorityAnswer& answer,
             const Table& table) {
  tell(invocation, answer);
  if (invocation.wants_json()) return print_json(invocation, schema, answer.items);
  return write_out(table.text(invocation.layout));
}

// Shows where the authority is and when what ends.
Table table_of_whole(const AuthorityAnswer& answer) {
  Table table({{"FIELD"}, {"VALUE"}});
  for (const Json& item : answer.items) {
    for (const auto& [field, value] : item.items()) {
      std::string name = field;
      std::ranges::replace(name, '_', ' ');
      std::string text = value.is_string() ? value.get<std::string>() : "";
      for (const Json& one : value.is_array() ? value : Json::array()) {
        text += (text.empty() ? "" : ", ") + one.get<std::string>();
      }
      table.add({name, text});
    }
  }
  return table;
}

Status init(const Invocation& invocation, const GateOptions& options) {
  std::vector<std::string> words = words_of("init", options);
  if (!options.trust_domain.empty()) words.push_back("--trust-domain=" + options.trust_domain);
  for (const std::string& address : options.addresses) words.push_back("--address=" + address);
  DJINN_TRY(const AuthorityAnswer answer, ask_authority(words));
  return print(invocation, "gate-init", answer, table_of_whole(answer));
}

Status enrol(const Invocation& invocation, const GateOptions& options) {
  // The program cannot see it: its output is a pipe.
  if (options.out.empty() && out_is_terminal()) {
    return Error{ErrorCode::kInvalidArgument,
                 "A profile holds a key, which is not shown on a terminal. Give --out FILE."};
  }
  std::vector<std::string> words = words_of("enrol", options);
  words.push_back(fmt::format("--days={}", options.days));
  if (!options.request.empty()) words.push_back("--csr=" + options.request);
  if (!options.address.empty()) words.push_back("--address=" + options.address);
  if (!options.out.empty()) words.push_back("--out=" + options.out);
  words.insert(words.end(), {"--", options.who});
  DJINN_TRY(AuthorityAnswer answer, ask_authority(words));
  if (answer.profile.empty() || invocation.wants_json()) {
    if (!answer.profile.empty()) answer.items.front()["profile"] = answer.profile;
    return print(invocation, "gate-enrol", answer, certificate_table(answer.items));
  }
  tell(invocation, answer);
  return write_out(answer.profile);
}

Status revoke(const Invocation& invocation, const GateOptions& options) {
  std::vector<std::string> words = words_of("revoke", options);
  words.insert(words.end(), {"--", options.who});
  DJINN_TRY(const AuthorityAnswer answer, ask_authority(words));
  return print(invocation, "gate-revoke", answer, certificate_table(answer.items));
}

Status list(const Invocation& invocation, const GateOptions& options) {
  DJINN_TRY(const AuthorityAnswer answer, ask_authority(words_of("list", options)));
  return print(invocation, "gate-list", answer, certificate_table(answer.items));
}

Status renew(const Invocation& invocation, const GateOptions& options) {
  DJINN_TRY(const AuthorityAnswer answer, ask_authority(words_of("renew", options)));
  return print(invocation, "gate-renew", answer, table_of_whole(answer));
}

using Options = std::shared_ptr<GateOptions>;

Options add(const Verb& verb, Status (*action)(const Invocation&, const GateOptions&)) {
  auto options = std::make_shared<GateOptions>();
  verb.option("--credentials", options->folder,
              "where the certificates are [/etc/djinn/gate for root, else ~/.config/djinn/gate]")
      .called("DIRECTORY");
  verb.does(options, action);
  return options;
}

void add_enrol(const Verb& gate) {
  const Verb verb = gate.verb("enrol", "let somebody in: make a certificate and key");
  const Options options = add(verb, enrol);
  verb.option("NAME", options->who, "what they are called, like alice or team/alice").required();
  verb.option("--csr", options->request, "their certificate request: they keep the key")
      .called("FILE");
  verb.option("--days", options->days, "how long it lasts [30]")
      .called("NUMBER")
      .between<uint32_t>(1, 397);
  verb.option("--address", options->address,
              "where they reach the gate, as HOST or HOST:PORT [init's first]")
      .called("ADDRESS");
  verb.option("--out", options->out, "write the profile there [standard output]").called("FILE");
}

}  // namespace

void add_gate(CommandLine& line) {
  const Verb gate = line.verb("gate", "who may come in through djinn-gate");
  const Verb init_verb = gate.verb("init", "make an authority and the gate's certificate");
  const Options founded = add(init_verb, init);
  init_verb
      .option("--trust-domain", founded->trust_domain, "whose names these are [this host's name]")
      .called("DOMAIN");
  init_verb
      .repeated("--address", founded->addresses,
                "where clients reach the gate, as HOST or HOST:PORT; may be there several times "
                "[this host's name]")
      .called("ADDRESS");
  add_enrol(gate);
  const Verb revoke_verb = gate.verb("revoke", "take certificates back");
  revoke_verb
      .option("NAME", add(revoke_verb, revoke)->who,
              "a name, or the serial number of a certificate")
      .required();
  add(gate.verb("list", "who has a certificate"), list);
  add(gate.verb("renew", "make the gate's certificate and list anew"), renew);
}

}  // namespace djinn::ctl
