// SPDX-License-Identifier: Apache-2.0

// djinn-gate-ca: the authority of a gate, for `djinnctl gate`.
//
//   djinn-gate-ca init|enrol|revoke|list|renew [--credentials DIR] ...
//
// It prints one line of JSON. On success: {"items": [...], "notes": [...]}, and "profile" where an
// enrolment names no file for it; times are seconds since the epoch. Else {"error": CODE,
// "message": TEXT}, with a number of kernel/base/error.h, and exit status 1.

#include <errno.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cctype>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "daemon/gate/authority/authority.h"
#include "kernel/base/file.h"

namespace djinn::authority {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kListWarningDays = 7;
constexpr int64_t kGateWarningDays = 30;
constexpr int64_t kAuthorityWarningDays = 366;  // as long as a client's certificate may last

struct Arguments {
  std::string folder;
  std::string trust_domain;
  std::vector<std::string> addresses;
  std::string who;
  std::string request_file;
  uint32_t days = 30;
  std::string address;
  std::string out;
};

struct Answer {
  std::vector<Json> items;
  std::vector<std::string> notes{};
  std::string profile{};
};

// Gives where the authority of whoever runs this is; empty where nothing says so.
std::string default_folder() {
  if (::geteuid() == 0) return "/etc/djinn/gate";
  const char* const config = ::getenv("XDG_CONFIG_HOME");
  if (config != nullptr && *config == '/') return std::string(config) + "/djinn/gate";
  const char* const home = ::getenv("HOME");
  return home != nullptr && *home == '/' ? std::string(home) + "/.config/djinn/gate" : "";
}

Result<std::string> host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) {
    return system_error("ask for the name of this host", errno);
  }
  std::string lower = name.data();
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  return lower;
}

Json to_json(const Issued& issued, int64_t now_s) {
  return {{"principal", issued.principal},
          {"serial", text_of(issued.serial)},
          {"since", issued.since_s},
          {"until", issued.until_s},
          {"state", name_of(issued.state(now_s))},
          {"revoked", issued.revoked_s ? Json(*issued.revoked_s) : Json()}};
}

Json whole(const std::string& folder, const Record& record, const Ends& ends) {
  return {{"directory", folder},
          {"trust_domain", record.trust_domain},
          {"gate", record.gate},
          {"addresses", record.addresses},
          {"authority_until", ends.authority_s},
          {"gate_until", ends.gate_s ? Json(*ends.gate_s) : Json()},
          {"list_until", ends.list_s ? Json(*ends.list_s) : Json()}};
}

// Says what ends soon, or is not there. What cannot be read undoes nothing that was done.
void warn(const Authority& authority, std::vector<std::string>& notes) {
  const auto read = authority.ends();
  if (!read) return notes.push_back(read.error().message);
  const Ends& ends = *read;
  const auto ends_within = [&](const std::optional<int64_t>& end, int64_t days) {
    return !end || *end < authority.now_s() + days * kDaySeconds;
  };
  if (ends_within(ends.list_s, kListWarningDays)) {
    notes.push_back(
        "The list of revoked certificates has ended, or ends within a week: then the gate lets "
        "nobody in. 'djinnctl gate renew' makes it anew.");
  }
  if (ends_within(ends.gate_s, kGateWarningDays)) {
    notes.push_back(
        "The gate's certificate has ended, or ends within a month: then no client connects. "
        "'djinnctl gate renew' makes it anew.");
  }
  if (ends_within(ends.authority_s, kAuthorityWarningDays)) {
    notes.push_back(
        "The authority ends within a year, and all certificates with it. Make another one, and "
        "enrol everybody anew.");
  }
}

const std::string kReload =
    "A gate that runs reads this when it gets SIGHUP: give its process one, by 'kill -HUP'.";

Result<Answer> init(const Arguments& arguments, Disk& disk, const Clock& clock) {
  Founding founding{.trust_domain = arguments.trust_domain, .host = ""};
  DJINN_TRY(founding.host, host_name());
  if (founding.trust_domain.empty()) founding.trust_domain = founding.host;
  for (const std::string& text : arguments.addresses) {
    DJINN_TRY(Address address, parse_address(text));
    founding.addresses.push_back(std::move(address));
  }
  DJINN_TRY(const Authority made, Authority::found(disk, clock, arguments.folder, founding));
  DJINN_TRY(const Ends ends, made.ends());
  return Answer{{whole(arguments.folder, made.record(), ends)}};
}

// Refuses before anything is signed what could not be handed over afterwards.
Status check_way_out(const Arguments& arguments) {
  if (arguments.out.empty() && ::isatty(STDOUT_FILENO) != 0) {
    return Error{ErrorCode::kInvalidArgument,
                 "A profile holds a key, which is not shown on a terminal. Give --out FILE."};
  }
  if (!arguments.out.empty() && is_there(arguments.out)) {
    return Error{ErrorCode::kAlreadyExists,
                 fmt::format("There is a {} already, and it is not replaced. Name another file, or "
                             "remove that one.",
                             arguments.out)};
  }
  return {};
}

Result<Enrolment> enrolment_of(const Arguments& arguments) {
  Enrolment enrolment{.name = arguments.who, .days = arguments.days};
  if (!arguments.request_file.empty()) {
    DJINN_TRY(enrolment.request, read_regular_file(arguments.request_file, kRequestBytesMax));
    enrolment.request_file = arguments.request_file;
  }
  if (!arguments.address.empty()) {
    DJINN_TRY(enrolment.address, parse_address(arguments.address));
  }
  return enrolment;
}

