// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/simulation/client.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstddef>
#include <iterator>
#include <span>
#include <utility>

#include "daemon/djinnd/simulation/machine.h"
#include "daemon/djinnd/simulation/names.h"
#include "ipc/codec/control_codec.h"
#include "ipc/session_memory.h"
#include "ipc/socket.h"
#include "kernel/base/assert.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon::simulation {
namespace {

constexpr size_t kPendingMax = 12;
constexpr uint64_t kOpenMax = 24;  // submissions
constexpr size_t kPublished = offsetof(ipc::SessionControl, submissions_published);
constexpr size_t kCompleted = offsetof(ipc::SessionControl, submissions_completed);
constexpr size_t kCancelled = offsetof(ipc::SessionControl, cancelled_through);

template <typename Set>
auto one_of(Machine& machine, const Set& set) {
  return *std::next(set.begin(), static_cast<std::ptrdiff_t>(machine.below(set.size())));
}

Fd sealed(uint64_t content) {
  auto made = pal::make_sealed_memfd("djinn-sent", std::as_bytes(std::span(&content, 1)));
  DJINN_ASSERT(made.ok());
  return *std::move(made);
}

}  // namespace

Client::Client(Machine& machine, Loop& loop, Files& files, Known& known, uid_t user,
               std::string name)
    : machine_(machine),
      loop_(loop),
      files_(files),
      known_(known),
      user_(user),
      name_(std::move(name)),
      act_(loop, [this] { act(); }) {}

void Client::begin() {
  act_.start_once(machine_.between(0, 50));
}

void Client::be_calm() {
  calm_ = true;
  act_.stop();
  if (poll_) poll_->watch_readable();
}

void Client::go() {
  be_calm();
  hang_up();
}

void Client::observe() {
  stays_ = true;
  connect();
  observer_ = true;
  ask_for(ipc::Hello{ipc::kProtocolVersion, name_, 0, true});
}

std::vector<std::string> Client::waits_for() const {
  std::vector<std::string> waits;
  for (const auto& [number, what] : pending_) {
    if (!may_wait_.contains(number)) waits.push_back(what);
  }
  return waits;
}

void Client::act_later() {
  if (calm_) return;
  act_.start_once(machine_.one_in(50) ? machine_.below(5000) : machine_.below(40));
}

void Client::act() {
  if (poll_) poll_->watch_readable();
  if (!is_connected()) {
    connect();
  } else if (machine_.one_in(60)) {
    hang_up();
  } else if (machine_.fault(400)) {
    lie();
  } else if (greeting_ == Greeting::kNone) {
    greet();
  } else if (greeting_ == Greeting::kDone && pending_.size() < kPendingMax) {
    do_something();
  }
  act_later();
}

// --- the connection

void Client::connect() {
  auto connected = machine_.door().connect({1, user_, {static_cast<gid_t>(user_)}});
  if (!connected.ok()) return;
  machine_.tell("{}: connects", name_);
  socket_ = *std::move(connected);
  greeting_ = Greeting::kNone;
  poll_ = std::make_unique<Poll>(loop_, socket_.get(), [this] { read_one(); });
  poll_->watch_readable();
}

void Client::hang_up() {
  if (!is_connected()) return;
  machine_.tell("{}: hangs up", name_);
  poll_->pause();
  loop_.dispose(std::exchange(poll_, nullptr));
  socket_.reset();
  memory_.reset();
  submitted_ = 0;
  pending_.clear();
  may_wait_.clear();
  open_.clear();
  groups_.clear();
  session_ = {};
  expects_end_ = false;
  greeting_ = Greeting::kNone;
}

void Client::greet() {
  observer_ = machine_.one_in(8);
  const uint32_t version = machine_.fault(40) ? 1 : ipc::kProtocolVersion;
  const uint64_t staging_bytes = machine_.between(1, 64) * 4096;
  constexpr const char* kDevices[] = {"", "cpu:0", "fake:0", "fake:0", "fake:1"};
  device_ = kDevices[machine_.below(std::size(kDevices))];
  greeting_ = Greeting::kAsked;
  const auto service = static_cast<ServiceClass>(machine_.below(kServiceClasses));
  ask_for(ipc::Hello{version, name_, staging_bytes, observer_, device_, service});
}

