// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/metrics/metrics_text.h"

#include <dirent.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/djinnd/host/version.h"
#include "daemon/djinnd/loop/proc_files.h"
#include "ipc/report_text.h"
#include "kernel/base/assert.h"
#include "kernel/base/clock.h"

namespace djinn::daemon {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

double seconds(uint64_t ns) {
  return static_cast<double>(ns) / kNsPerSecond;
}

// The names stand in the order of the enumerators.
constexpr std::array<const char*, kGroupPlaces> kGroupPlaceNames = {"memory", "spilling", "disk"};
constexpr std::array<const char*, 3> kPoolNames = {"weights", "sessions", "lanes"};
constexpr std::array<const char*, ipc::kOperations> kOperationNames = {
    "nop",       "run",          "run_once",      "generate",        "read_ref",
    "write_ref", "release_refs", "crop_sequence", "reorder_sequence"};
static_assert(kGroupPlaceNames.back() != nullptr && kOperationNames.back() != nullptr);

// Collects the families in the order in which they are told.
class Page {
 public:
  void begin(MetricType type, const char* name, const char* help) {
    families_.push_back({name, help, type, {}});
  }
  template <typename Number>
  void put(Number value, Labels labels = {}) {
    DJINN_ASSERT(!families_.empty() && families_.back().type != MetricType::Histogram);
    ClientMetric metric;
    metric.label = std::move(labels);
    const bool counts = families_.back().type == MetricType::Counter;
    (counts ? metric.counter.value : metric.gauge.value) = static_cast<double>(value);
    families_.back().metric.push_back(std::move(metric));
  }
  void put(const ipc::TimeHistogram& times) {
    DJINN_ASSERT(!families_.empty() && families_.back().type == MetricType::Histogram);
    ClientMetric metric;
    uint64_t below = 0;
    for (size_t i = 0; i < times.counts.size(); ++i) {
      below += times.counts[i];
      if (i == ipc::kTimeBoundsNs.size()) break;
      metric.histogram.bucket.push_back({below, seconds(ipc::kTimeBoundsNs[i])});
    }
    metric.histogram.sample_count = below;
    metric.histogram.sample_sum = seconds(times.sum_ns);
    families_.back().metric.push_back(std::move(metric));
  }
  // Writes a series for each name, in the order of values.
  template <typename Values, typename Names>
  void put_each(const char* label, const Values& values, const Names& names) {
    DJINN_ASSERT(values.size() == names.size());
    for (size_t i = 0; i < values.size(); ++i) put(values[i], {{label, names[i]}});
  }
  // Does the same for the values of an enumeration.
  template <typename State, typename Values>
  void put_states(const Values& values) {
    for (size_t i = 0; i < values.size(); ++i) {
      put(values[i], {{"state", std::string(ipc::state_text(static_cast<State>(i)))}});
    }
  }
  template <typename Number>
  void gauge(const char* name, const char* help, Number value) {
    begin(MetricType::Gauge, name, help);
    put(value);
  }
  template <typename Number>
  void counter(const char* name, const char* help, Number value) {
    begin(MetricType::Counter, name, help);
    put(value);
  }
  void histogram(const char* name, const char* help, const ipc::TimeHistogram& times) {
    begin(MetricType::Histogram, name, help);
    put(times);
  }
  [[nodiscard]] std::string text() const {
    return prometheus::TextSerializer().Serialize(families_);
  }

