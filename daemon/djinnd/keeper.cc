#include "daemon/djinnd/keeper.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "daemon/djinnd/log.h"
#include "daemon/djinnd/sealed.h"
#include "ipc/codec/kept_codec.h"
#include "ipc/limits.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon {
namespace {

// Names: "model.ID.record.7", "model.ID.manifest", "model.ID.extent.0", "model.ID.file.3",
// "model.ID.plan.0".
constexpr std::string_view kPrefix = "model.";

std::string name_of_part(ModelId id, std::string_view part, uint64_t number) {
  return fmt::format("{}{}.{}.{}", kPrefix, text_of(id), part, number);
}

void give(const std::string& name, const Fd& fd) {
  const int number = fd.get();
  ::sd_pid_notify_with_fds(0, 0, ("FDSTORE=1\nFDNAME=" + name).c_str(), &number, 1);
}

void take_out(const std::string& name) {
  ::sd_notify(0, ("FDSTOREREMOVE=1\nFDNAME=" + name).c_str());
}

const std::string& boot_id() {
  static const std::string id = [] {
    const Fd file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
    char text[36];
    const ssize_t length = file.valid() ? ::read(file.get(), text, sizeof text) : 0;
    return std::string(text, length > 0 ? static_cast<size_t>(length) : 0);
  }();
  return id;
}

std::array<uint8_t, 32> to_wire(const load::Digest& digest) {
  std::array<uint8_t, 32> bytes{};
  std::ranges::transform(digest, bytes.begin(),
                         [](std::byte b) { return static_cast<uint8_t>(b); });
  return bytes;
}

load::Digest from_wire(const std::array<uint8_t, 32>& bytes) {
  load::Digest digest{};
  std::ranges::transform(bytes, digest.begin(), [](uint8_t b) { return std::byte{b}; });
  return digest;
}

ipc::FileIdentity to_wire(const load::FileIdentity& file) {
  ipc::FileIdentity out{file.device_major, file.device_minor, file.inode,           file.bytes,
                        file.mtime_ns,     file.ctime_ns,     file.on_block_device, {}};
  if (file.content) out.content = to_wire(*file.content);
  return out;
}

// Nobody keeps the inode of a file that systemd may not hold from being reused: such a file is told
// again by its content, or not at all.
bool stays_known(const load::FileIdentity& file) {
  return file.on_block_device || file.content.has_value();
}

ipc::KeptModel record_of(const Model& model) {
  ipc::KeptModel record;
  record.boot = boot_id();
  record.id = model.id;
  record.domain = model.key.domain;
  record.label = model.label;
  record.plan_hash = to_wire(model.key.plan_hash);
  for (const load::FileIdentity& file : model.key.files) {
    record.files.push_back(stays_known(file) ? to_wire(file) : ipc::FileIdentity());
    record.read_at_ns = static_cast<int64_t>(file.read_at_ns);
  }
  record.extent_bytes = model.extent_bytes;
  record.pinned = model.pinned;
  record.sha256 = model.sha256;
  record.loaded_wall_ns = model.loaded_wall_ns;
  record.has_plan = model.plan.valid();
  record.keep_alive_ms = model.keep_alive_ms;
  return record;
}

struct Part {
  std::string name;
  const Fd* fd;
};

std::vector<Part> parts_of(const Model& model) {
  std::vector<Part> parts{{name_of_part(model.id, "manifest", 0), &model.manifest}};
  for (size_t i = 0; i < model.extents.size(); ++i) {
    parts.push_back({name_of_part(model.id, "extent", i), &model.extents[i]});
  }
  if (model.plan.valid()) parts.push_back({name_of_part(model.id, "plan", 0), &model.plan});
  for (size_t i = 0; i < model.files.size() && i < model.key.files.size(); ++i) {
    if (!model.key.files[i].on_block_device || !model.files[i].valid()) continue;
    parts.push_back({name_of_part(model.id, "file", i), &model.files[i]});
  }
  return parts;
}

// --- taking back

class Returned {
 public:
  explicit Returned(std::map<std::string, Fd>& kept) : kept_(kept) {}

  // Errors: kNotFound for a part that is missing, and what is wrong with one.
  Result<Model> model(const ipc::KeptModel& record) {
    if (record.boot != boot_id()) {
      return Error{ErrorCode::kUnsupported, "The record is of another boot of the machine."};
    }
    Model model;
    model.id = record.id;
    model.key.domain = record.domain;
    model.key.plan_hash = from_wire(record.plan_hash);
    model.key.files = identities_of({record.files, record.read_at_ns});
    model.label = record.label;
    model.pinned = record.pinned;
    model.sha256 = record.sha256;
    model.loaded_wall_ns = record.loaded_wall_ns;
    model.keep_alive_ms = record.keep_alive_ms;
    DJINN_CHECK(take_memory(record, model));
    if (record.has_plan) {
      DJINN_TRY(model.plan, take(name_of_part(model.id, "plan", 0)));
    }
    for (size_t i = 0; i < record.files.size(); ++i) {
      model.files.emplace_back();
      if (!record.files[i].on_block_device) continue;
      DJINN_TRY(model.files.back(), take(name_of_part(model.id, "file", i)));
    }
    model.bytes_loaded = model.bytes;
    model.go(ModelPhase::kResident);
    return model;
  }