void Client::ask(ipc::ClientRequest request, const std::vector<int>& fds) {
  if (!is_connected()) return;
  const std::string what = fmt::format("{} {}", name_of_body(request.body), request.number);
  const Status sent = ipc::send_datagram(socket_.get(), ipc::encode(request), fds);
  machine_.tell("{}: asks {}", name_, what);
  if (sent) {
    pending_.emplace(request.number, what);
    if (std::holds_alternative<ipc::FollowEvents>(request.body)) may_wait_.insert(request.number);
    return;
  }
  const bool was_refused_hello = std::holds_alternative<ipc::Hello>(request.body);
  if (was_refused_hello) greeting_ = Greeting::kNone;
  if (sent.error().code != ErrorCode::kBusy) hang_up();
}

void Client::read_one() {
  auto next = ipc::receive_datagram(socket_.get());
  if (!next.ok()) {
    if (expects_end_) wrong_ = fmt::format("{} was hung up on, and not told why", name_);
    return hang_up();
  }
  if (!next.value()) return;
  const auto reply = ipc::decode_daemon_reply(next.value()->bytes);
  DJINN_ASSERT(reply.ok());
  heard(reply.value(), std::move(next.value()->fds));
  if (poll_ && !calm_ && machine_.fault(30)) {  // it is slow to read the next one
    poll_->pause();
    act_.start_once(machine_.below(3000));
  } else if (poll_) {
    poll_->watch_readable();
  }
}

void Client::heard(const ipc::DaemonReply& reply, std::vector<Fd> fds) {
  const auto asked = pending_.extract(reply.number);
  may_wait_.erase(reply.number);
  const auto* const failed = std::get_if<ipc::Failed>(&reply.body);
  if (failed != nullptr && reply.number == 0) expects_end_ = false;
  const bool is_typed =
      failed == nullptr || (failed->code != ErrorCode::kInternal && failed->message.ends_with('.'));
  if (!is_typed)
    wrong_ = fmt::format("{} hears of an error that is no sentence: {}", name_, failed->message);
  machine_.tell("{}: hears {} of {}{}", name_, name_of_body(reply.body),
                asked.empty() ? "a notice" : asked.mapped(),
                failed != nullptr ? fmt::format(": {}", failed->message) : "");
  if (!asked.empty() && asked.mapped().starts_with("Hello")) {
    greeting_ = failed != nullptr ? Greeting::kNone : Greeting::kDone;
  }
  if (const auto* const welcome = std::get_if<ipc::Welcome>(&reply.body)) {
    session_ = welcome->session;
    known_.sessions.insert(session_);
    if (!fds.empty()) memory_ = std::move(fds[0]);
  } else if (const auto* const opened = std::get_if<ipc::ModelOpened>(&reply.body)) {
    open_.insert(opened->model);
    known_.models.insert(opened->model);
  } else if (const auto* const made = std::get_if<ipc::SequenceMade>(&reply.body)) {
    groups_.insert(made->sequence);
  } else if (const auto* const models = std::get_if<ipc::ModelList>(&reply.body)) {
    for (const ipc::ModelReport& model : models->models) known_.models.insert(model.model);
  }
}

// --- requests

ModelId Client::some_model() {
  if (!open_.empty() && machine_.one_in(2)) return one_of(machine_, open_);
  if (known_.models.empty()) return ModelId{1};
  return one_of(machine_, known_.models);
}

