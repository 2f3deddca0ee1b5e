// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/host/fd_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <iterator>
#include <set>
#include <utility>

#include "daemon/djinnd/loop/log.h"
#include "daemon/djinnd/loop/sealed.h"
#include "ipc/codec/kept_codec.h"
#include "ipc/limits.h"
#include "kernel/base/assert.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon {
namespace {

// A name is, for example, "model.ID.record.7", "model.ID.manifest", "model.ID.extent.0",
// "model.ID.file.3" or "model.ID.plan.0".
constexpr std::string_view kPrefix = "model.";

// Likewise of a copy "copy.ID.0.3", its extent 3 on cuda:0; and "anchor.0" of a GPU.
constexpr std::string_view kCopyPrefix = "copy.";
constexpr std::string_view kAnchorPrefix = "anchor.";

// An update is two messages: the new record is given before the old one is taken back.
constexpr size_t kSpare = 1;
constexpr size_t kMessagesOfUpdate = 2;
static_assert(limits::kKeptDescriptors <= Notifier::kBacklogMax);

std::string beginning_of(ModelId id) {
  return fmt::format("{}{}.", kPrefix, text_of(id));
}

std::string name_of_part(ModelId id, std::string_view part, uint64_t number) {
  return fmt::format("{}{}.{}", beginning_of(id), part, number);
}

std::string name_of_copy(ModelId id, DeviceId device, size_t extent) {
  return fmt::format("{}{}.{}.{}", kCopyPrefix, text_of(id), device.index, extent);
}

std::string name_of_anchor(DeviceId device) {
  return fmt::format("{}{}", kAnchorPrefix, device.index);
}

struct CopyName {
  ModelId model;
  DeviceId device;
  size_t extent = 0;
};
std::optional<CopyName> parse_copy(std::string_view name) {
  if (!name.starts_with(kCopyPrefix)) return std::nullopt;
  name.remove_prefix(kCopyPrefix.size());
  CopyName parsed;
  uint32_t index = 0;
  const char* const end = name.data() + name.size();
  const auto id = std::from_chars(name.data(), end, parsed.model.value, 16);
  if (id.ec != std::errc() || id.ptr == end || *id.ptr != '.') return std::nullopt;
  const auto device = std::from_chars(id.ptr + 1, end, index);
  if (device.ec != std::errc() || device.ptr == end || *device.ptr != '.') return std::nullopt;
  const auto extent = std::from_chars(device.ptr + 1, end, parsed.extent);
  if (extent.ec != std::errc() || extent.ptr != end) return std::nullopt;
  parsed.device = {DeviceKind::kCuda, index};
  return parsed;
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
  out.unwritten = file.unwritten;
  return out;
}

// If systemd may not hold a file, its inode may be used again for another one. Such a file is known
// again by its content, or not at all.
bool stays_known(const load::FileIdentity& file) {
  return file.on_block_device || file.content.has_value();
}

ipc::KeptModel record_of(const Model& model) {
  ipc::KeptModel record;
  record.boot = boot_id();
  record.id = model.id;
  record.domain = model.owner().number();
  record.device = text_of(model.device());
  record.plan_hash = to_wire(model.key().plan_hash);
  for (const load::FileIdentity& file : model.key().files) {
    record.files.push_back(stays_known(file) ? to_wire(file) : ipc::FileIdentity());
    record.read_at_ns = static_cast<int64_t>(file.read_at_ns);
  }
  record.extent_bytes = model.extent_bytes;
  for (const Owner user : *model.pins) record.pinned_by.push_back(user.number());
  record.sha256 = model.sha256;
  record.loaded_wall_ns = model.loaded_wall_ns;
  record.huge_bytes = model.huge_bytes;
  record.has_plan = model.plan != nullptr;
  for (const auto& [user, ms] : model.keep_alives_ms) {
    record.keep_alives.push_back({user.number(), ms});
  }
  for (const auto& [user, numerics] : model.numerics) {
    record.numerics.push_back({user.number(), numerics});
  }
  for (const auto& [user, name] : model.names) {
    if (user == model.owner()) {
      record.label = name.label;
      record.path = name.path;
    } else if (record.names.size() < limits::kModelNamesKept) {
      record.names.push_back({user.number(), name.label, name.path});
    }
  }
  return record;
}

// --- taking back

// Error: kOutOfRange if the number is no owner's.
Result<Owner> owner_of(uint64_t number) {
  if (const std::optional<Owner> owner = Owner::of_number(number)) return *owner;
  return Error{ErrorCode::kOutOfRange, "The record names a user who cannot be."};
}

class Returned {
 public:
  Returned(const Devices& devices, std::map<std::string, Fd>& kept)
      : devices_(devices), kept_(kept) {}