Result<Answer> enrol(const Arguments& arguments, Disk& disk, const Clock& clock) {
  DJINN_CHECK(check_way_out(arguments));
  DJINN_TRY(const Enrolment enrolment, enrolment_of(arguments));
  DJINN_TRY(Authority authority, Authority::open(disk, clock, arguments.folder));
  DJINN_TRY(Enrolled enrolled, authority.enrol(enrolment));
  Json item = to_json(enrolled.issued, authority.now_s());
  item["address"] = enrolled.address;
  item["gate"] = authority.record().gate;
  item["has_key"] = !enrolment.request.has_value();
  item["file"] = arguments.out.empty() ? Json() : Json(arguments.out);
  Answer answer{{std::move(item)}, {kReload}};
  warn(authority, answer.notes);
  if (arguments.out.empty()) {
    answer.profile = std::move(enrolled.profile);
    return answer;
  }
  constexpr Mode kSecret = 0600;
  const Status handed = put(disk, arguments.out, enrolled.profile, kSecret, Existing::kRefused);
  if (handed) return answer;
  return Error{handed.error().code,
               fmt::format("{}. The certificate was issued, and is in nobody's hands: 'djinnctl "
                           "gate revoke {}' takes it back.",
                           handed.error().message, text_of(enrolled.issued.serial))};
}

Result<Answer> revoke(const Arguments& arguments, Disk& disk, const Clock& clock) {
  DJINN_TRY(Authority authority, Authority::open(disk, clock, arguments.folder));
  DJINN_TRY(const auto revoked, authority.revoke(arguments.who));
  Answer answer;
  for (const Issued& one : revoked) answer.items.push_back(to_json(one, authority.now_s()));
  answer.notes.push_back(kReload);
  warn(authority, answer.notes);
  return answer;
}

Result<Answer> list(const Arguments& arguments, Disk& disk, const Clock& clock) {
  DJINN_TRY(const Authority authority, Authority::open(disk, clock, arguments.folder));
  Answer answer;
  for (const Issued& one : authority.record().issued) {
    answer.items.push_back(to_json(one, authority.now_s()));
  }
  warn(authority, answer.notes);
  return answer;
}

Result<Answer> renew(const Arguments& arguments, Disk& disk, const Clock& clock) {
  DJINN_TRY(Authority authority, Authority::open(disk, clock, arguments.folder));
  DJINN_TRY(const GateCertificate renewed, authority.renew());
  DJINN_TRY(const Ends ends, authority.ends());
  Answer answer{{whole(arguments.folder, authority.record(), ends)}, {kReload}};
  if (renewed == GateCertificate::kOfAnother) {
    answer.notes.push_back(
        "The gate's certificate is another authority's, and stays as it is: only the list was made "
        "anew.");
  }
  warn(authority, answer.notes);
  return answer;
}

using Action = Result<Answer> (*)(const Arguments&, Disk&, const Clock&);

Result<Answer> run(Arguments& arguments, Action action) {
  if (arguments.folder.empty()) arguments.folder = default_folder();
  if (arguments.folder.empty()) {
    return Error{ErrorCode::kInvalidArgument,
                 "Neither HOME nor XDG_CONFIG_HOME says where the authority is. Give --credentials "
                 "DIR."};
  }
  while (arguments.folder.size() > 1 && arguments.folder.ends_with('/'))
    arguments.folder.pop_back();
  Disk disk;
  const SystemClock clock;
  return action(arguments, disk, clock);
}

void add_verbs(CLI::App& app, Arguments& arguments, Action& action) {
  const auto verb = [&](const char* name, Action does) {
    CLI::App* const added = app.add_subcommand(name);
    added->add_option("--credentials", arguments.folder);
    added->callback([&action, does] { action = does; });
    return added;
  };
  CLI::App* const init_verb = verb("init", init);
  init_verb->add_option("--trust-domain", arguments.trust_domain);
  init_verb->add_option("--address", arguments.addresses)->allow_extra_args(false);
  CLI::App* const enrol_verb = verb("enrol", enrol);
  enrol_verb->add_option("NAME", arguments.who)->required();
  enrol_verb->add_option("--csr", arguments.request_file);
  enrol_verb->add_option("--days", arguments.days);
  enrol_verb->add_option("--address", arguments.address);
  enrol_verb->add_option("--out", arguments.out);
  verb("revoke", revoke)->add_option("NAME", arguments.who)->required();
  verb("list", list);
  verb("renew", renew);
  app.require_subcommand(1);
}

// Tells whether all of it was written.
bool write_out(const Json& json) {
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
  for (size_t at = 0; at < text.size();) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data() + at, text.size() - at);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    at += static_cast<size_t>(written);
  }
  return true;
}

int finish(const Result<Answer>& answer) {
  if (!answer) {
    const Error& error = answer.error();
    write_out({{"error", static_cast<unsigned>(error.code)}, {"message", error.message}});
    return 1;
  }
  Json json{{"items", answer->items}, {"notes", answer->notes}};
  if (!answer->profile.empty()) json["profile"] = answer->profile;
  return write_out(json) ? 0 : 1;
}

}  // namespace
}  // namespace djinn::authority

int main(int argc, char** argv) {
  ::prctl(PR_SET_DUMPABLE, 0);  // a core would hold keys
  djinn::authority::Arguments arguments;
  djinn::authority::Action action = nullptr;
  CLI::App app("djinn-gate-ca: the authority of a gate; 'djinnctl gate' runs it", "djinn-gate-ca");
  app.set_version_flag("--version", DJINN_VERSION);
  djinn::authority::add_verbs(app, arguments, action);
  CLI11_PARSE(app, argc, argv);
  return djinn::authority::finish(djinn::authority::run(arguments, action));
}