 private:
  std::vector<prometheus::MetricFamily> families_;
};

void put_daemon(Page& page, const MetricsSnapshot& shot, uint64_t now_ns) {
  page.begin(MetricType::Gauge, "djinn_build_info", "Always 1; its label is djinnd's version.");
  page.put(1, {{"version", kVersion}});
  page.gauge("djinn_start_time_seconds", "When djinnd started, since the epoch.",
             seconds(shot.started_wall_ns));
  page.gauge("djinn_healthy", "1 if the loop turns and the books of memory balance.",
             shot.healthy ? 1 : 0);
  page.gauge("djinn_ready", "1 if who connects now will be served.", shot.ready ? 1 : 0);
  page.gauge("djinn_draining", "1 while new sessions are refused.", shot.draining ? 1 : 0);
  page.gauge("djinn_metrics_age_seconds",
             "How old these numbers are; more than a second or two means that the loop stands.",
             seconds(now_ns - std::min(now_ns, shot.taken_ns)));
  page.gauge("djinn_loop_delay_seconds", "How long djinnd's loop took to hear of this scrape.",
             seconds(shot.loop_delay_ns));
  page.gauge("djinn_watchdog_interval_seconds",
             "In which systemd must hear from djinnd; 0 where it does not watch.",
             seconds(shot.watchdog.interval_ns));
  page.gauge("djinn_watchdog_lag_seconds", "How late djinnd's last look at itself was.",
             seconds(shot.watchdog.lag_ns));
  page.counter("djinn_watchdog_answers_total", "Times that the watchdog was answered.",
               shot.watchdog.answers);
  page.gauge("djinn_fdstore_descriptors",
             "Descriptors of resident models that systemd keeps for the next djinnd.",
             shot.kept_descriptors);
  page.gauge("djinn_fdstore_max_descriptors",
             "Descriptors that systemd keeps at most; 0 where it keeps none.",
             shot.kept_descriptors_max);
  page.gauge(
      "djinn_closing_descriptors",
      "Descriptors of clients that are being closed; those that stay so lie on a file system "
      "that does not answer.",
      shot.closing_descriptors);
  page.gauge("djinn_models_not_kept",
             "Resident models that a restart of djinnd would lose: systemd's store has no room.",
             shot.models_not_kept);
  page.counter(
      "djinn_log_lines_lost_total",
      "Lines for the journal or stderr that nobody took, so that djinnd would have waited.",
      shot.log_lost);
  page.counter("djinn_notify_messages_lost_total",
               "Words for systemd, its watchdog's among them, that it was too slow to take.",
               shot.notify_lost);
  page.begin(MetricType::Counter, "djinn_events_total", "Events by their kind.");
  for (uint8_t kind = 0; kind < shot.events.size(); ++kind) {
    page.put(shot.events[kind],
             {{"kind", std::string(name_of(static_cast<ipc::EventKind>(kind)))}});
  }
}

void put_process(Page& page, const ProcessBasics& process, const ScrapeCounts& scrapes) {
  page.counter("djinn_process_cpu_seconds_total", "Processor time that djinnd itself took.",
               process.cpu_seconds);
  page.gauge("djinn_process_resident_memory_bytes", "Memory of djinnd itself.",
             process.resident_bytes);
  page.gauge("djinn_process_virtual_memory_bytes", "Addresses that djinnd itself uses.",
             process.virtual_bytes);
  page.gauge("djinn_process_threads", "Threads of djinnd.", process.threads);
  page.gauge("djinn_process_open_fds", "Descriptors that djinnd has open.", process.descriptors);
  page.gauge("djinn_process_max_fds", "Descriptors that djinnd may have open.",
             process.descriptors_max);
  page.begin(MetricType::Counter, "djinn_metrics_requests_total",
             "Answers on this socket, before this one.");
  page.put(scrapes.answers, {{"result", "ok"}});
  page.put(scrapes.refusals, {{"result", "refused"}});
  page.put(scrapes.timeouts, {{"result", "timeout"}});
  page.put(scrapes.connections_cut, {{"result", "cut"}});
}

void put_sessions(Page& page, const MetricsSnapshot& shot) {
  page.begin(MetricType::Gauge, "djinn_sessions", "Sessions by their state.");
  page.put_states<ipc::SessionState>(shot.sessions);
  page.gauge("djinn_session_quota_bytes", "Device memory that one session may hold.",
             shot.session_quota_bytes);
  page.gauge("djinn_stated_local_models",
             "Models that the clients of sessions say they have loaded into themselves, because "
             "djinnd did not take them.",
             shot.stated_local_models);
}

void put_memory(Page& page, const MetricsSnapshot& shot) {
  page.begin(MetricType::Gauge, "djinn_memory_limit_bytes", "Device memory that djinnd may grant.");
  for (const DeviceSnapshot& one : shot.devices) {
    page.put(one.limit_bytes, {{"device", text_of(one.device)}});
  }
  page.begin(MetricType::Gauge, "djinn_memory_granted_bytes",
             "Device memory that is granted, by section and by what holds it.");
  for (const DeviceSnapshot& one : shot.devices) {
    const auto holder = [&](uint64_t bytes, const char* section, const char* kind) {
      page.put(bytes, {{"device", text_of(one.device)}, {"kind", kind}, {"section", section}});
    };
    holder(one.model_bytes, "persistent", "model");
    holder(one.load_bytes, "persistent", "load");
    holder(one.session_bytes, "persistent", "session");
    holder(one.slab_bytes, "volatile", "slab");
    holder(one.heap_bytes, "volatile", "heap");
  }
  const auto of_pools = [&](const char* name, const char* help,
                            uint64_t ipc::MemoryReport::*bytes) {
    page.begin(MetricType::Gauge, name, help);
    for (const DeviceSnapshot& one : shot.devices) {
      for (size_t i = 0; i < one.pools.size(); ++i) {
        page.put(one.pools[i].*bytes, {{"device", text_of(one.device)}, {"pool", kPoolNames[i]}});
      }
    }
  };
  of_pools("djinn_memory_mapped_bytes", "Of the granted memory, what a worker has mapped.",
           &ipc::MemoryReport::mapped_bytes);
  of_pools("djinn_memory_cached_bytes", "Of the granted memory, what no session holds.",
           &ipc::MemoryReport::cached_bytes);
  of_pools("djinn_memory_evictable_bytes", "Of the granted memory, what gives way when asked.",
           &ipc::MemoryReport::evictable_bytes);
  of_pools("djinn_memory_pinned_bytes", "Of the granted memory, what never gives way.",
           &ipc::MemoryReport::pinned_bytes);
  page.gauge("djinn_memory_waiting_requests", "Requests for memory that wait until some is free.",
             shot.memory_waiting);
}

// Nothing where there is no GPU.
void put_gpus(Page& page, const MetricsSnapshot& shot) {
  const auto of_gpus = [&](MetricType type, const char* name, const char* help,
                           uint64_t GpuSnapshot::*number) {
    const bool has_some = std::ranges::any_of(
        shot.devices, [](const DeviceSnapshot& one) { return one.gpu.has_value(); });
    if (!has_some) return;
    page.begin(type, name, help);
    for (const DeviceSnapshot& one : shot.devices) {
      if (one.gpu) page.put((*one.gpu).*number, {{"device", text_of(one.device)}});
    }
  };
  of_gpus(MetricType::Gauge, "djinn_gpu_memory_bytes", "Memory that a GPU has, as its driver says.",
          &GpuSnapshot::hardware_bytes);
  of_gpus(MetricType::Gauge, "djinn_gpu_memory_free_bytes",
          "Of a GPU's memory, what nobody has, as its driver said last.",
          &GpuSnapshot::hardware_free_bytes);
  of_gpus(MetricType::Counter, "djinn_gpu_uploaded_bytes_total",
          "Bytes of models that were copied to a GPU.", &GpuSnapshot::uploaded_bytes);
}

void put_models(Page& page, const MetricsSnapshot& shot) {
  page.begin(MetricType::Gauge, "djinn_models", "Models by their state.");
  page.put_states<ipc::ModelState>(shot.models);
  page.gauge("djinn_models_pinned", "Models that stay although no session holds them.",
             shot.models_pinned);
  page.gauge("djinn_model_leases", "Holds of sessions on models.", shot.model_leases);
  page.begin(MetricType::Counter, "djinn_model_loads_total", "Loads of models by their outcome.");
  page.put(shot.loads, {{"result", "ok"}});
  page.put(shot.loads_failed, {{"result", "failed"}});
  page.counter("djinn_model_load_bytes_total", "Bytes read from models' files.", shot.load_bytes);
  page.counter("djinn_model_buffered_reads_total",
               "Reads of models' files that went through the page cache, where direct reads were "
               "refused.",
               shot.buffered_reads);
  page.counter(
      "djinn_model_compared_opens_total",
      "Opens whose files were compared with a resident model byte by byte, because nothing "
      "else proved that they are the same.",
      shot.compared_opens);
  page.histogram("djinn_model_load_duration_seconds",
                 "Of loads that ended well, from the first look at the files to residence.",
                 shot.load_time);
  page.begin(MetricType::Counter, "djinn_model_evictions_total",
             "Models whose bytes were released, by the reason.");
  for (uint8_t reason = 0; reason < kEvictReasons; ++reason) {
    page.put(shot.evictions[reason],
             {{"reason", std::string(name_of(static_cast<EvictReason>(reason)))}});
  }
  page.counter("djinn_model_evicted_bytes_total", "Bytes of these.", shot.evicted_bytes);
  page.begin(MetricType::Gauge, "djinn_model_huge_bytes",
             "Of the models' bytes on a device, those that lay in huge pages when they had been "
             "loaded.");
  for (const DeviceSnapshot& one : shot.devices) {
    page.put(one.huge_bytes, {{"device", text_of(one.device)}});
  }
  page.begin(MetricType::Gauge, "djinn_huge_pages_info",
             "1, with what the host allows the device's memory: with never, each run reads models "
             "more slowly.");
  for (const DeviceSnapshot& one : shot.devices) {
    if (one.huge_pages.empty()) continue;
    page.put(1, {{"device", text_of(one.device)}, {"setting", one.huge_pages}});
  }
}

void put_groups(Page& page, const MetricsSnapshot& shot) {
  const auto told = [&](ipc::EventKind kind) { return shot.events[static_cast<size_t>(kind)]; };
  page.begin(MetricType::Gauge, "djinn_sequence_groups",
             "Sequence groups of sessions, by where their bytes are.");
  page.put_each("place", shot.groups, kGroupPlaceNames);
  page.gauge("djinn_sequence_disk_bytes", "Bytes of the sequence groups that are on disk.",
             shot.groups_on_disk_bytes);
  page.counter("djinn_sequence_spills_total",
               "Sequence groups of idle sessions that went to disk for want of memory.",
               told(ipc::EventKind::kSequenceSpilled));
  page.counter("djinn_sequence_spilled_bytes_total", "Bytes of these.", shot.spilled_bytes);
  page.counter("djinn_sequence_restores_total",
               "Sequence groups that came back from disk with their next use.",
               told(ipc::EventKind::kSequenceRestored));
  page.counter("djinn_sequence_restored_bytes_total", "Bytes of these.", shot.restored_bytes);
}

void put_programs(Page& page, const MetricsSnapshot& shot) {
  page.begin(MetricType::Gauge, "djinn_programs", "Programs by their state.");
  page.put_states<ipc::ProgramState>(shot.programs);
  page.gauge("djinn_program_graph_bytes", "Bytes of the programs' graphs.",
             shot.program_graph_bytes);
  page.begin(MetricType::Counter, "djinn_program_definitions_total",
             "Definitions of programs: new ones, those that were known already, refused ones.");
  page.put(shot.definitions.admitted, {{"result", "admitted"}});
  page.put(shot.definitions.cached, {{"result", "cached"}});
  page.put(shot.definitions.refused, {{"result", "refused"}});
  page.begin(MetricType::Counter, "djinn_program_fast_total",
             "Programs that asked for fast numerics: those with a fast form, and those without, "
             "which are exact.");
  page.put(shot.definitions.fast, {{"result", "fast"}});
  page.put(shot.definitions.exact_instead, {{"result", "exact"}});
}

void put_runs(Page& page, const ipc::WorkerStats& counts) {
  page.begin(MetricType::Counter, "djinn_submissions_total",
             "Submissions of sessions that ended well, by operation.");
  page.put_each("operation", counts.submissions, kOperationNames);
  page.counter("djinn_submissions_failed_total", "Submissions that ended with an error.",
               counts.submissions_failed);
  page.counter("djinn_submissions_refused_total",
               "Of these, submissions whose deadline passed before they could begin, or was "
               "predicted to.",
               counts.submissions_refused);
  page.counter("djinn_runs_total", "Executions of a graph; each step of a generation is one.",
               counts.runs);
  page.counter("djinn_planned_runs_total", "Of these, runs in the memory of a recorded plan.",
               counts.planned_runs);
  page.counter("djinn_plan_misses_total", "Of these, runs that did not fit their plan.",
               counts.plan_misses);
  page.counter("djinn_runs_repeated_total",
               "Runs that were begun, given up because memory for them was on its way, and begun "
               "anew, because an operator took more than its lane had until then.",
               counts.runs_repeated);
  page.counter("djinn_runs_together_total",
               "Runs that were computed together with those of other sessions.",
               counts.runs_together);
  page.counter("djinn_plan_records_total", "Plans that were recorded, or recorded anew.",
               counts.plan_records);
  page.gauge("djinn_lane_plan_bytes",
             "What the lanes' last runs took of their slabs: a plan, or what was estimated of a "
             "graph that had none yet.",
             counts.slab_bytes);
  page.counter("djinn_tokens_total", "Tokens that were generated.", counts.tokens);
  page.counter("djinn_prompt_tokens_total", "Tokens of the prompts of generations.",
               counts.prompt_tokens);
  page.begin(MetricType::Counter, "djinn_crossed_bytes_total",
             "Bytes that were copied between sessions' memory and workers: descriptors, binding "
             "blocks, tensors in staging, completions.");
  page.put(counts.bytes_in, {{"direction", "received"}});
  page.put(counts.bytes_out, {{"direction", "sent"}});
  page.begin(MetricType::Counter, "djinn_lane_turn_seconds_total",
             "For how long lanes waited for their turn among the workers of their device.");
  page.put(static_cast<double>(counts.turn_ns) / 1e9, {});
  page.counter("djinn_lane_overruns_total",
               "How often a lane lost its patience, and computed beside another worker's.",
               counts.overruns);
  page.histogram("djinn_queue_duration_seconds",
                 "How long a submission that could have begun waited for the lane or for memory.",
                 counts.queue);
  page.histogram("djinn_run_duration_seconds",
                 "How long runs of programs and of single graphs took, generations aside.",
                 counts.run);
  page.histogram("djinn_time_to_first_token_seconds",
                 "Of a generation, from when it could have begun to its first token.",
                 counts.first_token);
  page.histogram("djinn_time_between_tokens_seconds",
                 "Of a generation, from one token to the next.", counts.next_token);
}

void put_workers(Page& page, const MetricsSnapshot& shot) {
  page.begin(MetricType::Gauge, "djinn_device_ready",
             "0 if the device's workers do not start, or a GPU cannot be used.");
  for (const DeviceSnapshot& one : shot.devices) {
    page.put(one.ready ? 1 : 0, {{"device", text_of(one.device)}});
  }
  page.begin(MetricType::Gauge, "djinn_workers", "Workers by their state.");
  page.put_states<ipc::WorkerState>(shot.workers);
  page.counter("djinn_worker_restarts_total", "Workers that died and were replaced.",
               shot.worker_restarts);
  const std::array<std::pair<const char*, const Traffic*>, 3> peers = {{
      {"client", &shot.clients},
      {"worker", &shot.worker_traffic},
      {"loader", &shot.loader_traffic},
  }};
  page.begin(MetricType::Counter, "djinn_ipc_bytes_total",
             "Bytes over control sockets; what crosses in shared memory is "
             "djinn_crossed_bytes_total.");
  for (const auto& [peer, traffic] : peers) {
    page.put(traffic->received_bytes, {{"direction", "received"}, {"peer", peer}});
    page.put(traffic->sent_bytes, {{"direction", "sent"}, {"peer", peer}});
  }
  page.begin(MetricType::Counter, "djinn_ipc_messages_total", "Messages over control sockets.");
  for (const auto& [peer, traffic] : peers) {
    page.put(traffic->received_messages, {{"direction", "received"}, {"peer", peer}});
    page.put(traffic->sent_messages, {{"direction", "sent"}, {"peer", peer}});
  }
}

// --- the process

// Gives the fields of /proc/PID/stat from the state on, which is field 3: the name before it may
// have spaces.
std::vector<uint64_t> stat_fields(const std::string& text) {
  std::vector<uint64_t> fields(3, 0);  // numbers 0 to 2
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return fields;
  const std::vector<uint64_t> after = numbers_in(std::string_view(text).substr(name_end + 1));
  fields.insert(fields.end(), after.begin(), after.end());  // the state stays 0
  return fields;
}

// Counts the entries of /proc/self/fd, without ".", ".." and the descriptor that reads it.
uint64_t count_descriptors() {
  const std::unique_ptr<DIR, int (*)(DIR*)> list(::opendir("/proc/self/fd"), &::closedir);
  uint64_t count = 0;
  while (list && ::readdir(list.get()) != nullptr) ++count;
  return count > 3 ? count - 3 : 0;
}

}  // namespace