  // Errors: kNotFound if a part is missing, and those of a part that is wrong.
  Result<Model> model(const ipc::KeptModel& record) {
    if (record.boot != boot_id()) {
      return Error{ErrorCode::kUnsupported, "The record is of another boot of the machine."};
    }
    Model model;
    model.id = record.id;
    DJINN_TRY(model.key().domain, owner_of(record.domain));
    DJINN_TRY(model.key().device, device_of(record.device));
    model.key().plan_hash = from_wire(record.plan_hash);
    model.key().files = identities_of({record.files, record.read_at_ns});
    std::set<Owner> pins;
    for (const uint64_t user : record.pinned_by) {
      DJINN_TRY(const Owner pinning, owner_of(user));
      pins.insert(pinning);
    }
    model.pins = PinnedBy(std::move(pins));
    model.sha256 = record.sha256;
    model.loaded_wall_ns = record.loaded_wall_ns;
    for (const ipc::KeptKeepAlive& one : record.keep_alives) {
      DJINN_TRY(const Owner user, owner_of(one.user));
      model.keep_alives_ms[user] = one.ms;
    }
    for (const ipc::KeptNumerics& one : record.numerics) {
      DJINN_TRY(const Owner user, owner_of(one.user));
      model.numerics[user] = one.numerics;
    }
    model.names[model.owner()] = {record.label, record.path};
    for (const ipc::KeptName& one : record.names) {
      DJINN_TRY(const Owner user, owner_of(one.user));
      model.names[user] = {one.label, one.path};
    }
    DJINN_CHECK(take_memory(record, model));
    if (record.has_plan) {
      DJINN_TRY(model.plan, take_shared(name_of_part(model.id, "plan", 0)));
    }
    std::vector<SharedFd>& files = model.sources.front().files;
    for (size_t i = 0; i < record.files.size(); ++i) {
      files.emplace_back();
      if (!record.files[i].on_block_device) continue;
      DJINN_TRY(files.back(), take_shared(name_of_part(model.id, "file", i)));
    }
    model.bytes_loaded = model.bytes;
    model.huge_bytes = std::min(record.huge_bytes, model.bytes);
    return model;
  }

 private:
  // Error: kNotFound if djinnd has no such device now.
  Result<DeviceId> device_of(const std::string& name) const {
    if (name.empty()) return kHostDevice;  // of a djinnd that had no other
    if (const Memory* const memory = devices_.find(name)) return memory->device();
    return Error{ErrorCode::kNotFound, "Its device is gone."};
  }

  Status take_memory(const ipc::KeptModel& record, Model& model) {
    const ExtentSource& source = devices_.extents_of(model.device());
    for (size_t i = 0; i < record.extent_bytes.size(); ++i) {
      DJINN_TRY(Fd extent, take(name_of_part(model.id, "extent", i)));
      DJINN_CHECK(source.check_sealed(extent, record.extent_bytes[i]));
      model.extents.push_back(std::move(extent));
      model.extent_bytes.push_back(record.extent_bytes[i]);
      model.bytes += record.extent_bytes[i];
    }
    DJINN_TRY(model.manifest, take(name_of_part(model.id, "manifest", 0)));
    DJINN_TRY(model.manifest_bytes,
              size_of_sealed(model.manifest, limits::kManifestBytes, "manifest of a model"));
    if (model.manifest_bytes > 0 && !model.extents.empty()) return {};
    return Error{ErrorCode::kMalformed, "The model has no extents, or an empty manifest."};
  }

