// SPDX-License-Identifier: Apache-2.0

#include "daemon/store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>

#include "kernel/base/assert.h"
#include "kernel/base/file.h"
#include "kernel/base/text.h"

namespace djinn::store {
namespace {

constexpr std::string_view kFormat = "djinn-store 1\n";
constexpr uint64_t kFormatBytesMax = 4096;
constexpr Mode kFolderMode = 0700;
constexpr Mode kRecordMode = 0600;
constexpr std::string_view kContents = "@sha256:";

Error unknown(std::string_view text) {
  constexpr size_t kShownBytesMax = 256;
  return {ErrorCode::kNotFound,
          fmt::format("There is no published model '{}' that you may read. 'djinnctl models' lists "
                      "those.",
                      showable(text.substr(0, kShownBytesMax)))};
}

// The names of what is in a folder, in order.
Result<std::vector<std::string>> entries_of(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code error;
  std::filesystem::directory_iterator at(folder, error);
  while (!error && at != std::filesystem::directory_iterator()) {
    found.push_back(at->path().filename());
    at.increment(error);
  }
  if (error) return system_error("read a folder of the store of models", error.value());
  std::ranges::sort(found);
  return found;
}

// Who died while writing a record left it.
bool is_unfinished(const std::string& entry) {
  return entry.starts_with('.');
}

Result<Fd> lock(const std::string& place) {
  Fd folder(::open(place.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) return system_error("open the store of models", errno);
  while (::flock(folder.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return system_error("lock the store of models", errno);
    return Error{ErrorCode::kBusy, "Another process has the store of models. One at a time can."};
  }
  return folder;
}

}  // namespace

std::string Store::path_of(const Name& name) const {
  return names() + '/' + name.file_name();
}

std::string Store::folder_of(const Digest& digest) const {
  return blobs() + '/' + text_of(digest).substr(0, 2);
}

std::string Store::path_of(const Digest& digest) const {
  return folder_of(digest) + '/' + text_of(digest);
}

Status Store::ensure_folder(const std::string& path) {
  return is_there(path) ? Status() : disk_->make_folder(path, kFolderMode);
}

// Who made a folder may have died before it was on the disk: folders are synced by whoever needs
// them, and not by who made them. The format is the last, so that a store with one is whole.
Status Store::make_layout() {
  const std::string path = place_ + "/format";
  if (is_there(path)) {
    DJINN_TRY(const std::string format, read_regular_file(path, kFormatBytesMax));
    if (format == kFormat) return {};
    return Error{ErrorCode::kUnsupported,
                 "The store of models is of another version of djinnd. Nothing of it was changed."};
  }
  DJINN_CHECK(ensure_folder(place_ + "/blobs"));
  DJINN_CHECK(ensure_folder(blobs()));
  DJINN_CHECK(ensure_folder(names()));
  DJINN_CHECK(disk_->sync_folder(place_ + "/blobs"));
  DJINN_CHECK(disk_->sync_folder(djinn::folder_of(place_)));
  return put(*disk_, path, kFormat, kRecordMode);
}

Result<Store> Store::open(BlobDisk& disk, const Clock& clock, std::string place) {
  if (!is_there(place)) DJINN_CHECK(disk.make_folder(place, kFolderMode));
  DJINN_TRY(Fd locked, lock(place));
  Store store(disk, clock, std::move(place), std::move(locked));
  DJINN_CHECK(store.make_layout());
  return store;
}

Held Store::hold(const Digest& digest) {
  std::weak_ptr<const Digest>& held = held_[digest];
  Held now = held.lock();
  if (!now) {
    now = std::make_shared<const Digest>(digest);
    held = now;
  }
  return now;
}

Result<Fd> Store::make_room(uint64_t bytes) {
  DJINN_TRY(Fd file, disk_->make_unnamed(blobs()));
  DJINN_CHECK(disk_->reserve(file, bytes));
  return file;
}

Result<Held> Store::add(const Fd& file, const Digest& digest, uint64_t bytes) {
  Held held = hold(digest);
  DJINN_CHECK(ensure_folder(folder_of(digest)));
  const std::string path = path_of(digest);
  Status linked = disk_->link(file, path);
  if (!linked && linked.error().code == ErrorCode::kAlreadyExists) {
    if (open_blob(digest, bytes)) {
      linked = Status();
    } else {
      DJINN_CHECK(disk_->remove(path));  // it is damaged, and these are the right bytes
      linked = disk_->link(file, path);
    }
  }
  DJINN_CHECK(linked);
  DJINN_CHECK(disk_->sync_folder(folder_of(digest)));
  DJINN_CHECK(disk_->sync_folder(blobs()));
  return held;
}

Result<Fd> Store::open_blob(const Digest& digest, uint64_t bytes) const {
  const std::string path = path_of(digest);
  Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file.valid() && errno == ENOENT) {
    return Error{ErrorCode::kNotFound,
                 "A file of the model is not in the store. Import the model again."};
  }
  if (!file.valid()) return system_error("open a file of the store of models", errno);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return system_error("look at a file of the store", errno);
  const bool is_whole = S_ISREG(info.st_mode) && static_cast<uint64_t>(info.st_size) == bytes &&
                        info.st_mtim.tv_sec == kBlobTime && info.st_mtim.tv_nsec == 0;
  if (is_whole) return file;
  return Error{ErrorCode::kFileChanged,
               "A file of the model has changed in the store since it was imported, and is not "
               "used. Import the model again."};
}

Result<Blob> Store::open_file(const File& file) {
  DJINN_TRY(Fd opened, open_blob(file.digest, file.bytes));
  return Blob{std::move(opened), hold(file.digest)};
}

Status Store::publish(const Record& record, Existing existing) {
  DJINN_TRY(const std::string text, text_of(record));
  for (const File& file : record.files) {
    const auto blob = open_blob(file.digest, file.bytes);
    if (!blob) return blob.error();
  }
  const std::string path = path_of(record.name);
  if (!is_there(path)) {
    DJINN_TRY(const auto entries, entries_of(names()));
    if (entries.size() >= kNamesMax) {
      return Error{
          ErrorCode::kLimitExceeded,
          fmt::format("The store of models has {} names, the most that it may have. Remove "
                      "one that nobody needs.",
                      entries.size())};
    }
  } else if (existing == Existing::kRefused) {
    return Error{ErrorCode::kAlreadyExists,
                 fmt::format("There is a published model {} already.", record.name.text())};
  }
  return put(*disk_, path, text, kRecordMode, existing);
}

Status Store::remove(const Name& name) {
  const std::string path = path_of(name);
  if (!is_there(path)) return unknown(name.text());
  DJINN_CHECK(disk_->remove(path));
  return disk_->sync_folder(names());
}

Result<Record> Store::record_of(const Name& name) const {
  const std::string path = path_of(name);
  if (!is_there(path)) return unknown(name.text());
  DJINN_TRY(const std::string text, read_regular_file(path, kRecordBytesMax));
  return store::record_of(text, name);
}

Result<Record> Store::find(std::string_view text, const Asker& asker) const {
  const size_t at = text.rfind(kContents);
  const auto name = Name::parse(text.substr(0, at));
  if (name) {
    auto record = record_of(*name);
    if (!record && asker.is_administrator) return record;
    if (!record || !record->may_read(asker)) return unknown(text);
    if (at == std::string_view::npos) return record;
    DJINN_TRY(const Digest contents, contents_of(*record));
    if (text_of(contents) == text.substr(at + kContents.size())) return record;
    return Error{ErrorCode::kHashMismatch,
                 fmt::format("{} stands for other contents now, {}{}.", name->text(),
                             kContents.substr(1), text_of(contents))};
  }
  DJINN_TRY(const Listing all, list());
  const Record* last = nullptr;
  for (const Record& record : all.records) {
    const bool has_it = std::ranges::find(record.aliases, text) != record.aliases.end();
    if (!has_it || !record.may_read(asker)) continue;
    if (last == nullptr || record.since_s > last->since_s) last = &record;
  }
  if (last == nullptr) return unknown(text);
  return *last;
}

Result<Listing> Store::list() const {
  Listing listing;
  DJINN_TRY(const auto entries, entries_of(names()));
  for (const std::string& entry : entries) {
    if (is_unfinished(entry)) continue;
    const auto name = Name::of_file(entry);
    if (!name) {
      listing.damaged.push_back(name.error());
      continue;
    }
    auto record = record_of(*name);
    if (record) {
      listing.records.push_back(*std::move(record));
    } else {
      listing.damaged.push_back(record.error());
    }
  }
  return listing;
}

Result<std::vector<File>> Store::verify(const Record& record) {
  std::vector<File> damaged;
  for (const File& file : record.files) {
    const auto blob = open_blob(file.digest, file.bytes);
    if (!blob) {
      const ErrorCode code = blob.error().code;
      if (code != ErrorCode::kNotFound && code != ErrorCode::kFileChanged) return blob.error();
      damaged.push_back(file);
      continue;
    }
    DJINN_TRY(const Digest digest, digest_of_file(*blob, file.bytes));
    if (digest == file.digest) continue;
    DJINN_CHECK(disk_->distrust(*blob));
    damaged.push_back(file);
  }
  return damaged;
}

Status Store::remove_unfinished() {
  DJINN_TRY(const auto entries, entries_of(names()));
  for (const std::string& entry : entries) {
    if (is_unfinished(entry)) DJINN_CHECK(disk_->remove(names() + '/' + entry));
  }
  return {};
}

Status Store::collect_folder(const std::string& folder, const std::set<Digest>& needed,
                             uint64_t grace_s, Collected& collected) {
  DJINN_TRY(const auto entries, entries_of(folder));
  bool has_removed = false;
  for (const std::string& entry : entries) {
    const auto digest = digest_from(entry);
    if (!digest || folder_of(*digest) != folder || needed.contains(*digest)) continue;
    const std::string path = path_of(*digest);
    struct stat info {};
    if (::lstat(path.c_str(), &info) != 0)
      return system_error("look at a file of the store", errno);
    const auto linked_s = static_cast<uint64_t>(std::max<time_t>(info.st_ctim.tv_sec, 0));
    if (!S_ISREG(info.st_mode) || clock_->wall_ns() / kNsPerSecond < linked_s + grace_s) continue;
    DJINN_CHECK(disk_->remove(path));
    has_removed = true;
    ++collected.blobs;
    collected.bytes += static_cast<uint64_t>(info.st_size);
  }
  return has_removed ? disk_->sync_folder(folder) : Status();
}

Result<Collected> Store::collect(uint64_t grace_s) {
  DJINN_TRY(const Listing all, list());
  if (!all.damaged.empty()) return all.damaged.front();
  std::set<Digest> needed;
  for (const Record& record : all.records) {
    for (const File& file : record.files) needed.insert(file.digest);
  }
  std::erase_if(held_, [](const auto& one) { return one.second.expired(); });
  for (const auto& [digest, held] : held_) needed.insert(digest);
  DJINN_CHECK(remove_unfinished());
  Collected collected;
  DJINN_TRY(const auto folders, entries_of(blobs()));
  for (const std::string& folder : folders) {
    const std::string path = blobs() + '/' + folder;
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) continue;
    DJINN_CHECK(collect_folder(path, needed, grace_s, collected));
  }
  return collected;
}

}  // namespace djinn::store
