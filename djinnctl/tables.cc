// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "djinnctl/text.h"

namespace djinn::ctl {
namespace {

using enum Table::Align;
using enum Table::Fit;

// Gives, for example, "5.0 MiB", or "24% of 5.0 MiB" while the model is being read.
std::string model_size(const ipc::ModelReport& model) {
  const std::string size = size_text(model.bytes);
  if (model.state != ipc::ModelState::kLoading) return size;
  return fmt::format("{}% of {}", percent_of(model.bytes_loaded, model.bytes), size);
}

// Tells whether two models have one name, and differ in how their files were to be loaded.
bool plans_tell_apart(std::span<const ipc::ModelReport> models) {
  std::map<std::string, uint32_t> plans;
  return std::ranges::any_of(models, [&](const ipc::ModelReport& model) {
    return plans.try_emplace(model.label, model.plan).first->second != model.plan;
  });
}

}  // namespace

std::string app_text(const std::string& client_name) {
  constexpr size_t kColumnsMax = 64;
  return shortened(client_name, kColumnsMax);
}

// Where it is, and the GPUs that have a copy: "cpu:0,cuda:0".
static std::string device_text(const ipc::ModelReport& model) {
  std::string text = model.device;
  for (const std::string& name : ipc::copies_of(model)) text += "," + name;
  return text;
}

Table model_table(std::span<const ipc::ModelReport> models, uint64_t now_ns) {
  const bool with_plans = plans_tell_apart(models);
  std::vector<Table::Column> columns{{"NAME", kLeft, kShortened},    {"ID"},
                                     {"DEVICE", kLeft, kOptional},   {"SIZE", kRight},
                                     {"REFS", kRight, kLeftOutLast}, {"STATE", kLeft, kLeftOutLast},
                                     {"PIN", kLeft, kLeftOutLast},   {"UNTIL"},
                                     {"USER", kLeft, kLeftOutLast}};
  if (with_plans) columns.push_back({"PLAN", kLeft, kOptional});
  const bool with_numerics = std::ranges::any_of(
      models, [](const ipc::ModelReport& model) { return model.numerics.has_value(); });
  if (with_numerics) columns.push_back({"NUMERICS", kLeft, kOptional});
  Table table(std::move(columns));
  for (const ipc::ModelReport& model : models) {
    std::vector<std::string> cells{model.label,
                                   id_text(model.model),
                                   device_text(model),
                                   model_size(model),
                                   std::to_string(model.leases),
                                   std::string(state_text(model.state)),
                                   model.pinned ? "yes" : "no",
                                   until_text(model, now_ns),
                                   model.owner};
    if (with_plans) cells.push_back(plan_text(model.plan));
    if (with_numerics) cells.emplace_back(numerics_text(model));
    table.add(std::move(cells));
  }
  return table;
}

Table published_table(std::span<const ipc::PublishedReport> published, uint64_t now_ns) {
  Table table({{"NAME", kLeft, kShortened},
               {"SIZE", kRight},
               {"FILES", kRight, kLeftOutLast},
               {"READERS", kLeft, kLeftOutLast},
               {"OWNER", kLeft, kLeftOutLast},
               {"AGE", kRight, kLeftOutLast}});
  for (const ipc::PublishedReport& one : published) {
    table.add({one.name, size_text(one.bytes), std::to_string(one.files), one.readers, one.owner,
               age_text(one.since_wall_ns, now_ns)});
  }
  return table;
}

Table session_table(std::span<const ipc::SessionReport> sessions, uint64_t now_ns) {
  Table table({{"SESSION"},
               {"USER", kLeft, kShortened},
               {"PID", kRight, kLeftOutLast},
               {"APP", kLeft, kShortened},
               {"STATE", kLeft, kLeftOutLast},
               {"SINCE", kRight, kLeftOutLast},
               {"WAIT", kLeft, kLeftOutLast},
               {"MEMORY", kRight},
               {"SHARED", kRight, kLeftOutLast},
               {"TIER", kRight, kOptional},
               {"CROSSED", kRight, kOptional},
               {"LOCAL", kRight, kOptional}});
  for (const ipc::SessionReport& session : sessions) {
    table.add({id_text(session.session), session.owner, std::to_string(session.pid),
               app_text(session.client_name), std::string(state_text(session.state)),
               age_text(session.started_wall_ns, now_ns), std::string(wait_text(session.wait)),
               size_text(session.granted_bytes), size_text(session.shared_bytes),
               std::string(tier_text(session.counts.tier)),
               size_text(session.counts.bytes_in + session.counts.bytes_out),
               std::to_string(session.stated.local_models)});
  }
  return table;
}

Table holder_table(std::span<const ipc::UseReport> holders) {
  Table table({{"SESSION"},
               {"USER", kLeft, kShortened},
               {"PID", kRight, kLeftOutLast},
               {"APP", kLeft, kShortened}});
  for (const ipc::UseReport& use : holders) {
    table.add(
        {id_text(use.session), use.owner, std::to_string(use.pid), app_text(use.client_name)});
  }
  return table;
}

Table name_table(std::span<const ipc::UseReport> names) {
  Table table(
      {{"USER", kLeft, kShortened}, {"NAME", kLeft, kShortened}, {"PATH", kLeft, kShortened}});
  for (const ipc::UseReport& use : names) table.add({use.owner, use.label, use.path});
  return table;
}

Table dtype_table(std::span<const DTypeUse> dtypes) {
  Table table({{"DTYPE"}, {"TENSORS", kRight}, {"SIZE", kRight}});
  for (const DTypeUse& use : dtypes) {
    table.add({std::string(name_of(use.dtype)), std::to_string(use.tensors), size_text(use.bytes)});
  }
  return table;
}

Table schedule_table(std::span<const ipc::ScheduleDecision> decisions) {
  const auto ms_text = [](auto ns) {
    return fmt::format("{:.2f}ms", static_cast<double>(ns) / 1e6);
  };
  Table table({{"AGO", kRight},
               {"SESSION"},
               {"CLASS"},
               {"READY", kRight, kOptional},
               {"LAG", kRight, kLeftOutLast},
               {"DEADLINE", kRight, kLeftOutLast},
               {"PREDICTED", kRight, kLeftOutLast},
               {"TOOK", kRight},
               {"WHY"},
               {"PAUSED", kLeft, kOptional}});
  for (const ipc::ScheduleDecision& decision : decisions) {
    table.add({ms_text(decision.ago_ns), id_text(decision.session),
               std::string(name_of(decision.service)), std::to_string(decision.ready),
               ms_text(decision.lag_ns), ms_text(decision.deadline_ns),
               ms_text(decision.predicted_ns), ms_text(decision.measured_ns),
               std::string(name_of(decision.reason)),
               decision.paused.valid() ? id_text(decision.paused) : ""});
  }
  return table;
}

Table program_table(std::span<const ipc::ProgramReport> programs) {
  Table table({{"PROGRAM"},
               {"MODEL", kLeft, kLeftOutLast},
               {"DEVICE", kLeft, kOptional},
               {"SIZE", kRight},
               {"OUTPUTS", kRight, kLeftOutLast},
               {"REFS", kRight, kLeftOutLast},
               {"STATE", kLeft, kLeftOutLast},
               {"USER", kLeft, kShortened}});
  for (const ipc::ProgramReport& program : programs) {
    table.add({id_text(program.program), program.model.valid() ? id_text(program.model) : "",
               program.device, size_text(program.graph_bytes), std::to_string(program.outputs),
               std::to_string(program.sessions), std::string(state_text(program.state)),
               program.owner});
  }
  return table;
}

// The last three columns are of GPUs.
Table device_table(std::span<const ipc::DeviceReport> devices) {
  std::vector<Table::Column> columns{{"DEVICE"},
                                     {"NAME", kLeft, kShortened},
                                     {"USED", kRight},
                                     {"TOTAL", kRight},
                                     {"PLANNED", kRight, kLeftOutLast},
                                     {"LANES", kRight, kLeftOutLast},
                                     {"STATE", kLeft, kLeftOutLast},
                                     {"HUGE", kRight, kLeftOutLast},
                                     {"HUGE PAGES", kLeft, kLeftOutLast},
                                     {"ISA", kLeft, kLeftOutLast}};
  const bool has_drivers = std::ranges::any_of(
      devices, [](const ipc::DeviceReport& device) { return !device.driver.empty(); });
  if (has_drivers) {
    columns.push_back({"HAS", kRight, kLeftOutLast});
    columns.push_back({"FREE", kRight, kLeftOutLast});
    columns.push_back({"DRIVER", kLeft, kLeftOutLast});
  }
  Table table(std::move(columns));
  for (const ipc::DeviceReport& device : devices) {
    std::vector<std::string> cells{device.device,
                                   device.name,
                                   size_text(device.used_bytes),
                                   size_text(device.total_bytes),
                                   size_text(device.planned_bytes),
                                   std::to_string(device.lanes),
                                   std::string(state_text(device.state)),
                                   size_text(device.huge_bytes),
                                   device.huge_pages,
                                   device.isa};
    if (has_drivers) {
      const bool is_known = device.hardware_bytes > 0;
      cells.push_back(is_known ? size_text(device.hardware_bytes) : "");
      cells.push_back(is_known ? size_text(device.hardware_free_bytes) : "");
      cells.push_back(device.driver);
    }
    table.add(std::move(cells));
  }
  return table;
}

std::string reasons_text(std::span<const ipc::DeviceReport> devices) {
  std::string text;
  for (const ipc::DeviceReport& device : devices) {
    if (!device.reason.empty()) text += fmt::format("{}: {}\n", device.device, device.reason);
  }
  return text;
}

Table memory_table(std::span<const ipc::MemoryReport> pools) {
  Table table({{"DEVICE", kLeft, kOptional},
               {"POOL"},
               {"RESERVED", kRight},
               {"MAPPED", kRight, kLeftOutLast},
               {"CACHED", kRight, kLeftOutLast},
               {"EVICTABLE", kRight},
               {"PINNED", kRight, kLeftOutLast}});
  for (const ipc::MemoryReport& pool : pools) {
    table.add({pool.device, std::string(pool_text(pool.pool)), size_text(pool.reserved_bytes),
               size_text(pool.mapped_bytes), size_text(pool.cached_bytes),
               size_text(pool.evictable_bytes), size_text(pool.pinned_bytes)});
  }
  return table;
}

}  // namespace djinn::ctl
