#include "daemon/loader/loader.h"

#include <sched.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "ipc/codec/control_codec.h"
#include "ipc/codec/srg_codec.h"
#include "kernel/load/hash.h"
#include "kernel/load/safetensors.h"
#include "kernel/load/source.h"
#include "kernel/pal/memfd.h"

namespace djinn::loader {
namespace {

// How often progress is told: a load of gigabytes is seen to move, and djinnd is not kept busy.
constexpr uint64_t kProgressStepBytes = uint64_t{64} << 20;

ipc::FileIdentity to_message(const load::FileIdentity& identity) {
  ipc::FileIdentity out;
  out.device_major = identity.device_major;
  out.device_minor = identity.device_minor;
  out.inode = identity.inode;
  out.bytes = identity.bytes;
  out.mtime_ns = identity.mtime_ns;
  out.ctime_ns = identity.ctime_ns;
  out.on_block_device = identity.on_block_device;
  return out;
}

Result<srg::LoadPlan> read_plan(const std::vector<Fd>& fds) {
  if (fds.empty()) return srg::LoadPlan{};
  struct stat info {};
  if (::fstat(fds[0].get(), &info) != 0) return system_error("look at a load plan", errno);
  DJINN_TRY(const auto bytes, pal::read_memfd(fds[0], static_cast<uint64_t>(info.st_size)));
  return ipc::decode_load_plan(bytes);
}

// Hashing is for later comparisons; whoever computes comes first.
void become_idle() {
  const sched_param none{};
  [[maybe_unused]] const int set = ::sched_setscheduler(0, SCHED_IDLE, &none);
}

}  // namespace

template <typename Command>
Result<Command> Loader::expect(std::vector<Fd>* fds) {
  DJINN_TRY(ipc::Datagram message, channel_.receive());
  DJINN_TRY(ipc::LoaderCommand command, ipc::decode_loader_command(message.bytes));
  Command* const wanted = std::get_if<Command>(&command.body);
  if (wanted == nullptr) {
    return Error{ErrorCode::kProtocolViolation, "A command of djinnd came out of its turn."};
  }
  *fds = std::move(message.fds);
  return std::move(*wanted);
}

void Loader::send(const ipc::LoaderEvent& event, std::span<const int> fds) {
  // A djinnd that is gone ends this process too.
  [[maybe_unused]] const Status sent = channel_.send(ipc::encode(event), fds);
}

Status Loader::run() {
  Status ended = take_files();
  if (ended) ended = plan();
  if (ended) ended = read();
  if (!ended && ended.error().code != ErrorCode::kDisconnected) {
    send({ipc::LoadFailed{ended.error().code, ended.error().message}});
  }
  return ended;
}

Status Loader::take_files() {
  for (bool last = false; !last;) {
    std::vector<Fd> fds;
    DJINN_TRY(const auto command, expect<ipc::TakeFiles>(&fds));
    std::ranges::move(fds, std::back_inserter(files_));
    last = command.last;
  }
  ipc::Identified identified;
  identified.now_ns = static_cast<int64_t>(clock_.wall_ns());
  for (const Fd& file : files_) {
    DJINN_TRY(const load::FileIdentity identity, load::identify(file, clock_));
    sources_.push_back({&file, identity});
    identified.files.push_back(to_message(identity));
  }
  send({std::move(identified)});
  return {};
}

Status Loader::plan() {
  std::vector<Fd> fds;
  DJINN_CHECK(expect<ipc::PlanLoad>(&fds));
  DJINN_TRY(const srg::LoadPlan wanted, read_plan(fds));
  std::vector<load::SafetensorsIndex> indexes;
  for (const load::SourceFile& source : sources_) {
    DJINN_TRY(load::SafetensorsIndex index, load::read_index(source));
    indexes.push_back(std::move(index));
  }
  DJINN_TRY(plan_, load::resolve(wanted, indexes));
  send({ipc::Planned{plan_.manifest.extent_bytes}});
  return {};
}

Status Loader::read() {
  std::vector<Fd> fds;
  DJINN_CHECK(expect<ipc::ReadInto>(&fds));
  const std::vector<uint64_t>& sizes = plan_.manifest.extent_bytes;
  if (fds.size() != sizes.size()) {
    return Error{ErrorCode::kProtocolViolation,
                 "djinnd gave another number of extents than asked."};
  }
  std::vector<pal::Extent> extents;
  for (size_t i = 0; i < fds.size(); ++i) {
    DJINN_TRY(pal::Extent extent,
              pal_.import_extent(std::move(fds[i]), sizes[i], pal::Seals::kSize));
    extents.push_back(std::move(extent));
  }
  DJINN_CHECK(fill(plan_, extents));
  return hash(extents);
}

// Every writable view ends with this function: djinnd seals next.
Status Loader::fill(const load::ReadPlan& plan, const std::vector<pal::Extent>& extents) {
  std::vector<pal::Reservation> memories;
  std::vector<load::ExtentTarget> targets;
  for (const pal::Extent& extent : extents) {
    DJINN_TRY(pal::Reservation memory, pal_.reserve(extent.bytes));
    DJINN_CHECK(pal_.map(memory, 0, extent, 0, extent.bytes, pal::Access::kReadWrite));
    targets.push_back({&extent.fd, {memory.data(), memory.size()}});
    memories.push_back(std::move(memory));
  }
  uint64_t told = 0;
  load::ExecuteOptions options;
  options.clock = &clock_;
  options.progress = [&](uint64_t done, uint64_t) {
    if (done - told >= kProgressStepBytes) {
      told = done;
      send({ipc::Progress{done}});
    }
    return true;
  };
  DJINN_TRY(const load::LoadStats stats, load::execute(plan, sources_, targets, options));
  targets.clear();
  memories.clear();
  const std::vector<std::byte> manifest = ipc::encode(plan.manifest);
  DJINN_TRY(const Fd memfd, pal::make_sealed_memfd("djinn-manifest", manifest));
  const int number = memfd.get();
  send({ipc::Loaded{stats.read_bytes, stats.files_direct_refused}}, std::span(&number, 1));
  return {};
}

Status Loader::hash(const std::vector<pal::Extent>& extents) {
  become_idle();
  std::vector<pal::Mapping> mappings;
  std::vector<std::span<const std::byte>> views;
  for (const pal::Extent& extent : extents) {
    // A private mapping: it does not hinder the seal that djinnd may just be setting.
    DJINN_TRY(pal::Mapping mapping, pal::map_sealed(extent.fd, extent.bytes));
    views.push_back(mapping.bytes());
    mappings.push_back(std::move(mapping));
  }
  DJINN_TRY(load::ModelHasher hasher, load::ModelHasher::make(plan_.manifest, views));
  for (bool more = true; more;) {
    DJINN_TRY(more, hasher.step());
  }
  DJINN_TRY(const load::Digest digest, hasher.finish());
  ipc::Hashed hashed;
  std::ranges::transform(digest, hashed.sha256.begin(),
                         [](std::byte b) { return static_cast<uint8_t>(b); });
  send({hashed});
  return {};
}

}  // namespace djinn::loader