  Result<Fd> take(const std::string& name) {
    auto found = kept_.extract(name);
    if (found.empty()) return Error{ErrorCode::kNotFound, "A part of the model is missing."};
    return std::move(found.mapped());
  }

  // Takes a descriptor that systemd may hold; closing it never waits.
  Result<SharedFd> take_shared(const std::string& name) {
    DJINN_TRY(Fd fd, take(name));
    return std::make_shared<const Fd>(std::move(fd));
  }

  const Devices& devices_;
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
  return name.starts_with(kPrefix) || name.starts_with(kCopyPrefix) ||
         name.starts_with(kAnchorPrefix);
}

size_t store_size() {
  if (::getenv("NOTIFY_SOCKET") == nullptr) return 0;
  const char* const told = ::getenv("FDSTORE");
  if (told == nullptr) return limits::kKeptDescriptors;
  size_t size = 0;
  std::from_chars(told, told + ::strlen(told), size);
  return size;
}

std::vector<KeptCopy> FdStore::take_copies(std::map<std::string, Fd>& kept) {
  std::map<CopyKey, std::map<size_t, Fd>> found;
  for (auto next = kept.begin(); next != kept.end();) {
    const auto name = parse_copy(next->first);
    if (!name) {
      ++next;
      continue;
    }
    found[{name->model, name->device}][name->extent] = std::move(next->second);
    next = kept.erase(next);
  }
  std::vector<KeptCopy> copies;
  for (auto& [key, parts] : found) {
    const bool is_whole = parts.rbegin()->first + 1 == parts.size();
    if (!is_whole || held_ + parts.size() + kSpare > descriptors_max_) {
      for (const auto& [extent, fd] : parts) {
        notifier_.take_out(name_of_copy(key.first, key.second, extent));
      }
      continue;
    }
    KeptCopy& copy = copies.emplace_back(KeptCopy{key.first, key.second, {}});
    for (auto& [extent, fd] : parts) copy.extents.push_back(std::move(fd));
    copies_[key] = copy.extents.size();
    held_ += copy.extents.size();
  }
  return copies;
}

Fd FdStore::take_anchor(std::map<std::string, Fd>& kept, DeviceId gpu) {
  auto anchor = kept.extract(name_of_anchor(gpu));
  if (anchor.empty()) return {};
  anchors_.insert(gpu);
  ++held_;
  return std::move(anchor.mapped());
}

void FdStore::forget_anchor(DeviceId gpu) {
  if (anchors_.erase(gpu) == 0) return;
  notifier_.take_out(name_of_anchor(gpu));
  --held_;
}

void FdStore::keep_anchor(DeviceId gpu, const Fd& node) {
  if (descriptors_max_ == 0 || anchors_.contains(gpu) || held_ + 1 + kSpare > descriptors_max_) {
    return;
  }
  const Status given = notifier_.give(name_of_anchor(gpu), node, Notifier::Polled::kNo);
  if (!given) return log("the node of {} is not kept: {}", text_of(gpu), given.error().message);
  anchors_.insert(gpu);
  ++held_;
}

void FdStore::keep_copies(const std::vector<Copies::Kept>& copies) {
  if (descriptors_max_ == 0) return;
  const auto is_there = [&](const CopyKey& key) {
    return std::ranges::any_of(
        copies, [&](const Copies::Kept& copy) { return CopyKey(copy.model, copy.device) == key; });
  };
  for (auto next = copies_.begin(); next != copies_.end();) {
    const auto kept = next++;
    if (!is_there(kept->first)) forget(kept);
  }
  for (const Copies::Kept& copy : copies) {
    if (!copies_.contains({copy.model, copy.device})) keep_copy(copy);
  }
}

void FdStore::keep_copy(const Copies::Kept& copy) {
  const size_t needed = copy.extents->size();
  const bool has_room = held_ + needed + kSpare <= descriptors_max_ && notifier_.has_room(needed);
  if (!anchors_.contains(copy.device) || !has_room) return;
  const auto at = copies_.emplace(CopyKey(copy.model, copy.device), 0).first;
  for (const Fd& extent : *copy.extents) {
    const std::string name = name_of_copy(copy.model, copy.device, at->second);
    const Status given = notifier_.give(name, extent, Notifier::Polled::kNo);
    if (!given) {
      log("a copy of a model is not kept: {}", given.error().message);
      return forget(at);
    }
    ++at->second;
    ++held_;
  }
}

void FdStore::forget(std::map<CopyKey, size_t>::iterator copy) {
  const auto& [key, extents] = *copy;
  for (size_t i = 0; i < extents; ++i) {
    notifier_.take_out(name_of_copy(key.first, key.second, i));
  }
  DJINN_ASSERT(held_ >= extents);
  held_ -= extents;
  copies_.erase(copy);
}

std::vector<Model> FdStore::take_back(std::map<std::string, Fd> kept) {
  DJINN_ASSERT(records_.empty());
  std::set<std::string> surplus;
  std::map<std::string, uint64_t> newest;  // record, by the beginning of its model's names
  for (const auto& [name, fd] : kept) {
    surplus.insert(name);
    const auto record = parse_record(name);
    if (record) newest[record->model] = std::max(newest[record->model], record->number);
  }
  std::vector<Model> models;
  Returned returned(devices_, kept);
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
    held_ += known.names.size() + 1;
    models.push_back(*std::move(model));
  }
  // Records are taken out first, as in forget().
  for (const bool records : {true, false}) {
    for (const std::string& name : surplus) {
      if (parse_record(name).has_value() == records) notifier_.take_out(name);
    }
  }
  // systemd may allow fewer descriptors than before.
  while (held_ + kSpare > descriptors_max_ && !records_.empty()) {
    forget(std::prev(records_.end()));
  }
  return models;
}

