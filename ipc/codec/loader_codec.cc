// SPDX-License-Identifier: Apache-2.0

#include "ipc/codec/control_codec.h"
#include "ipc/codec/control_wire.h"

namespace djinn::ipc::control {
namespace {

// --- LoaderCommand

void write(wire::LoaderCommand::Builder out, const TakeFiles& command) {
  auto files = out.initTakeFiles();
  files.setCount(command.count);
  files.setLast(command.last);
}
void write(wire::LoaderCommand::Builder out, const PlanLoad& command) {
  out.initPlanLoad().setHasPlan(command.has_plan);
}
void write(wire::LoaderCommand::Builder out, const ReadInto& command) {
  auto read = out.initReadInto();
  read.setExtents(command.extents);
  read.setHashAtOnce(command.hash_at_once);
}
void write(wire::LoaderCommand::Builder out, const ReleaseFiles&) {
  out.setReleaseFiles();
}
void write(wire::LoaderCommand::Builder out, const CompareWith& command) {
  auto compare = out.initCompareWith();
  compare.setExtents(command.extents);
  compare.setSeed(command.seed);
}
void write(wire::LoaderCommand::Builder out, const TakeIn& command) {
  auto take = out.initTakeIn();
  take.setFile(command.file);
  take.setBytes(command.bytes);
  take.setIsWeights(command.is_weights);
}

static_assert(std::variant_size_v<decltype(LoaderCommand::body)> ==
              wire::LoaderCommand::TAKE_IN + 1);

LoaderCommand read_loader_command(wire::LoaderCommand::Reader in) {
  switch (in.which()) {
    case wire::LoaderCommand::TAKE_FILES:
      return {TakeFiles{in.getTakeFiles().getCount(), in.getTakeFiles().getLast()}};
    case wire::LoaderCommand::PLAN_LOAD:
      return {PlanLoad{in.getPlanLoad().getHasPlan()}};
    case wire::LoaderCommand::READ_INTO:
      return {ReadInto{in.getReadInto().getExtents(), in.getReadInto().getHashAtOnce()}};
    case wire::LoaderCommand::RELEASE_FILES:
      return {ReleaseFiles{}};
    case wire::LoaderCommand::COMPARE_WITH:
      return {CompareWith{in.getCompareWith().getExtents(), in.getCompareWith().getSeed()}};
    case wire::LoaderCommand::TAKE_IN:
      return {TakeIn{in.getTakeIn().getFile(), in.getTakeIn().getBytes(),
                     in.getTakeIn().getIsWeights()}};
  }
  refuse(ErrorCode::kUnsupported, "A loader command is unknown to this version.");
}

// --- LoaderEvent

void write(wire::LoaderEvent::Builder out, const LoaderReady& event) {
  auto ready = out.initReady();
  ready.setLandlockAbi(event.landlock_abi);
  ready.setSeccomp(event.seccomp);
}
void write(wire::LoaderEvent::Builder out, const Identified& event) {
  auto identified = out.initIdentified();
  identified.setNowNs(event.now_ns);
  write_list(event.files, identified.initFiles(count_of(event.files)), write_identity);
}
void write(wire::LoaderEvent::Builder out, const Planned& event) {
  auto bytes = out.initPlanned(count_of(event.extent_bytes));
  DJINN_ASSERT(bytes.size() == event.extent_bytes.size());
  for (unsigned i = 0; i < bytes.size(); ++i) bytes.set(i, event.extent_bytes[i]);
}
void write(wire::LoaderEvent::Builder out, const Progress& event) {
  out.setProgress(event.bytes_read);
}
void write(wire::LoaderEvent::Builder out, const Loaded& event) {
  auto loaded = out.initLoaded();
  loaded.setBytesRead(event.bytes_read);
  loaded.setBufferedReads(event.buffered_reads);
  loaded.setHugeBytes(event.huge_bytes);
}
void write(wire::LoaderEvent::Builder out, const Hashed& event) {
  out.setHashed(data(event.sha256));
}
void write(wire::LoaderEvent::Builder out, const LoadFailed& event) {
  write_failure(out.initFailed(), event.code, event.message);
}
void write(wire::LoaderEvent::Builder out, const Compared& event) {
  out.setCompared(event.same);
}
void write(wire::LoaderEvent::Builder out, const TakenIn& event) {
  out.setTakenIn(data(event.sha256));
}

Identified read_identified(wire::Identified::Reader in) {
  return {read_list(in.getFiles(), limits::kModelFiles, read_identity), in.getNowNs()};
}

Loaded read_loaded(wire::Loaded::Reader in) {
  return {in.getBytesRead(), in.getBufferedReads(), in.getHugeBytes()};
}

Planned read_planned(capnp::List<uint64_t>::Reader in) {
  return {read_list(in, limits::kModelExtents, [](uint64_t bytes) { return bytes; })};
}

LoadFailed read_load_failed(wire::Failure::Reader in) {
  Error error = read_failure(in, Success::kRefused);
  return {error.code, std::move(error.message)};
}

static_assert(std::variant_size_v<decltype(LoaderEvent::body)> == wire::LoaderEvent::TAKEN_IN + 1);

LoaderEvent read_loader_event(wire::LoaderEvent::Reader in) {
  switch (in.which()) {
    case wire::LoaderEvent::READY:
      return {LoaderReady{in.getReady().getLandlockAbi(), in.getReady().getSeccomp()}};
    case wire::LoaderEvent::IDENTIFIED:
      return {read_identified(in.getIdentified())};
    case wire::LoaderEvent::PLANNED:
      return {read_planned(in.getPlanned())};
    case wire::LoaderEvent::PROGRESS:
      return {Progress{in.getProgress()}};
    case wire::LoaderEvent::LOADED:
      return {read_loaded(in.getLoaded())};
    case wire::LoaderEvent::HASHED:
      return {Hashed{read_sha256(in.getHashed())}};
    case wire::LoaderEvent::FAILED:
      return {read_load_failed(in.getFailed())};
    case wire::LoaderEvent::COMPARED:
      return {Compared{in.getCompared()}};
    case wire::LoaderEvent::TAKEN_IN:
      return {TakenIn{read_sha256(in.getTakenIn())}};
  }
  refuse(ErrorCode::kUnsupported, "A loader event is unknown to this version.");
}

}  // namespace
}  // namespace djinn::ipc::control

namespace djinn::ipc {

std::vector<std::byte> encode(const LoaderCommand& command) {
  capnp::MallocMessageBuilder message;
  auto out = message.initRoot<wire::LoaderCommand>();
  std::visit([&](const auto& body) { control::write(out, body); }, command.body);
  return control::flatten(message);
}

std::vector<std::byte> encode(const LoaderEvent& event) {
  capnp::MallocMessageBuilder message;
  auto out = message.initRoot<wire::LoaderEvent>();
  std::visit([&](const auto& body) { control::write(out, body); }, event.body);
  return control::flatten(message);
}

Result<LoaderCommand> decode_loader_command(std::span<const std::byte> bytes) {
  return control::decode_message<wire::LoaderCommand>(bytes, control::read_loader_command);
}

Result<LoaderEvent> decode_loader_event(std::span<const std::byte> bytes) {
  return control::decode_message<wire::LoaderEvent>(bytes, control::read_loader_event);
}

}  // namespace djinn::ipc
