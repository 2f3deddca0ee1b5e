// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/gate_authority.h"

#include <unistd.h>

#include <array>
#include <cstdint>

#include "djinnctl/subprocess.h"
#include "djinnctl/text.h"

namespace djinn::ctl {
namespace {

constexpr std::array kTimes{"since",           "until",      "revoked",
                            "authority_until", "gate_until", "list_until"};

Error not_understood() {
  return {
      ErrorCode::kMalformed,
      "djinn-gate-ca says something that djinnctl does not know. Use the same version of both."};
}

// A build has it beside djinnctl.
std::string path_of_authority() {
  const std::string beside = own_directory() + "djinn-gate-ca";
  const bool is_beside = ::access(beside.c_str(), X_OK) == 0;
  return is_beside ? beside : own_directory() + "../libexec/djinn/djinn-gate-ca";
}

// Gives what a table or --json says of a time in seconds since the epoch.
Json time_of(const Json& seconds) {
  if (!seconds.is_number_unsigned()) return {};
  return time_text(seconds.get<uint64_t>() * kNsPerSecond);
}

Result<AuthorityAnswer> answer_of(const Json& said) {
  AuthorityAnswer answer;
  for (Json item : said.at("items")) {
    for (const char* field : kTimes) {
      if (item.contains(field)) item[field] = time_of(item[field]);
    }
    answer.items.push_back(std::move(item));
  }
  answer.notes = said.at("notes").get<std::vector<std::string>>();
  answer.profile = said.value("profile", "");
  return answer;
}

}  // namespace

Result<AuthorityAnswer> parse_authority_answer(const std::string& text) {
  try {
    const Json said = Json::parse(text);
    if (!said.contains("error")) return answer_of(said);
    const auto code = static_cast<ErrorCode>(said.at("error").get<uint16_t>());
    if (code == ErrorCode::kOk) return not_understood();
    return Error{code, said.at("message").get<std::string>()};
  } catch (const Json::exception&) {
    return not_understood();
  }
}

Result<AuthorityAnswer> ask_authority(const std::vector<std::string>& words) {
  std::vector<std::string> command{path_of_authority()};
  command.insert(command.end(), words.begin(), words.end());
  const auto said = run_program(command, ErrorsTo::kOurs);
  if (said) return parse_authority_answer(said->out);
  if (said.error().code != ErrorCode::kNotFound) return said.error();
  return Error{ErrorCode::kNotFound,
               "There is no djinn-gate-ca here, which has the certificates of a gate. Install "
               "djinn-gate, or ask on the machine where it is."};
}

Table certificate_table(const std::vector<Json>& items) {
  Table table({{"PRINCIPAL", Table::Align::kLeft, Table::Fit::kShortened},
               {"SERIAL"},
               {"UNTIL"},
               {"STATE"}});
  for (const Json& item : items) {
    const std::string until = item.value("until", "");
    table.add({item.value("principal", ""), item.value("serial", ""),
               until.substr(0, until.find('.')) + (until.empty() ? "" : "Z"),
               item.value("state", "")});
  }
  return table;
}

}  // namespace djinn::ctl