void FdStore::keep(const std::map<ModelId, Model>& models, const std::set<ModelId>& returning) {
  if (descriptors_max_ == 0) return;
  forget_unsent();
  const auto is_resident = [&](ModelId id) {
    const auto model = models.find(id);
    return model != models.end() && model->second.phase == ModelPhase::kResident;
  };
  std::erase_if(not_kept_, [&](ModelId id) { return !is_resident(id); });
  for (auto next = records_.begin(); next != records_.end();) {
    const auto kept = next++;
    if (!is_resident(kept->first) && !returning.contains(kept->first)) forget(kept);
  }
  for (const auto& [id, model] : models) {
    if (model.phase == ModelPhase::kResident) keep_one(model);
  }
  DJINN_ASSERT(held_ <= descriptors_max_);
}

// The record goes first, because without one a model counts as incomplete.
void FdStore::forget(std::map<ModelId, Record>::iterator kept) {
  const auto& [id, record] = *kept;
  notifier_.take_out(name_of_part(id, "record", record.number));
  for (const std::string& name : record.names) notifier_.take_out(name);
  DJINN_ASSERT(held_ >= record.names.size() + 1);
  held_ -= record.names.size() + 1;
  records_.erase(kept);
}

std::vector<FdStore::Part> FdStore::parts_of(const Model& model) {
  DJINN_ASSERT(model.extents.size() == model.extent_bytes.size());
  std::vector<Part> parts{{name_of_part(model.id, "manifest", 0), &model.manifest}};
  for (size_t i = 0; i < model.extents.size(); ++i) {
    parts.push_back({name_of_part(model.id, "extent", i), &model.extents[i]});
  }
  if (model.plan) parts.push_back({name_of_part(model.id, "plan", 0), model.plan.get()});
  const Source& first = model.sources.front();
  for (size_t i = 0; i < first.files.size() && i < first.key.files.size(); ++i) {
    if (!first.key.files[i].on_block_device || !first.files[i]) continue;
    parts.push_back({name_of_part(model.id, "file", i), first.files[i].get()});
  }
  return parts;
}

