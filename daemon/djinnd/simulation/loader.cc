// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/simulation/loader.h"

#include <signal.h>

#include <algorithm>
#include <span>
#include <utility>

#include "daemon/djinnd/simulation/machine.h"
#include "daemon/djinnd/simulation/names.h"
#include "ipc/codec/control_codec.h"
#include "kernel/base/assert.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon::simulation {

Loader::Loader(Machine& machine, Loop& loop, Files& files, pid_t pid, Fd channel)
    : Child(pid),
      machine_(machine),
      files_(files),
      channel_(std::move(channel)),
      poll_(loop, channel_.get(), [this] { readable(); }),
      work_(loop, [this] { work(); }),
      hash_(loop, [this] { hash(); }) {
  poll_.watch_readable();
  work_.start_once(machine_.between(1, 10));
}

void Loader::end() {
  ending_ = true;
  poll_.pause();
  work_.stop();
  hash_.stop();
}

void Loader::readable() {
  auto next = ipc::receive_datagram(channel_.get());
  if (!next.ok()) return machine_.processes().exit(pid(), 0);
  if (!next.value()) return;
  commands_.push_back(*std::move(next.value()));
  work_soon();
}

void Loader::work_soon() {
  if (work_.active() || commands_.empty()) return;
  work_.start_once(machine_.fault(20) ? machine_.below(8000) : machine_.below(10));
}

bool Loader::has_silent_file() {
  return std::ranges::any_of(taken_, [this](uint64_t file) { return files_.at(file).silent; });
}

void Loader::work() {
  if (machine_.fault(80)) return machine_.processes().exit(pid(), SIGBUS);
  if (!ready_) {
    ready_ = true;
    say({ipc::LoaderReady{1, true}});
    return work_soon();
  }
  if (has_silent_file()) return work_.start_once(500);
  const ipc::Datagram command = std::move(commands_.front());
  commands_.pop_front();
  answer(command);
  if (!ending_) work_soon();
}

void Loader::say(const ipc::LoaderEvent& event, const std::vector<int>& fds) {
  send(event, fds);
  if (machine_.fault(100)) lie(event, fds);
}

void Loader::send(const ipc::LoaderEvent& event, const std::vector<int>& fds) {
  if (ending_) return;
  machine_.tell("loader {}: says {}", pid(), name_of_body(event.body));
  const Status sent = ipc::send_datagram(channel_.get(), ipc::encode(event), fds);
  if (!sent) machine_.processes().exit(pid(), 0);
}

// The loader repeats what it said, or says something else.
void Loader::lie(const ipc::LoaderEvent& said, const std::vector<int>& fds) {
  machine_.tell("loader {}: lies", pid());
  switch (machine_.below(10)) {
    case 0:
      return send({ipc::Hashed{}}, {});
    case 1:
      return send({ipc::Compared{machine_.one_in(2)}}, {});
    case 2:
      return send({ipc::Planned{{}}}, {});
    case 3:
      return send({ipc::Planned{{UINT64_MAX, 1}}}, {});
    case 4:
      return send({ipc::Progress{UINT64_MAX}}, {});
    case 5:
      return send({ipc::Loaded{UINT64_MAX, UINT64_MAX, UINT64_MAX}}, fds);
    case 6:
      return send({ipc::LoaderReady{1, true}}, {});
    default:
      return send(said, fds);
  }
}

void Loader::answer(const ipc::Datagram& message) {
  const auto command = ipc::decode_loader_command(message.bytes);
  DJINN_ASSERT(command.ok());
  const auto& body = command.value().body;
  machine_.tell("loader {}: hears {}", pid(), name_of_body(body));
  if (machine_.fault(40)) {
    return say({ipc::LoadFailed{ErrorCode::kIo, "The simulated file cannot be read."}});
  }
  if (const auto* files = std::get_if<ipc::TakeFiles>(&body))
    return take_files(*files, message.fds);
  if (std::holds_alternative<ipc::PlanLoad>(body)) return plan();
  if (std::holds_alternative<ipc::ReadInto>(body)) return read(message.fds);
  if (std::holds_alternative<ipc::CompareWith>(body)) return compare(message.fds);
  taken_.clear();
  say({ipc::LoaderReady{1, true}});
}

void Loader::take_files(const ipc::TakeFiles& command, const std::vector<Fd>& fds) {
  DJINN_ASSERT(fds.size() == command.count);
  for (const Fd& fd : fds) {
    const auto number = files_.number_of(fd);
    if (!number.ok()) {
      return say({ipc::LoadFailed{number.error().code, number.error().message}});
    }
    taken_.push_back(number.value());
  }
  if (command.last) tell_files();
}

void Loader::tell_files() {
  ipc::Identified told;
  told.now_ns = static_cast<int64_t>(machine_.wall_ns());
  for (const uint64_t number : taken_) {
    const ModelFile& file = files_.at(number);
    ipc::FileIdentity identity;
    identity.inode = file.inode;
    identity.bytes = file.bytes;
    identity.on_block_device = file.on_block_device;
    identity.unwritten = file.unwritten;
    told.files.push_back(identity);
  }
  say({told});
}

// The plan has one extent for each file.
void Loader::plan() {
  ipc::Planned planned;
  for (const uint64_t number : taken_) planned.extent_bytes.push_back(files_.at(number).bytes);
  say({planned});
}

std::vector<uint64_t> Loader::contents() {
  std::vector<uint64_t> contents;
  for (const uint64_t number : taken_) contents.push_back(files_.at(number).content);
  return contents;
}

void Loader::read(const std::vector<Fd>& extents) {
  for (const Fd& extent : extents) machine_.memory().used(extent);
  const std::vector<uint64_t> held = contents();
  if (machine_.one_in(2)) say({ipc::Progress{held.size()}});
  auto manifest = pal::make_sealed_memfd("djinn-manifest", std::as_bytes(std::span(held)));
  DJINN_ASSERT(manifest.ok());
  const uint64_t huge_bytes = held.empty() ? 0 : held.front() % 4096;
  say({ipc::Loaded{held.size(), 0, huge_bytes}}, {manifest.value().get()});
  hash_.start_once(machine_.fault(4) ? machine_.below(20'000) : 0);
}

void Loader::hash() {
  ipc::Hashed hashed;
  const std::vector<uint64_t> held = contents();
  for (size_t i = 0; i < held.size() && i < hashed.sha256.size(); ++i) {
    hashed.sha256[i] = static_cast<uint8_t>(held[i]);
  }
  say({hashed});
  machine_.processes().exit(pid(), 0);
}

void Loader::compare(const std::vector<Fd>& fds) {
  DJINN_ASSERT(fds.size() > 1);
  const std::vector<uint64_t> held = contents();
  const auto other = pal::read_memfd(fds[0], held.size() * sizeof(uint64_t));
  DJINN_ASSERT(other.ok());
  const bool same = std::ranges::equal(other.value(), std::as_bytes(std::span(held)));
  say({ipc::Compared{same}});
}

}  // namespace djinn::daemon::simulation
