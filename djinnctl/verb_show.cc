// SPDX-License-Identifier: Apache-2.0

// djinnctl show OBJECT shows every field of one model with who uses it, one session with its
// models, or one program, or with --graph the graph of one; with --schedule what lanes have decided
// lately.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "djinnctl/command_line.h"
#include "djinnctl/dtypes.h"
#include "djinnctl/json.h"
#include "djinnctl/object.h"
#include "djinnctl/output.h"
#include "djinnctl/program_graph.h"
#include "djinnctl/table.h"
#include "djinnctl/tables.h"
#include "djinnctl/text.h"
#include "djinnctl/uses.h"
#include "kernel/base/text.h"

namespace djinn::ctl {
namespace {

// This is an object as it is shown: its JSON item, and tables of what belongs to it, if anything
// does.
struct Shown {
  Json item;
  std::vector<Table> beside;
};

// Gives the JSON item, with its kind first.
Json item_of(const char* kind, Json report) {
  Json item{{"kind", kind}};
  item.update(report);
  return item;
}

std::string joined(const Json& texts) {
  std::string text;
  for (const Json& one : texts) text += (text.empty() ? "" : ", ") + one.get<std::string>();
  return text;
}

std::string value_text(const std::string& field, const Json& value) {
  if (value.is_null()) return "";
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array()) return joined(value);
  const bool is_size = field.starts_with("bytes") || field.ends_with("_bytes");
  return is_size ? size_text(value.get<uint64_t>()) : value.dump();
}

struct Word {
  const char* kind;
  const char* field;
  const char* header;
};
// The tables of ps, sessions and programs have their own words for these fields of JSON.
constexpr std::array<Word, 20> kWords{{{"model", "bytes", "SIZE"},
                                       {"model", "leases", "REFS"},
                                       {"model", "pinned", "PIN"},
                                       {"session", "name", "APP"},
                                       {"session", "granted_bytes", "MEMORY"},
                                       {"session", "shared_bytes", "SHARED"},
                                       {"session", "stated_local_models", "LOCAL"},
                                       {"session", "wait", "WAIT"},
                                       {"session", "tier", "TIER"},
                                       {"session", "pid", "PID"},
                                       {"program", "model", "MODEL"},
                                       {"program", "graph_bytes", "SIZE"},
                                       {"program", "outputs", "OUTPUTS"},
                                       {"program", "sessions", "REFS"},
                                       {"", "id", "ID"},
                                       {"", "owner", "USER"},
                                       {"", "state", "STATE"},
                                       {"", "device", "DEVICE"},
                                       {"model", "until", "UNTIL"},
                                       {"model", "numerics", "NUMERICS"}}};

// Gives the word that the tables have for the field, or else the field's name in JSON.
std::string word_for(const std::string& kind, const std::string& field) {
  for (const Word& word : kWords) {
    const bool is_of_kind = *word.kind == '\0' || word.kind == kind;
    if (is_of_kind && word.field == field) return word.header;
  }
  if (kind == "model" && field == "name") return "NAME";
  std::string words = field;
  std::ranges::replace(words, '_', ' ');
  return words;
}

// Shows the item's fields except for lists of objects, which have tables of their own.
std::string item_table(const Json& item, const Table::Layout& layout) {
  Table table({{"FIELD"}, {"VALUE"}});
  const std::string kind = item["kind"];
  for (const auto& [field, value] : item.items()) {
    if (value.is_array() && !value.empty() && value.front().is_object()) continue;
    table.add({word_for(kind, field), value_text(field, value)});
  }
  return table.text(layout);
}

Result<Shown> shown_model(client::Client& client, const ipc::ModelReport& model) {
  DJINN_TRY(const auto used, with_uses(client, std::span(&model, 1)));
  DJINN_TRY(const auto manifest, client.manifest(model.model));
  const std::vector<DTypeUse> dtypes = dtypes_of(manifest);
  Shown shown{item_of("model", to_json(used.front())), {}};
  Json& listed = shown.item["dtypes"] = Json::array();
  for (const DTypeUse& use : dtypes) listed.push_back(to_json(use));
  if (!dtypes.empty()) shown.beside.push_back(dtype_table(dtypes));
  if (!used.front().holders.empty()) shown.beside.push_back(holder_table(used.front().holders));
  if (!used.front().names.empty()) shown.beside.push_back(name_table(used.front().names));
  return shown;
}

Result<Shown> shown_session(client::Client& client, const ipc::SessionReport& session,
                            std::span<const ipc::ModelReport> models) {
  DJINN_TRY(const auto used, with_uses(client, models));
  Shown shown{item_of("session", to_json(session, used)), {}};
  const auto held = held_by(session.session, used);
  if (!held.empty()) shown.beside.push_back(model_table(held, now_ns()));
  return shown;
}

struct Found {
  Shown shown;
  std::optional<ipc::ProgramReport> program;
};

Result<Found> find(client::Client& client, const std::string& text) {
  DJINN_TRY(const auto models, client.models());
  DJINN_TRY(const auto sessions, client.sessions());
  DJINN_TRY(const auto programs, client.programs());
  std::vector<Candidate> candidates;
  for (const ipc::ModelReport& model : models) candidates.push_back(candidate_of(model));
  for (const ipc::SessionReport& session : sessions) candidates.push_back(candidate_of(session));
  for (const ipc::ProgramReport& program : programs) candidates.push_back(candidate_of(program));
  DJINN_TRY(size_t index, find_object(client, text, models, std::move(candidates)));
  if (index < models.size()) {
    DJINN_TRY(Shown model, shown_model(client, models[index]));
    return Found{std::move(model), {}};
  }
  index -= models.size();
  if (index < sessions.size()) {
    DJINN_TRY(Shown session, shown_session(client, sessions[index], models));
    return Found{std::move(session), {}};
  }
  const ipc::ProgramReport& program = programs[index - sessions.size()];
  return Found{{item_of("program", to_json(program)), {}}, program};
}

// Shows what lanes have decided: that of a session, or all.
Status show_schedules(const Invocation& invocation, const std::string& text) {
  DJINN_TRY(const auto client, observe(invocation));
  SessionId session;
  if (!text.empty()) {
    DJINN_TRY(const auto found, find_session(*client, text));
    session = found.session;
  }
  DJINN_TRY(const auto reports, client->schedules(session));
  if (invocation.wants_json()) {
    std::vector<Json> items;
    for (const ipc::ScheduleReport& report : reports) items.push_back(to_json(report, now_ns()));
    return print_json(invocation, "schedule", std::move(items));
  }
  std::string out;
  for (const ipc::ScheduleReport& report : reports) {
    if (!out.empty()) out += '\n';
    out += fmt::format("{} of {}: {}\n", report.device, showable(report.owner),
                       name_of(report.schedule.policy));
    out += schedule_table(report.schedule.decisions).text(invocation.layout);
  }
  return write_out(out);
}

struct ShowOptions {
  std::string object;
  bool graph = false;
  bool schedule = false;
};

Status show_graph(const Invocation& invocation, client::Client& client, const Found& found) {
  if (!found.program) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("This is a {}, and only programs have a graph. djinnctl programs "
                             "lists them.",
                             found.shown.item["kind"].get<std::string>())};
  }
  DJINN_TRY(srg::Graph graph, client.graph(found.program->program));
  srg::ModelManifest model;
  if (found.program->model.valid()) {
    DJINN_TRY(model, client.manifest(found.program->model));
  }
  DJINN_TRY(const ProgramGraph shown,
            graph_as_run(*found.program, std::move(graph), model.tensors));
  if (invocation.wants_json()) return print_json(invocation, "graph", {to_json(shown)});
  return write_out(text_of(shown));
}