void FdStore::keep_one(const Model& model) {
  DJINN_ASSERT(model.phase == ModelPhase::kResident);
  std::vector<std::byte> bytes = ipc::encode(record_of(model));
  const auto known = records_.find(model.id);
  if (known != records_.end()) return keep_record(model.id, known->second, std::move(bytes));
  const std::vector<Part> parts = parts_of(model);
  const size_t needed = parts.size() + 1;
  if (held_ + needed + kSpare > descriptors_max_) {
    return leave_out(model, fmt::format("it needs {} descriptors, and {} of the {} that systemd "
                                        "keeps are taken",
                                        needed, held_, descriptors_max_));
  }
  if (!notifier_.has_room(needed)) {
    return leave_out(model, "systemd has not read yet what it was told before");
  }
  const Status given = give_all(model, parts, std::move(bytes));
  if (!given) return leave_out(model, given.error().message);
  not_kept_.erase(model.id);
}

// While there is no room, the record stays as it was; since it then differs from the model, the
// next call tries again.
void FdStore::keep_record(ModelId id, Record& record, std::vector<std::byte> bytes) {
  if (bytes == record.bytes || !notifier_.has_room(kMessagesOfUpdate)) return;
  const Status given = give_record(id, record, std::move(bytes));
  if (!given) log("what is kept of a model is out of date: {}", given.error().message);
}

// Gives systemd all parts and the record, or nothing.
Status FdStore::give_all(const Model& model, const std::vector<Part>& parts,
                         std::vector<std::byte> bytes) {
  DJINN_ASSERT(!records_.contains(model.id));
  const auto at = records_.emplace(model.id, Record()).first;
  ++held_;
  Status given;
  for (const Part& part : parts) {
    given = notifier_.give(part.name, *part.fd);
    if (!given) break;
    at->second.names.push_back(part.name);
    ++held_;
  }
  if (given) given = give_record(model.id, at->second, std::move(bytes));
  if (!given) forget(at);
  return given;
}

// Forgets the models of which systemd has not got every part.
void FdStore::forget_unsent() {
  for (const std::string& name : notifier_.take_unsent()) {
    if (const auto part = parse_copy(name)) {
      const auto copy = copies_.find({part->model, part->device});
      if (copy != copies_.end()) forget(copy);
      continue;
    }
    const auto model = std::ranges::find_if(
        records_, [&](const auto& record) { return name.starts_with(beginning_of(record.first)); });
    if (model != records_.end()) forget(model);
  }
}

void FdStore::leave_out(const Model& model, const std::string& why) {
  DJINN_ASSERT(model.phase == ModelPhase::kResident);
  if (!not_kept_.insert(model.id).second) return;
  Event event{EventKind::kModelNotKept,
              fmt::format("model {} would not outlive a restart: {}", text_of(model.id), why),
              model.owner()};
  event.model = model.id;
  event.bytes = model.bytes;
  events_.emit(std::move(event));
}

Status FdStore::give_record(ModelId id, Record& record, std::vector<std::byte> bytes) {
  DJINN_TRY(const Fd memfd, pal::make_sealed_memfd("djinn-record", bytes));
  DJINN_CHECK(notifier_.give(name_of_part(id, "record", record.number + 1), memfd));
  if (record.number > 0) notifier_.take_out(name_of_part(id, "record", record.number));
  ++record.number;
  record.bytes = std::move(bytes);
  return {};
}

}  // namespace djinn::daemon