ProcessBasics read_process_basics() {
  // The fields are numbered as in proc(5): user time, system time, threads, addresses, pages.
  constexpr size_t kUser = 14, kSystem = 15, kThreads = 20, kVirtual = 23, kResident = 24;
  ProcessBasics basics;
  const std::vector<uint64_t> fields = stat_fields(read_proc_file("/proc/self/stat"));
  if (fields.size() > kResident) {
    basics.cpu_seconds = static_cast<double>(fields[kUser] + fields[kSystem]) /
                         static_cast<double>(::sysconf(_SC_CLK_TCK));
    basics.threads = fields[kThreads];
    basics.virtual_bytes = fields[kVirtual];
    basics.resident_bytes = fields[kResident] * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  }
  basics.descriptors = count_descriptors();
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) basics.descriptors_max = limit.rlim_cur;
  return basics;
}

std::string text_of(const MetricsSnapshot& snapshot, const ScrapeCounts& scrapes,
                    const ProcessBasics& process, uint64_t now_ns) {
  Page page;
  put_daemon(page, snapshot, now_ns);
  put_sessions(page, snapshot);
  put_memory(page, snapshot);
  put_gpus(page, snapshot);
  put_models(page, snapshot);
  put_groups(page, snapshot);
  put_programs(page, snapshot);
  put_runs(page, snapshot.counts);
  put_workers(page, snapshot);
  put_process(page, process, scrapes);
  return page.text();
}

}  // namespace djinn::daemon