void Client::do_something() {
  if (is_admin() && machine_.one_in(4)) return administrate();
  switch (machine_.below(18)) {
    case 0:
    case 1:
    case 2:
      return open_a_model();
    case 3:
      if (open_.empty()) return;
      return ask_for(ipc::CloseModel{open_.extract(one_of(machine_, open_)).value()});
    case 4:
    case 5:
      groups_.size() > 6 ? void()
                         : ask_for(ipc::MakeSequence{{1, 1, 1, 8, DType::kFloat32, 64, 1}});
      return;
    case 6: {
      if (groups_.empty()) return;
      return ask_for(ipc::DropSequence{groups_.extract(one_of(machine_, groups_)).value()});
    }
    case 7: {
      const Fd graph = sealed(machine_.below(6));
      const ModelId model = open_.empty() ? ModelId{} : one_of(machine_, open_);
      return ask_for(ipc::DefineProgram{model}, {graph.get()});
    }
    case 8:
      return ask_for(ipc::PinModel{some_model(), machine_.one_in(2)});
    case 9:
      return ask_for(ipc::EvictModel{some_model(), ipc::Tier::kDisk, machine_.one_in(2)});
    case 10:
      return ask_for(ipc::UnloadModel{some_model()});
    case 11:
      return ask_for(ipc::CancelRun{session_});
    case 12:
      return ask_for(ipc::ListModels{});
    case 13:
      return ask_for(ipc::ReadManifest{some_model(), 0});
    case 14:
      return ask_for(ipc::FollowEvents{machine_.below(50), machine_.one_in(2)});
    default:
      return submit();
  }
}

void Client::open_a_model() {
  std::vector<int> fds;
  const uint64_t first = machine_.below(files_.count());
  const uint64_t count = machine_.between(1, 2);
  for (uint64_t i = 0; i < count && first + i < files_.count(); ++i) {
    fds.push_back(files_.at(first + i).fd.get());
  }
  if (machine_.fault(30)) files_.at(first).silent = !files_.at(first).silent;
  ask_for(ipc::AddFiles{static_cast<uint32_t>(fds.size())}, fds);
  ipc::OpenModel open;
  open.label = "model";
  open.pin = machine_.one_in(6);
  open.unpin = machine_.one_in(6);
  open.has_plan = machine_.one_in(4);
  if (machine_.one_in(2)) open.keep_alive_ms = machine_.one_in(2) ? 0 : machine_.below(60'000);
  if (machine_.one_in(8)) open.keep_alive_ms = ipc::kKeepForever;
  if (machine_.one_in(4)) open.numerics = static_cast<srg::Numerics>(machine_.below(3));
  const Fd plan = sealed(machine_.below(2));
  ask_for(open, open.has_plan ? std::vector<int>{plan.get()} : std::vector<int>{});
}

void Client::administrate() {
  const auto session = [this] {
    return known_.sessions.empty() ? SessionId{1} : one_of(machine_, known_.sessions);
  };
  switch (machine_.below(5)) {
    case 0:
      return ask_for(ipc::TerminateSession{session()});
    case 1:
      return ask_for(ipc::CancelRun{session()});
    case 2:
      return ask_for(ipc::CollectGarbage{});
    case 3:
      return ask_for(ipc::SetDraining{machine_.one_in(8)});
    default:
      return ask_for(ipc::GetStatus{});
  }
}

// Now and then all that is submitted is cancelled.
void Client::submit() {
  if (!memory_.valid()) return;
  uint64_t completed = 0;
  if (::pread(memory_.get(), &completed, sizeof completed, kCompleted) < 0) return;
  const auto say = [&](size_t offset) {
    [[maybe_unused]] const ssize_t put =
        ::pwrite(memory_.get(), &submitted_, sizeof submitted_, static_cast<off_t>(offset));
  };
  if (machine_.one_in(6)) return say(kCancelled);
  if (submitted_ >= completed + kOpenMax) return;
  submitted_ += machine_.between(1, 12);
  say(kPublished);
}

// djinnd ends a session that sends such messages.
void Client::lie() {
  machine_.tell("{}: lies", name_);
  const Fd extra = sealed(0);
  const int fds[] = {extra.get()};
  const std::byte nonsense[] = {std::byte{1}, std::byte{2}};
  const auto number = static_cast<uint32_t>(machine_.below(4));
  const auto request = ipc::encode(ipc::ClientRequest{number, ipc::GetOwnMemory{}});
  const bool is_nonsense = machine_.one_in(2);
  [[maybe_unused]] const Status sent = is_nonsense
                                           ? ipc::send_datagram(socket_.get(), nonsense)
                                           : ipc::send_datagram(socket_.get(), request, fds);
}

}  // namespace djinn::daemon::simulation
