// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/top.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "djinnctl/tables.h"
#include "djinnctl/text.h"
#include "kernel/base/clock.h"

namespace djinn::ctl {
namespace {

constexpr std::array<std::string_view, 4> kSorts{"memory", "rate", "age", "user"};
constexpr size_t kBarColumns = 20;

struct Row {
  const ipc::SessionReport* session = nullptr;
  std::optional<double> steps_per_second;  // nothing: it was not in the view before
};

uint64_t tokens_of(const TopSample& sample) {
  uint64_t tokens = 0;
  for (const ipc::WorkerReport& worker : sample.status.workers) tokens += worker.tokens;
  return tokens;
}

// If a counter began anew, it counts from zero.
double rate(uint64_t now, uint64_t before, double seconds) {
  const uint64_t more = now >= before ? now - before : now;
  return seconds > 0 ? static_cast<double>(more) / seconds : 0;
}

std::string rate_text(std::optional<double> per_second) {
  return per_second ? fmt::format("{:.1f}", *per_second) : "-";
}

double seconds_between(const TopSample& now, const TopSample* before) {
  if (before == nullptr || now.wall_ns <= before->wall_ns) return 0;
  return static_cast<double>(now.wall_ns - before->wall_ns) / kNsPerSecond;
}

std::vector<Row> rows_of(const TopSample& now, const TopSample* before) {
  std::map<SessionId, uint64_t> steps;
  if (before != nullptr) {
    for (const ipc::SessionReport& session : before->sessions) {
      steps[session.session] = session.steps;
    }
  }
  const double seconds = seconds_between(now, before);
  std::vector<Row> rows;
  for (const ipc::SessionReport& session : now.sessions) {
    const auto known = steps.find(session.session);
    Row& row = rows.emplace_back(Row{&session, {}});
    if (known != steps.end()) row.steps_per_second = rate(session.steps, known->second, seconds);
  }
  return rows;
}

bool before_in(TopSort sort, const Row& a, const Row& b) {
  switch (sort) {
    case TopSort::kMemory:
      return a.session->granted_bytes > b.session->granted_bytes;
    case TopSort::kRate:
      return a.steps_per_second > b.steps_per_second;
    case TopSort::kAge:
      return a.session->started_wall_ns < b.session->started_wall_ns;
    case TopSort::kUser:
      return a.session->owner < b.session->owner;
  }
  return false;
}

std::string counted(uint64_t number, std::string_view what) {
  return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
}

std::string bar(uint64_t part, uint64_t whole) {
  const size_t filled =
      whole == 0 ? 0
                 : static_cast<size_t>(std::min<double>(
                       kBarColumns, static_cast<double>(part) / static_cast<double>(whole) *
                                        static_cast<double>(kBarColumns)));
  return '[' + std::string(filled, '#') + std::string(kBarColumns - filled, ' ') + ']';
}

std::string summary(const TopSample& now, const TopSample* before) {
  const ipc::StatusReport& s = now.status;
  uint64_t runs = 0;
  uint32_t ready = 0;
  for (const ipc::WorkerReport& worker : s.workers) {
    runs += worker.runs;
    ready += worker.state == ipc::WorkerState::kReady ? 1 : 0;
  }
  const uint64_t resident = static_cast<uint64_t>(
      std::ranges::count(now.models, ipc::ModelState::kResident, &ipc::ModelReport::state));
  const double seconds = seconds_between(now, before);
  std::optional<double> tokens;
  if (before != nullptr) tokens = rate(tokens_of(now), tokens_of(*before), seconds);
  std::string text = fmt::format("djinnd {}, up {}{}: {}, {} of {} resident, {}\n", s.version,
                                 age_text(s.started_wall_ns, now.wall_ns),
                                 s.draining ? ", draining" : "", counted(s.sessions, "session"),
                                 resident, counted(s.models, "model"), counted(ready, "worker"));
  text += fmt::format("memory {} {} of {}\n", bar(s.memory_granted_bytes, s.memory_total_bytes),
                      size_text(s.memory_granted_bytes), size_text(s.memory_total_bytes));
  text += fmt::format("       models {}, sessions {}, lanes {}\n", size_text(s.memory_models_bytes),
                      size_text(s.memory_sessions_bytes), size_text(s.memory_lanes_bytes));
  text += fmt::format("work   {} tokens/s, {} runs, {} programs\n", rate_text(tokens), runs,
                      s.programs);
  return text;
}

std::string session_rows(const std::vector<Row>& rows, uint64_t now_ns,
                         const Table::Layout& layout) {
  using enum Table::Align;
  // Names must not push the figures off the screen.
  Table table({{"SESSION"},
               {"USER", kLeft, Table::Fit::kShortened},
               {"PID", kRight, Table::Fit::kLeftOutLast},
               {"APP", kLeft, Table::Fit::kShortened},
               {"STATE", kLeft, Table::Fit::kLeftOutLast},
               {"WAIT", kLeft, Table::Fit::kLeftOutLast},
               {"SINCE", kRight, Table::Fit::kOptional},
               {"STEPS/S", kRight},
               {"MEMORY", kRight},
               {"SHARED", kRight, Table::Fit::kLeftOutLast}});
  for (const Row& row : rows) {
    const ipc::SessionReport& s = *row.session;
    table.add({id_text(s.session), s.owner, std::to_string(s.pid), app_text(s.client_name),
               std::string(state_text(s.state)), std::string(wait_text(s.wait)),
               age_text(s.started_wall_ns, now_ns), rate_text(row.steps_per_second),
               size_text(s.granted_bytes), size_text(s.shared_bytes)});
  }
  return table.text({.isolates = layout.isolates, .columns_max = layout.columns_max});
}

std::string cut_lines(std::string_view text, size_t columns) {
  std::string out;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    out += cut(text.substr(0, end), columns);
    out += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

}  // namespace

std::optional<TopSort> top_sort_named(std::string_view name) {
  const auto found = std::ranges::find(kSorts, name);
  if (found == kSorts.end()) return std::nullopt;
  return static_cast<TopSort>(found - kSorts.begin());
}

std::string_view name_of(TopSort sort) {
  return kSorts[static_cast<size_t>(sort)];
}

TopSort next(TopSort sort) {
  return static_cast<TopSort>((static_cast<size_t>(sort) + 1) % kSorts.size());
}

std::string top_frame(const TopSample& now, const TopSample* before, TopSort sort,
                      const Table::Layout& layout) {
  std::vector<Row> rows = rows_of(now, before);
  std::ranges::stable_sort(rows, [&](const Row& a, const Row& b) { return before_in(sort, a, b); });
  std::string text = summary(now, before) + '\n' + session_rows(rows, now.wall_ns, layout);
  return layout.columns_max == 0 ? text : cut_lines(text, layout.columns_max);
}

}  // namespace djinn::ctl
