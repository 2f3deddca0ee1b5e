// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/dbus/bus_reports.h"

#include <fmt/format.h>

#include "daemon/djinnd/loop/log.h"
#include "ipc/report_text.h"
#include "kernel/base/assert.h"

namespace djinn::daemon {
namespace {

constexpr uint64_t kNsPerUs = 1000;

// Writes one dictionary. After a failed entry nothing more is written.
class Dictionary {
 public:
  explicit Dictionary(sd_bus_message* message)
      : message_(message), failed_(::sd_bus_message_open_container(message, 'a', "{sv}")) {}

  void put(const char* key, const std::string& text) { append(key, "s", text.c_str()); }
  void put(const char* key, std::string_view text) { put(key, std::string(text)); }
  void put(const char* key, uint64_t number) { append(key, "t", number); }
  void put(const char* key, uint32_t number) { append(key, "u", number); }
  void put(const char* key, double number) { append(key, "d", number); }
  void put(const char* key, bool value) { append(key, "b", static_cast<int>(value)); }
  int close() { return failed_ < 0 ? failed_ : ::sd_bus_message_close_container(message_); }

 private:
  template <typename T>
  void append(const char* key, const char* type, T value) {
    if (failed_ >= 0) failed_ = ::sd_bus_message_append(message_, "{sv}", key, type, value);
  }

  sd_bus_message* message_;
  int failed_;
};

constexpr std::array<const char*, ipc::kRunTiers> kStatedCalls{
    "stated_tier0_calls", "stated_tier1_calls", "stated_tier2_calls"};

int append(sd_bus_message* message, const ipc::SessionReport& report) {
  Dictionary entries(message);
  entries.put("id", text_of(report.session));
  entries.put("name", report.client_name);
  entries.put("owner", report.owner);
  entries.put("pid", report.pid);
  entries.put("started", report.started_wall_ns / kNsPerUs);
  entries.put("granted_bytes", report.granted_bytes);
  entries.put("models", report.models);
  entries.put("sequences", report.sequences);
  entries.put("steps", report.steps);
  entries.put("running", report.running);
  entries.put("state", state_text(report.state));
  entries.put("wait", wait_text(report.wait));
  entries.put("shared_bytes", report.shared_bytes);
  entries.put("tier", tier_text(report.counts.tier));
  entries.put("graphs_run", report.counts.graphs);
  entries.put("programs_run", report.counts.programs);
  entries.put("generations", report.counts.generations);
  entries.put("failed", report.counts.failed);
  entries.put("tokens", report.counts.tokens);
  entries.put("plan_misses", report.counts.plan_misses);
  entries.put("bytes_in", report.counts.bytes_in);
  entries.put("bytes_out", report.counts.bytes_out);
  for (size_t i = 0; i < report.stated.calls.size(); ++i) {
    entries.put(kStatedCalls[i], report.stated.calls[i]);
  }
  entries.put("stated_local_models", report.stated.local_models);
  entries.put("device", report.device);
  return entries.close();
}

std::string hex_of(const std::array<uint8_t, 32>& hash) {
  return fmt::format("{:02x}", fmt::join(hash, ""));
}

int append(sd_bus_message* message, const ipc::ModelReport& report) {
  Dictionary entries(message);
  entries.put("id", text_of(report.model));
  entries.put("name", report.label);
  entries.put("owner", report.owner);
  entries.put("state", state_text(report.state));
  entries.put("bytes", report.bytes);
  entries.put("bytes_loaded", report.bytes_loaded);
  entries.put("files", report.files);
  entries.put("leases", report.leases);
  entries.put("pinned", report.pinned);
  if (report.hashed) entries.put("sha256", hex_of(report.sha256));
  entries.put("loaded", report.loaded_wall_ns / kNsPerUs);
  entries.put("device", report.device);
  entries.put("until", until_text(report));
  if (report.keep_alive_ms != ipc::kKeepForever) {
    entries.put("keep_alive_seconds", static_cast<double>(report.keep_alive_ms) / 1000);
  }
  if (report.expires_wall_ns > 0) entries.put("expires", report.expires_wall_ns / kNsPerUs);
  if (!report.path.empty()) entries.put("path", report.path);
  entries.put("huge_bytes", report.huge_bytes);
  if (report.plan != 0) entries.put("plan", fmt::format("{:08x}", report.plan));
  if (report.on_gpus != 0)
    entries.put("copies", fmt::format("{}", fmt::join(copies_of(report), ",")));
  if (report.numerics) entries.put("numerics", numerics_text(report));
  return entries.close();
}

int append(sd_bus_message* message, const ipc::UseReport& report) {
  DJINN_ASSERT(report.kind != ipc::UseKind::kName);
  Dictionary entries(message);
  entries.put("owner", report.owner);
  if (report.kind == ipc::UseKind::kHold) {
    entries.put("session", text_of(report.session));
    entries.put("name", report.client_name);
    entries.put("pid", report.pid);
  } else {
    entries.put("pinned", true);
  }
  return entries.close();
}

int append(sd_bus_message* message, const ipc::DeviceReport& report) {
  Dictionary entries(message);
  entries.put("device", report.device);
  entries.put("name", report.name);
  entries.put("state", state_text(report.state));
  entries.put("used_bytes", report.used_bytes);
  entries.put("total_bytes", report.total_bytes);
  entries.put("planned_bytes", report.planned_bytes);
  entries.put("lanes", report.lanes);
  entries.put("huge_bytes", report.huge_bytes);
  if (!report.huge_pages.empty()) entries.put("huge_pages", report.huge_pages);
  if (!report.isa.empty()) entries.put("isa", report.isa);
  if (!report.driver.empty()) entries.put("driver", report.driver);
  if (!report.reason.empty()) entries.put("reason", report.reason);
  if (report.hardware_bytes > 0) {
    entries.put("hardware_bytes", report.hardware_bytes);
    entries.put("hardware_free_bytes", report.hardware_free_bytes);
    entries.put("uploaded_bytes", report.uploaded_bytes);
  }
  return entries.close();
}

template <typename Report>
int append_all(sd_bus_message* message, const std::vector<Report>& reports) {
  int failed = ::sd_bus_message_open_container(message, 'a', "a{sv}");
  for (const Report& report : reports) {
    if (failed >= 0) failed = append(message, report);
  }
  return failed < 0 ? failed : ::sd_bus_message_close_container(message);
}

}  // namespace

int append_reports(sd_bus_message* message, const std::vector<ipc::SessionReport>& reports) {
  return append_all(message, reports);
}

int append_reports(sd_bus_message* message, const std::vector<ipc::ModelReport>& reports) {
  return append_all(message, reports);
}

int append_reports(sd_bus_message* message, const std::vector<ipc::UseReport>& reports) {
  return append_all(message, reports);
}

int append_reports(sd_bus_message* message, const std::vector<ipc::DeviceReport>& reports) {
  return append_all(message, reports);
}

std::string bus_error_of(ErrorCode code) {
  DJINN_ASSERT(code != ErrorCode::kOk);
  std::string name = "org.djinn.Error.";
  bool begins = true;
  for (const char letter : name_of(code)) {
    if (letter != '_') name += begins ? static_cast<char>(letter - 'a' + 'A') : letter;
    begins = letter == '_';
  }
  return name;
}

}  // namespace djinn::daemon
