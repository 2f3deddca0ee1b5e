// SPDX-License-Identifier: Apache-2.0

// The functions stand in the order in which an import calls them.
#include "daemon/djinnd/models/import.h"

#include <errno.h>
#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "daemon/djinnd/models/load.h"
#include "ipc/codec/control_codec.h"
#include "ipc/limits.h"
#include "kernel/base/assert.h"
#include "kernel/base/size_text.h"

namespace djinn::daemon {
namespace {

constexpr std::string_view kWeights = ".safetensors";

Error exists(const store::Name& name) {
  return {ErrorCode::kAlreadyExists,
          fmt::format("There is a published model {} already. Give another name or tag, or remove "
                      "it with 'djinnctl models rm'.",
                      name.text())};
}

// Whether the name is free. A damaged record has it, too.
Status check_free(const store::Store& store, const store::Name& name) {
  const auto record = store.record_of(name);
  if (record) return exists(name);
  return record.error().code == ErrorCode::kNotFound ? Status() : record.error();
}

Status check_names(const store::Store& store, Owner owner) {
  DJINN_TRY(const store::Listing all, store.list());
  const auto count = std::ranges::count(all.records, owner, &store::Record::owner);
  if (static_cast<size_t>(count) < Import::kNamesPerUser) return {};
  return Error{ErrorCode::kLimitExceeded,
               fmt::format("The store of models has {} names of yours, the most that it may have. "
                           "Remove one with 'djinnctl models rm'.",
                           count)};
}

// Whether the disk has enough left, now that the room for the file is taken: whoever fills it takes
// it from everybody.
Status check_left(const Fd& room, uint64_t bytes, Amount keep_free) {
  struct statvfs disk {};
  if (::fstatvfs(room.get(), &disk) != 0) return system_error("look at the store's disk", errno);
  const uint64_t free = uint64_t{disk.f_bavail} * disk.f_frsize;
  const uint64_t least = keep_free.of(uint64_t{disk.f_blocks} * disk.f_frsize);
  if (free >= least) return {};
  return Error{
      ErrorCode::kOutOfMemory,
      fmt::format("With a file of {} the disk of the store of models would have {} left, "
                  "and {} of it stay free of what is no administrator's (store.keep_free). "
                  "Remove a model with 'djinnctl models rm', or ask an administrator.",
                  size_text(bytes), size_text(free), size_text(least))};
}

store::Digest digest_of(const std::array<uint8_t, 32>& told) {
  store::Digest digest{};
  std::ranges::transform(told, digest.begin(), [](uint8_t byte) { return std::byte{byte}; });
  return digest;
}

}  // namespace

bool may_follow(ImportPhase from, ImportPhase to) {
  using enum ImportPhase;
  static constexpr auto kLegal = std::to_array<Transition<ImportPhase>>({
      {kChecking, kWaiting},
      {kWaiting, kIdentifying},
      {kIdentifying, kPlacing},
      {kPlacing, kCopying},
      {kCopying, kAdding},
      {kAdding, kPlacing},
      {kAdding, kPublishing},
  });
  return is_listed(kLegal, from, to) || (to == kEnded && from != kEnded);
}

Import::Import(Loop& loop, SparePool& loaders, StoreQueue& store, ImportFiles what, Done done,
               Gone gone)
    : loop_(loop),
      loaders_(loaders),
      store_(store),
      what_(std::move(what)),
      done_(std::move(done)),
      gone_(std::move(gone)),
      record_(what_.record) {
  DJINN_ASSERT(!what_.files.empty() && what_.files.size() == what_.names.size());
}

template <typename Given>
std::function<void(Result<Given>)> Import::unless_ended(void (Import::*next)(Given)) {
  return [this, next, wanted = std::weak_ptr<const bool>(wanted_)](Result<Given> given) {
    if (wanted.expired()) return;
    if (!given) return fail(given.error());
    (this->*next)(*std::move(given));
  };
}

void Import::start() {
  DJINN_ASSERT(phase_ == ImportPhase::kChecking);
  store_.run(
      [name = record_.name, owner = record_.owner,
       any_count = !what_.keep_free](store::Store& store) -> Status {
        DJINN_CHECK(check_free(store, name));
        return any_count ? Status() : check_names(store, owner);
      },
      [this, wanted = std::weak_ptr<const bool>(wanted_)](const Status& may) {
        if (wanted.expired()) return;
        if (!may) return fail(may.error());
        take_loader();
      });
}

void Import::take_loader() {
  if (loaders_.fails()) return fail(loaders_.failure());
  phase_.enter(ImportPhase::kWaiting);
  loaders_.take(wanted_, [this](ReadyChild child) { adopt(std::move(child)); });
}

void Import::adopt(ReadyChild child) {
  process_ = std::move(child.process);
  process_->listen(
      {[this](const ipc::Datagram& message) { heard(message); }, [this] { exited(); }});
  phase_.enter(ImportPhase::kIdentifying);
  send_files();
}

void Import::send_files() {
  std::vector<SharedFd>& files = what_.files;
  for (size_t first = 0; first < files.size(); first += limits::kControlDescriptors) {
    const size_t end = std::min<size_t>(files.size(), first + limits::kControlDescriptors);
    const std::span<const SharedFd> part = std::span(files).subspan(first, end - first);
    const ipc::TakeFiles command{static_cast<uint32_t>(part.size()), end == files.size()};
    process_->send_shared(ipc::encode(ipc::LoaderCommand{command}), {part.begin(), part.end()});
  }
  files.clear();  // the loader has them
}

void Import::heard(const ipc::Datagram& message) {
  if (phase_ == ImportPhase::kEnded) return;
  const auto event = ipc::decode_loader_event(message.bytes);
  if (!event) return fail(out_of_turn());
  on_loader_event(*event);
}

void Import::on_loader_event(const ipc::LoaderEvent& event) {
  const auto in_turn = [&](ImportPhase phase) { return phase_ == phase; };
  if (const auto* failed = std::get_if<ipc::LoadFailed>(&event.body)) {
    const bool typed = failed->code != ErrorCode::kOk;
    fail(typed ? Error{failed->code, failed->message} : out_of_turn());
  } else if (const auto* told = std::get_if<ipc::Identified>(&event.body);
             told && in_turn(ImportPhase::kIdentifying) &&
             told->files.size() == what_.names.size()) {
    identified(*told);
  } else if (const auto* taken = std::get_if<ipc::TakenIn>(&event.body);
             taken && in_turn(ImportPhase::kCopying)) {
    taken_in(*taken);
  } else {
    fail(out_of_turn());
  }
}

// All files are judged before the first byte is copied.
void Import::identified(const ipc::Identified& told) {
  for (size_t i = 0; i < told.files.size(); ++i) {
    const Status taken = store::check_file(what_.names[i], told.files[i].bytes);
    if (!taken) return fail(taken.error());
    bytes_.push_back(told.files[i].bytes);
  }
  place_next();
}

void Import::place_next() {
  phase_.enter(ImportPhase::kPlacing);
  const uint64_t bytes = bytes_[record_.files.size()];
  store_.run(
      [bytes, keep_free = what_.keep_free](store::Store& store) -> Result<std::shared_ptr<Fd>> {
        DJINN_TRY(Fd room, store.make_room(bytes));
        if (keep_free) DJINN_CHECK(check_left(room, bytes, *keep_free));
        return std::make_shared<Fd>(std::move(room));
      },
      unless_ended(&Import::placed));
}

void Import::placed(std::shared_ptr<Fd> room) {
  phase_.enter(ImportPhase::kCopying);
  room_ = std::move(room);
  const size_t file = record_.files.size();
  const ipc::TakeIn command{static_cast<uint32_t>(file), bytes_[file],
                            name_now().ends_with(kWeights)};
  const int fds[] = {room_->get()};
  process_->send(ipc::encode(ipc::LoaderCommand{command}), fds);
}

void Import::taken_in(const ipc::TakenIn& told) {
  phase_.enter(ImportPhase::kAdding);
  const store::File file{name_now(), digest_of(told.sha256), bytes_[record_.files.size()]};
  record_.files.push_back(file);
  store_.run([room = room_,
              file](store::Store& store) { return store.add(*room, file.digest, file.bytes); },
             unless_ended(&Import::added));
}

void Import::added(store::Held held) {
  held_.push_back(std::move(held));
  store_.close(std::move(*std::exchange(room_, nullptr)));
  if (record_.files.size() < what_.names.size()) return place_next();
  publish();
}

void Import::publish() {
  phase_.enter(ImportPhase::kPublishing);
  store_.run(
      [record = record_](store::Store& store) -> Result<store::Record> {
        const Status published = store.publish(record, Existing::kRefused);
        if (published) return record;
        const bool is_there = published.error().code == ErrorCode::kAlreadyExists;
        return is_there ? exists(record.name) : published.error();
      },
      [this, wanted = std::weak_ptr<const bool>(wanted_)](Result<store::Record> published) {
        if (wanted.expired()) return;
        end();
        done_(std::move(published));
      });
}

void Import::fail(const Error& error) {
  if (phase_ == ImportPhase::kEnded) return;
  end();
  done_(error);
}

// What the store is about to publish it publishes.
void Import::abort() {
  if (phase_ != ImportPhase::kPublishing && phase_ != ImportPhase::kEnded) end();
}

// What is in the store already and has no name goes.
void Import::end() {
  const bool has_process = process_ != nullptr;
  phase_.enter(ImportPhase::kEnded);
  wanted_.reset();
  held_.clear();
  if (room_) store_.close(std::move(*std::exchange(room_, nullptr)));
  store_.collect();
  if (has_process) return process_->kill();
  loop_.defer([this] { gone_(); });
}

void Import::exited() {
  if (phase_ != ImportPhase::kEnded) {
    fail({ErrorCode::kLoaderLost, "The process that read the files died. Try again."});
  }
  loop_.defer([this] { gone_(); });
}

}  // namespace djinn::daemon
