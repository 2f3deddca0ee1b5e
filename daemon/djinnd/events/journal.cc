// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/events/journal.h"

#include <fmt/format.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <syslog.h>
#include <systemd/sd-journal.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "daemon/djinnd/loop/log.h"
#include "kernel/base/assert.h"

namespace djinn::daemon {
namespace {

struct Traits {
  std::string_view message_id;
  int priority;
};

// The rows stand in the order of EventKind. A kind keeps its MESSAGE_ID for ever.
constexpr std::array<Traits, ipc::kEventKinds> kTraits = {{
    {"47eaa0992cb6416d86dc283cf0480ff9", LOG_INFO},     // daemon-started
    {"1509bb0a9bf143318a118783593942a4", LOG_INFO},     // daemon-stopping
    {"f5ec52ed0108447592e1bc7656670b14", LOG_NOTICE},   // config-reloaded
    {"59ba1b0d5c904158a909406c2e416788", LOG_ERR},      // config-refused
    {"5d32fe61985f44e7aa095ee82bb29976", LOG_NOTICE},   // draining
    {"9a1e40b458154a9999e2d15364c7a500", LOG_NOTICE},   // resumed
    {"68b4aef73eaa4e179d8a4eace693ae2d", LOG_INFO},     // session-new
    {"142c83647806457793e783e7eb04b39b", LOG_WARNING},  // session-refused
    {"3b041641178844f2a60df25453fe2e85", LOG_NOTICE},   // session-ended
    {"00a154d85ed84bccb5c719c2add9ca88", LOG_INFO},     // session-removed
    {"c0290103855d4f5599ec8712e8e3574f", LOG_WARNING},  // run-refused
    {"6e704245a4ff41e3a7949b80dcb0b82e", LOG_INFO},     // model-loading
    {"de1b1471320a48eab7a788d106762832", LOG_INFO},     // model-loaded
    {"4350cc1721e54f21acd552a09ddbef12", LOG_INFO},     // model-kept
    {"9ed89eddd6844325b600e6129ec04ece", LOG_WARNING},  // model-failed
    {"627bf3225fac4cb6a34acb115ee347dd", LOG_INFO},     // model-evicted
    {"a930d55d954540f3ae889fe46f2c7a8c", LOG_INFO},     // model-unloaded
    {"43f2f1936e854f08b5927b0fe339d309", LOG_NOTICE},   // program-refused
    {"990d3cd8381d422f850c86bd84e0164b", LOG_INFO},     // worker-started
    {"e07cb5793e7f497bbcc1c0c8b0cdf20a", LOG_WARNING},  // worker-killed
    {"78f6d82486ea4214b5c34e7e77ca4499", LOG_WARNING},  // worker-lost
    {"9672be1a7fed4bb9a92fa271dbc52933", LOG_CRIT},     // device-lost
    {"1dcd327f761e47cbbb7e8913655c1d15", LOG_NOTICE},   // device-back
    {"c44a66f4cf2543469cbe4f50bdbcda98", LOG_NOTICE},   // memory-pressure
    {"1e2ed6cb64704f1f934b8db4b18fbdb1", LOG_WARNING},  // memory-refused
    {"4f859933fdf0445f97e485b6761978dd", LOG_ERR},      // watchdog-withheld
    {"7752940717d54175ba89a997e666ec97", LOG_INFO},     // sequence-spilled
    {"36f290f333b044f9bcbebb9ac95c9769", LOG_INFO},     // sequence-restored
    {"50359a1ff86541df960cc0e95fca95c8", LOG_ERR},      // upgrade-pending
    {"2f8ca086bde74f4a8ad4f13ee5bd8c3e", LOG_WARNING},  // model-not-kept
    {"546e5abd06b643a68b069f46d3938413", LOG_WARNING},  // config-ignored
    {"839f1d4299f249fca1a080441b0b6c19", LOG_WARNING},  // spill-unavailable
    {"765895b4f8ed4dac9a93d010240377ba", LOG_NOTICE},   // run-cancelled
    {"7db8a87410574c26a491f61e17846b61", LOG_INFO},     // model-pinned
    {"5c99f8d89d0b46dd87ab5fc4a77ee723", LOG_INFO},     // model-unpinned
    {"f13faa1a2279450886aaa1c3cef941bf", LOG_WARNING},  // config-warning
    {"701c08be3bb848359831f5d00541b7b9", LOG_INFO},     // copy-placed
    {"f90620379d944c8096c11d10c50176be", LOG_INFO},     // copy-dropped
    {"62d2f22b8c1d4080ac1484bee4c64825", LOG_ERR},      // copy-differed
}};

static_assert(std::ranges::all_of(kTraits,
                                  [](const Traits& t) { return t.message_id.size() == 32; }));

// systemd says in JOURNAL_STREAM which file it made stderr (systemd.exec(5)).
bool stderr_is_the_journal() {
  const char* const stream = ::getenv("JOURNAL_STREAM");
  struct stat info {};
  if (stream == nullptr || ::fstat(STDERR_FILENO, &info) != 0) return false;
  return fmt::format("{}:{}", info.st_dev, info.st_ino) == stream;
}

// A user id, or a name: no id of a user is a principal's.
std::string whose_field(const Event& event, Owner owner) {
  if (!owner.is_principal()) return fmt::format("DJINN_USER={}", owner.number());
  return "DJINN_PRINCIPAL=" +
         (event.principal.empty() ? fmt::format("{}", owner.number()) : event.principal);
}

bool send_fields(std::vector<std::string>& fields) {
  std::vector<iovec> parts;
  for (std::string& field : fields) parts.push_back({field.data(), field.size()});
  return ::sd_journal_sendv(parts.data(), static_cast<int>(parts.size())) >= 0;
}

}  // namespace

std::string_view message_id_of(EventKind kind) {
  return kTraits[static_cast<size_t>(kind)].message_id;
}

std::vector<std::string> journal_fields(const Event& event) {
  std::vector<std::string> fields{
      "MESSAGE=" + text_of(event), fmt::format("MESSAGE_ID={}", message_id_of(event.kind)),
      fmt::format("PRIORITY={}", kTraits[static_cast<size_t>(event.kind)].priority)};
  if (event.session.valid()) fields.push_back("DJINN_SESSION=" + text_of(event.session));
  if (event.model.valid()) fields.push_back("DJINN_MODEL=" + text_of(event.model));
  if (event.device) fields.push_back("DJINN_DEVICE=" + text_of(*event.device));
  if (event.bytes) fields.push_back(fmt::format("DJINN_BYTES={}", *event.bytes));
  if (event.error) fields.push_back(fmt::format("DJINN_ERROR={}", name_of(*event.error)));
  if (event.owner) fields.push_back(whose_field(event, *event.owner));
  if (!event.path.empty()) fields.push_back("DJINN_PATH=" + event.path);
  if (!event.sentence.empty()) fields.push_back("DJINN_REASON=" + event.sentence);
  return fields;
}

Journal::Journal() : is_connected_(stderr_is_the_journal()), thread_("journal", kBacklogMax) {}

void Journal::write(const Event& event) {
  if (!is_connected_) return log_line(text_of(event));
  if (!thread_.post([fields = journal_fields(event), text = text_of(event)]() mutable {
        if (!send_fields(fields)) log_line(text);
      })) {
    return;
  }
  DJINN_ASSERT(thread_.lost() >= lost_told_);
  const uint64_t missing = thread_.lost() - lost_told_;
  if (missing == 0) return;
  const bool told = thread_.post([missing] {
    std::vector<std::string> fields{
        fmt::format("MESSAGE={} messages of djinnd are missing: the journal was too slow", missing),
        fmt::format("PRIORITY={}", LOG_WARNING)};
    send_fields(fields);
  });
  if (told) lost_told_ += missing;
}

}  // namespace djinn::daemon
