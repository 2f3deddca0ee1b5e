// SPDX-License-Identifier: Apache-2.0

// djinnctl show ID: one model, session or program, every field.
#include "djinnctl/command_line.h"
#include "djinnctl/json.h"
#include "djinnctl/output.h"
#include "djinnctl/prefix.h"
#include "djinnctl/table.h"
#include "djinnctl/text.h"

namespace djinn::ctl {
namespace {

// The JSON item, with its kind first.
Json item_of(const char* kind, Json report) {
  Json item{{"kind", kind}};
  item.update(report);
  return item;
}

std::string value_text(const std::string& field, const Json& value) {
  if (value.is_null()) return "";
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_string()) return value.get<std::string>();
  const bool is_size = field.starts_with("bytes") || field.ends_with("_bytes");
  return is_size ? size_text(value.get<uint64_t>()) : value.dump();
}

std::string item_table(const Json& item, const Table::Layout& layout) {
  Table table({{"FIELD"}, {"VALUE"}});
  for (const auto& [field, value] : item.items()) table.add({field, value_text(field, value)});
  return table.text(layout);
}

Result<Json> find(client::Client& client, const std::string& prefix) {
  DJINN_TRY(const auto models, client.models());
  DJINN_TRY(const auto sessions, client.sessions());
  DJINN_TRY(const auto programs, client.programs());
  std::vector<Candidate> candidates;
  for (const ipc::ModelReport& model : models) candidates.push_back(candidate_of(model));
  for (const ipc::SessionReport& session : sessions) candidates.push_back(candidate_of(session));
  for (const ipc::ProgramReport& program : programs) candidates.push_back(candidate_of(program));
  DJINN_TRY(size_t index, find_by_prefix(prefix, candidates));
  if (index < models.size()) return item_of("model", to_json(models[index]));
  index -= models.size();
  if (index < sessions.size()) return item_of("session", to_json(sessions[index]));
  return item_of("program", to_json(programs[index - sessions.size()]));
}

Status show(const Invocation& invocation, const std::string& prefix) {
  DJINN_TRY(const auto client, observe(invocation));
  DJINN_TRY(Json item, find(*client, prefix));
  if (!invocation.wants_json()) return write_out(item_table(item, invocation.layout));
  return print_json(invocation, "show", {std::move(item)});
}

}  // namespace

void add_show(CommandLine& line) {
  const Verb verb = line.verb("show", "one model, session or program");
  auto prefix = std::make_shared<std::string>();
  verb.option("ID", *prefix, "its id, or the first digits of it").required();
  verb.does(prefix, show);
}

}  // namespace djinn::ctl