 private:
  Status take_memory(const ipc::KeptModel& record, Model& model) {
    for (size_t i = 0; i < record.extent_bytes.size(); ++i) {
      DJINN_TRY(Fd extent, take(name_of_part(model.id, "extent", i)));
      DJINN_CHECK(pal::verify_memfd(extent, record.extent_bytes[i], pal::Seals::kWrite));
      model.extents.push_back(std::move(extent));
      model.extent_bytes.push_back(record.extent_bytes[i]);
      model.bytes += record.extent_bytes[i];
    }
    DJINN_TRY(model.manifest, take(name_of_part(model.id, "manifest", 0)));
    DJINN_TRY(const uint64_t bytes,
              size_of_sealed(model.manifest, limits::kManifestBytes, "manifest of a model"));
    if (bytes > 0 && !model.extents.empty()) return {};
    return Error{ErrorCode::kMalformed, "The model has no extents, or an empty manifest."};
  }

  Result<Fd> take(const std::string& name) {
    auto found = kept_.extract(name);
    if (found.empty()) return Error{ErrorCode::kNotFound, "A part of the model is missing."};
    return std::move(found.mapped());
  }

  std::map<std::string, Fd>& kept_;
};

Result<ipc::KeptModel> read_record(const Fd& fd) {
  DJINN_TRY(const auto bytes, read_sealed(fd, limits::kControlMessageBytes, "record of a model"));
  return ipc::decode_kept_model(bytes);
}

struct RecordName {
  std::string model;  // "model.ID."
  uint64_t number = 0;
};
std::optional<RecordName> parse_record(const std::string& name) {
  constexpr std::string_view kPart = "record.";
  const size_t at = name.rfind(kPart);
  if (!is_kept(name) || at == std::string::npos) return std::nullopt;
  RecordName parsed{name.substr(0, at)};
  const char* const end = name.data() + name.size();
  const auto read = std::from_chars(name.data() + at + kPart.size(), end, parsed.number);
  if (read.ec != std::errc() || read.ptr != end) return std::nullopt;
  return parsed;
}

}  // namespace

bool is_kept(std::string_view name) {
  return name.starts_with(kPrefix);
}

std::vector<Model> Keeper::take_back(std::map<std::string, Fd> kept) {
  std::set<std::string> surplus;
  std::map<std::string, uint64_t> newest;  // record, by the beginning of its model's names
  for (const auto& [name, fd] : kept) {
    surplus.insert(name);
    const auto record = parse_record(name);
    if (record) newest[record->model] = std::max(newest[record->model], record->number);
  }
  std::vector<Model> models;
  Returned returned(kept);
  for (const auto& [beginning, number] : newest) {
    const std::string name = fmt::format("{}record.{}", beginning, number);
    const auto record = read_record(kept.at(name));
    auto model = record.ok() ? returned.model(record.value()) : Result<Model>(record.error());
    if (!model.ok()) {
      log("a kept model is not taken back: {}", model.error().message);
      continue;
    }
    Record& known = records_[model.value().id];
    known.number = number;
    known.bytes = ipc::encode(record.value());
    for (const Part& part : parts_of(model.value())) known.names.push_back(part.name);
    surplus.erase(name);
    for (const std::string& part : known.names) surplus.erase(part);
    models.push_back(*std::move(model));
  }
  for (const std::string& name : surplus) take_out(name);
  return models;
}

void Keeper::keep(const std::map<ModelId, Model>& models) {
  for (auto next = records_.begin(); next != records_.end();) {
    const auto& [id, record] = *next;
    const auto model = models.find(id);
    if (model != models.end() && model->second.phase == ModelPhase::kResident) {
      ++next;
      continue;
    }
    take_out(name_of_part(id, "record", record.number));
    for (const std::string& name : record.names) take_out(name);
    next = records_.erase(next);
  }
  for (const auto& [id, model] : models) {
    if (model.phase == ModelPhase::kResident) keep_one(model);
  }
}

size_t Keeper::descriptors() const {
  if (::getenv("NOTIFY_SOCKET") == nullptr) return 0;
  size_t count = 0;
  for (const auto& [id, record] : records_) count += record.names.size() + 1;
  return count;
}

void Keeper::keep_one(const Model& model) {
  const auto [at, fresh] = records_.try_emplace(model.id);
  Record& record = at->second;
  if (fresh) {
    for (const Part& part : parts_of(model)) {
      give(part.name, *part.fd);
      record.names.push_back(part.name);
    }
  }
  std::vector<std::byte> bytes = ipc::encode(record_of(model));
  if (bytes == record.bytes) return;
  const auto memfd = pal::make_sealed_memfd("djinn-record", bytes);
  if (!memfd.ok()) return log("a model is not kept: {}", memfd.error().message);
  give(name_of_part(model.id, "record", record.number + 1), memfd.value());
  if (record.number > 0) take_out(name_of_part(model.id, "record", record.number));
  ++record.number;
  record.bytes = std::move(bytes);
}

}  // namespace djinn::daemon