Status show(const Invocation& invocation, const ShowOptions& options) {
  if (options.schedule && options.graph) {
    return Error{ErrorCode::kInvalidArgument, "--graph and --schedule show different things."};
  }
  if (options.schedule) return show_schedules(invocation, options.object);
  if (options.object.empty()) {
    return Error{ErrorCode::kInvalidArgument,
                 "OBJECT is missing: name a model, a session or a program."};
  }
  DJINN_TRY(const auto client, observe(invocation));
  DJINN_TRY(Found found, find(*client, options.object));
  if (options.graph) return show_graph(invocation, *client, found);
  Shown& shown = found.shown;
  if (invocation.wants_json()) return print_json(invocation, "show", {std::move(shown.item)});
  std::string out = item_table(shown.item, invocation.layout);
  for (const Table& table : shown.beside) out += '\n' + table.text(invocation.layout);
  return write_out(out);
}

}  // namespace

void add_show(CommandLine& line) {
  const Verb verb = line.verb("show", "one model, session or program; lanes' decisions");
  auto options = std::make_shared<ShowOptions>();
  verb.option("OBJECT", options->object,
              "its id or the first four digits of it; of a model its name or path, too");
  verb.flag("--graph", options->graph, "of a program: its graph, and what fast numerics make");
  verb.flag("--schedule", options->schedule,
            "whose steps lanes took last, and why: all lanes, or that of the session OBJECT");
  verb.does(options, show);
}

}  // namespace djinn::ctl
