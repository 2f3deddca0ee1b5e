// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/front/published.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "daemon/djinnd/loop/log.h"
#include "ipc/codec/control_codec.h"
#include "ipc/limits.h"
#include "kernel/base/assert.h"
#include "kernel/base/clock.h"
#include "kernel/base/size_text.h"

namespace djinn::daemon {
namespace {

constexpr std::string_view kWeights = ".safetensors";
constexpr std::string_view kContents = "@sha256:";

std::array<uint8_t, 32> bytes_of(const store::Digest& digest) {
  std::array<uint8_t, 32> bytes{};
  std::ranges::transform(digest, bytes.begin(), std::to_integer<uint8_t>);
  return bytes;
}

uint64_t bytes_in(const store::Record& record) {
  return std::accumulate(record.files.begin(), record.files.end(), uint64_t{0},
                         [](uint64_t sum, const store::File& file) { return sum + file.bytes; });
}

// Administrators publish for all of this machine, users for themselves.
store::Reader default_reader(const store::Name& name) {
  auto reader = store::Reader::parse(name.user().empty() ? "local" : "owner");
  DJINN_ASSERT(reader.ok());
  return *std::move(reader);
}

std::string readers_text(const store::Record& record) {
  std::string text;
  for (const store::Reader& reader : record.readers) {
    text += (text.empty() ? "" : ",") + reader.text();
  }
  return ipc::showable_name(text);
}

Error not_yours(const store::Name& name) {
  return {ErrorCode::kPermissionDenied,
          fmt::format("{} is for {} to remove.", name.text(),
                      name.user().empty() ? "administrators" : "whoever published it")};
}

struct OpenBlob {
  std::string name;
  Fd file;
  store::Held held;
};
using OpenBlobs = std::shared_ptr<std::vector<OpenBlob>>;

// In the order of their names, so that each open has the same files in the same places.
Result<OpenBlobs> open_weights(store::Store& store, const std::string& name,
                               const store::Asker& asker) {
  DJINN_TRY(store::Record record, store.find(name, asker));
  std::ranges::sort(record.files, {}, &store::File::name);
  auto opened = std::make_shared<std::vector<OpenBlob>>();
  for (const store::File& file : record.files) {
    if (!file.name.ends_with(kWeights)) continue;
    DJINN_TRY(store::Blob blob, store.open_file(file));
    opened->push_back({file.name, std::move(blob.file), std::move(blob.held)});
  }
  if (!opened->empty()) return opened;
  return Error{ErrorCode::kInvalidArgument,
               fmt::format("{} has no file of weights (*.safetensors). Import its directory again, "
                           "with its weights.",
                           record.name.text())};
}

Status remove_name(store::Store& store, const store::Name& name, const store::Asker& asker) {
  if (!asker.is_administrator) {
    DJINN_TRY(const store::Record record, store.find(name.text(), asker));
    if (name.user().empty() || record.owner != asker.owner) return not_yours(name);
  }
  return store.remove(name);
}

}  // namespace

store::Asker Published::asker_of(const Caller& caller) const {
  store::Asker asker{.owner = caller.user, .is_administrator = caller.admin};
  if (caller.user.is_principal()) asker.principal = reports_.name_now(caller.user);
  return asker;
}

Status Published::check_gives(const Caller& caller, const store::Name& name) const {
  const std::string user = reports_.name_now(caller.user);
  const bool may = name.user().empty() ? caller.admin : name.user() == user;
  if (may) return {};
  const std::string_view plain = std::string_view(name.text());
  const std::string own = fmt::format("~{}/{}", user, plain.substr(plain.rfind('/') + 1));
  return Error{ErrorCode::kPermissionDenied,
               name.user().empty()
                   ? fmt::format("Names like {} are for administrators to give. Call it {}, which "
                                 "is your own.",
                                 name.text(), own)
                   : fmt::format("{} is for that user to give. Call it {}, which is your own.",
                                 name.text(), own)};
}

void Published::import(const Waiter& waiter, const Caller& caller, const ipc::ImportModel& request,
                       std::vector<SharedFd> files, std::vector<std::string> names) {
  const auto name = store::Name::parse(request.name);
  if (!name) return replies_.refuse(waiter, name.error());
  const bool has_names = std::ranges::none_of(names, &std::string::empty);
  if (files.empty() || files.size() != names.size() || !has_names) {
    return replies_.refuse(waiter, {ErrorCode::kInvalidArgument,
                                    "An import needs at least one file, each with its name. Add "
                                    "files first."});
  }
  const Status free = check_imports(caller.user);
  if (!free) return replies_.refuse(waiter, free.error());
  store::Record record{.name = *name, .owner = caller.user};
  record.since_s = clock_.wall_ns() / kNsPerSecond;
  record.readers = {default_reader(*name)};
  ImportFiles what{std::move(record), std::move(files), std::move(names), {}};
  if (!caller.admin) what.keep_free = keep_free_;
  const uint64_t number = ++imports_begun_;
  auto import = std::make_unique<Import>(
      loop_, loaders_, store_, std::move(what),
      [this, number](Result<store::Record> published) { imported(number, std::move(published)); },
      [this, number] { loop_.dispose(std::move(imports_.extract(number).mapped().import)); });
  imports_.emplace(number, Running{caller.user, waiter, std::move(import)});
  reports_.when_known({caller.user},
                      [this, number, caller, name = *name] { begin(number, caller, name); });
}

Status Published::check_imports(Owner user) const {
  size_t count = 0;
  bool is_busy = false;
  for (const auto& [number, running] : imports_) {
    if (running.user != user) continue;
    ++count;
    is_busy |= running.import->phase() != ImportPhase::kEnded;
  }
  if (!is_busy && count < kImportsPerUser) return {};
  return Error{ErrorCode::kBusy,
               "Another import of yours is under way, or its files do not let go of the process "
               "that read them. Import this model when that has ended."};
}

void Published::begin(uint64_t number, const Caller& caller, const store::Name& name) {
  const auto running = imports_.find(number);
  if (running == imports_.end()) return;
  Import& import = *running->second.import;
  if (import.phase() == ImportPhase::kEnded) return;  // its client has gone
  const Status may = check_gives(caller, name);
  if (!may) return import.fail(may.error());
  import.start();
}

void Published::imported(uint64_t number, Result<store::Record> published) {
  const auto& [user, waiter, import] = imports_.at(number);
  if (!published) return replies_.refuse(waiter, published.error());
  list_ = nullptr;
  const auto contents = store::contents_of(*published);
  if (!contents) return replies_.refuse(waiter, contents.error());
  log("{} imported {}, {}", reports_.name_now(user), published->name.text(),
      count_text(published->files.size(), "file"));
  replies_.reply(waiter,
                 {waiter.number, ipc::ModelImported{published->name.text(), bytes_in(*published),
                                                    bytes_of(*contents)}});
}

// --- what there is

Result<Published::List> Published::read_list(const store::Store& store) {
  DJINN_TRY(store::Listing all, store.list());
  auto list = std::make_shared<std::vector<Listed>>();
  for (store::Record& record : all.records) {
    DJINN_TRY(const store::Digest contents, store::contents_of(record));
    ipc::PublishedReport report;
    report.name = record.name.text();
    report.readers = readers_text(record);
    report.bytes = bytes_in(record);
    report.files = static_cast<uint32_t>(record.files.size());
    report.since_wall_ns = record.since_s * kNsPerSecond;
    report.contents = bytes_of(contents);
    record.files.clear();
    list->push_back({std::move(record), std::move(report)});
  }
  for (const Error& damaged : all.damaged) log("the store of models: {}", damaged.message);
  return List(std::move(list));
}

void Published::list(const Waiter& waiter, const Caller& caller,
                     const ipc::ListPublished& request) {
  if (list_) return answer(waiter, caller, request.first, list_);
  store_.run([](store::Store& store) { return read_list(store); },
             [this, waiter, caller, first = request.first](const Result<List>& read) {
               if (!read) return replies_.refuse(waiter, read.error());
               list_ = *read;
               answer(waiter, caller, first, list_);
             });
}

void Published::answer(const Waiter& waiter, const Caller& caller, uint32_t first,
                       const List& list) {
  std::set<Owner> owners;
  std::vector<const Listed*> seen;
  for (const Listed& one : *list) {
    if (!one.record.may_read(asker_of(caller))) continue;
    seen.push_back(&one);
    owners.insert(one.record.owner);
  }
  reports_.when_known(owners, [this, waiter, list, seen, first] {
    ipc::PublishedList page;
    page.total = static_cast<uint32_t>(seen.size());
    for (size_t i = first; i < seen.size() && page.published.size() < limits::kListPage; ++i) {
      ipc::PublishedReport& report = page.published.emplace_back(seen[i]->report);
      report.owner = reports_.name_now(seen[i]->record.owner);
    }
    replies_.owe(waiter, [number = waiter.number, page = std::move(page)]() -> ipc::DaemonReply {
      return {number, page};
    });
  });
}

void Published::remove(const Waiter& waiter, const Caller& caller,
                       const ipc::RemovePublished& request) {
  const auto name = store::Name::parse(request.name);
  if (!name) return replies_.refuse(waiter, name.error());
  store_.run([name = *name, asker = asker_of(caller)](
                 store::Store& store) { return remove_name(store, name, asker); },
             [this, waiter, user = caller.user, name = *name](const Status& removed) {
               if (!removed) return replies_.refuse(waiter, removed.error());
               list_ = nullptr;
               log("{} removed {}", reports_.name_now(user), name.text());
               store_.collect();
               replies_.done(waiter);
             });
}

void Published::open(const Caller& caller, const std::string& name, std::shared_ptr<Closer> closer,
                     Opened opened) {
  const auto parsed = store::Name::parse(std::string_view(name).substr(0, name.rfind(kContents)));
  if (!parsed) return opened(parsed.error());
  store_.run([name, asker = asker_of(caller)](
                 store::Store& store) { return open_weights(store, name, asker); },
             [closer = std::move(closer), opened = std::move(opened)](Result<OpenBlobs> blobs) {
               if (!blobs) return opened(blobs.error());
               PublishedFiles found;
               for (OpenBlob& blob : **blobs) {
                 const SharedFd file = closer->own(std::move(blob.file));
                 // Who has the file holds the blob: it stays as long as a model is read from it.
                 found.files.emplace_back(file.get(), [file, held = blob.held](const Fd*) {});
                 found.names.push_back(std::move(blob.name));
               }
               opened(std::move(found));
             });
}

// --- who waits

void Published::session_left(SessionId session) {
  for (auto& [number, running] : imports_) {
    if (running.waiter.session == session) running.import->abort();
  }
}

void Published::refuse_waiting() {
  if (!loaders_.fails()) return;
  for (auto& [number, running] : imports_) {
    if (running.import->phase() == ImportPhase::kWaiting) {
      running.import->fail(loaders_.failure());
    }
  }
}

}  // namespace djinn::daemon
