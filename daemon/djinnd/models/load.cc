// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/models/load.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "ipc/codec/control_codec.h"
#include "ipc/limits.h"
#include "kernel/base/assert.h"

namespace djinn::daemon {

Error out_of_turn() {
  return {ErrorCode::kLoaderLost, "The loader did not keep to its protocol. Try again."};
}

bool may_follow(LoadPhase from, LoadPhase to) {
  using enum LoadPhase;
  static constexpr auto kLegal = std::to_array<Transition<LoadPhase>>({
      {kWaiting, kIdentifying},
      {kIdentifying, kDeciding},
      {kDeciding, kPlanning},
      {kPlanning, kGranting},
      {kGranting, kReading},
      {kGranting, kComparing},
      {kReading, kHashing},
      {kHashing, kHashed},
  });
  return is_listed(kLegal, from, to) || (to == kEnded && from != kEnded);
}

Load::Load(Loop& loop, SparePool& loaders, Holder& holder, LoadListener& listener, LoadId id,
           std::vector<SharedFd> files)
    : loop_(loop),
      loaders_(loaders),
      holder_(holder),
      listener_(listener),
      id_(id),
      files_(std::move(files)) {}

void Load::start() {
  DJINN_ASSERT(phase_ == LoadPhase::kWaiting);
  loaders_.take(wanted_, [this](ReadyChild child) { adopt(std::move(child)); });
}

void Load::adopt(ReadyChild child) {
  process_ = std::move(child.process);
  // The loader sends the manifest as a memfd, so it may send descriptors of memory.
  process_->listen(
      {[this](ipc::Datagram& message) { heard(message); }, [this] { exited(); }, SentFds::kMemory});
  phase_.enter(LoadPhase::kIdentifying);
  send_files();
}

void Load::send(const ipc::LoaderCommand& command, std::vector<SharedFd> fds) {
  process_->send_shared(ipc::encode(command), std::move(fds));
}

void Load::send_files() {
  for (size_t first = 0; first < files_.size(); first += limits::kControlDescriptors) {
    const size_t end = std::min<size_t>(files_.size(), first + limits::kControlDescriptors);
    const std::span<const SharedFd> part = std::span(files_).subspan(first, end - first);
    send({ipc::TakeFiles{static_cast<uint32_t>(part.size()), end == files_.size()}},
         {part.begin(), part.end()});
  }
}

void Load::plan(const SharedFd& plan_memfd) {
  phase_.enter(LoadPhase::kPlanning);
  std::vector<SharedFd> fds;
  if (plan_memfd) fds.push_back(plan_memfd);
  send({ipc::PlanLoad{plan_memfd != nullptr}}, std::move(fds));
}

void Load::read_into(const std::vector<Fd>& extents, bool hash_at_once) {
  phase_.enter(LoadPhase::kReading);
  std::vector<int> fds;
  for (const Fd& extent : extents) fds.push_back(extent.get());
  process_->send(ipc::encode(ipc::LoaderCommand{
                     ipc::ReadInto{static_cast<uint32_t>(fds.size()), hash_at_once}}),
                 fds);
}

void Load::compare_with(const Fd& manifest, const std::vector<Fd>& extents) {
  phase_.enter(LoadPhase::kComparing);
  std::vector<int> fds{manifest.get()};
  for (const Fd& extent : extents) fds.push_back(extent.get());
  process_->send(ipc::encode(ipc::LoaderCommand{
                     ipc::CompareWith{static_cast<uint32_t>(extents.size()), id_.value}}),
                 fds);
}

void Load::heard(ipc::Datagram& message) {
  if (phase_ == LoadPhase::kEnded) return;
  const auto event = ipc::decode_loader_event(message.bytes);
  if (!event.ok()) return fail(out_of_turn());
  on_loader_event(event.value(), message.fds);
}

void Load::on_loader_event(const ipc::LoaderEvent& event, std::vector<Fd>& fds) {
  const auto in_turn = [&](LoadPhase phase) { return phase_ == phase; };
  if (const auto* failed = std::get_if<ipc::LoadFailed>(&event.body)) {
    const bool typed = failed->code != ErrorCode::kOk;
    fail(typed ? Error{failed->code, failed->message} : out_of_turn());
  } else if (const auto* files = std::get_if<ipc::Identified>(&event.body);
             files && in_turn(LoadPhase::kIdentifying) && files->files.size() == files_.size()) {
    phase_.enter(LoadPhase::kDeciding);
    ends_surely_ = std::ranges::all_of(files->files, [](const ipc::FileIdentity& file) {
      return file.on_block_device || file.content.has_value();
    });
    listener_.load_identified(*this, *files);
  } else if (const auto* plan = std::get_if<ipc::Planned>(&event.body);
             plan && in_turn(LoadPhase::kPlanning)) {
    phase_.enter(LoadPhase::kGranting);
    listener_.load_planned(*this, *plan);
  } else if (const auto* progress = std::get_if<ipc::Progress>(&event.body);
             progress && in_turn(LoadPhase::kReading)) {
    listener_.load_progressed(*this, progress->bytes_read);
  } else if (const auto* loaded = std::get_if<ipc::Loaded>(&event.body);
             loaded && in_turn(LoadPhase::kReading) && fds.size() == 1) {
    phase_.enter(LoadPhase::kHashing);
    ends_surely_ = true;  // it has closed its files
    listener_.load_finished(*this, *loaded, fds[0]);
  } else if (const auto* hashed = std::get_if<ipc::Hashed>(&event.body);
             hashed && in_turn(LoadPhase::kHashing)) {
    phase_.enter(LoadPhase::kHashed);
    listener_.load_hashed(*this, *hashed);
  } else if (const auto* compared = std::get_if<ipc::Compared>(&event.body);
             compared && in_turn(LoadPhase::kComparing)) {
    listener_.load_compared(*this, compared->same);
  } else {
    fail(out_of_turn());
  }
}

bool Load::has_finished() const {
  return phase_ == LoadPhase::kHashing || phase_ == LoadPhase::kHashed;
}

void Load::fail(const Error& error) {
  if (phase_ == LoadPhase::kEnded) return;
  const bool finished = has_finished();
  abort();
  if (!finished) listener_.load_failed(*this, error);
}

void Load::abort() {
  if (phase_ == LoadPhase::kEnded) return;
  phase_.enter(LoadPhase::kEnded);
  wanted_.reset();
  if (process_) return process_->kill();
  loop_.defer([this] { holder_.load_ended(id_); });
}

void Load::go_on() {
  if (process_) process_->go_on();
}

void Load::release() {
  DJINN_ASSERT(phase_ == LoadPhase::kDeciding);
  if (!ends_surely_) return abort();
  phase_.enter(LoadPhase::kEnded);
  // This is deferred because the child's own event is being handled. The pool must be the one that
  // hears the loader's answer.
  loop_.defer([this] {
    send({ipc::ReleaseFiles{}}, {});
    loaders_.give_back(std::move(process_));
    holder_.load_ended(id_);
  });
}

void Load::exited() {
  if (phase_ != LoadPhase::kEnded) {
    const bool finished = has_finished();
    phase_.enter(LoadPhase::kEnded);
    if (!finished) {
      listener_.load_failed(
          *this, {ErrorCode::kLoaderLost, "The process that read the files died. Try again."});
    }
  }
  holder_.load_ended(id_);
}

}  // namespace djinn::daemon
