// SPDX-License-Identifier: Apache-2.0

#include "daemon/loader/one_load.h"

#include <sched.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "daemon/store/blob_disk.h"
#include "ipc/codec/control_codec.h"
#include "ipc/codec/srg_codec.h"
#include "ipc/file_number.h"
#include "ipc/limits.h"
#include "kernel/load/hash.h"
#include "kernel/pal/memfd.h"
#include "kernel/srg/load_plan.h"

namespace djinn::loader {
namespace {

// Progress is told after this many bytes, or after this time, so that a slow disk is not taken for
// a loader that hangs.
constexpr uint64_t kProgressBytes = uint64_t{64} << 20;
constexpr uint64_t kProgressNs = 1'000'000'000;

std::array<uint8_t, 32> to_message(const load::Digest& digest) {
  std::array<uint8_t, 32> out{};
  std::ranges::transform(digest, out.begin(), std::to_integer<uint8_t>);
  return out;
}

ipc::FileIdentity to_message(const load::FileIdentity& f) {
  ipc::FileIdentity out{f.device_major, f.device_minor, f.inode,          f.bytes,
                        f.mtime_ns,     f.ctime_ns,     f.on_block_device};
  if (f.content) out.content = to_message(*f.content);
  out.unwritten = f.unwritten;
  return out;
}

Result<srg::LoadPlan> read_plan(const Fd& memfd) {
  struct stat info {};
  if (::fstat(memfd.get(), &info) != 0) return system_error("look at a load plan", errno);
  const auto bytes = static_cast<uint64_t>(info.st_size);
  if (bytes > limits::kLoadPlanBytes) {
    return Error{ErrorCode::kLimitExceeded, "The load plan is too large."};
  }
  DJINN_TRY(const auto content, pal::read_memfd(memfd, bytes));
  return ipc::decode_load_plan(content);
}

bool is_memfd_of(const Fd& memfd, std::span<const std::byte> wanted) {
  struct stat info {};
  if (::fstat(memfd.get(), &info) != 0 || static_cast<uint64_t>(info.st_size) != wanted.size()) {
    return false;
  }
  const auto content = pal::read_memfd(memfd, wanted.size());
  return content.ok() && std::ranges::equal(*content, wanted);
}

// If `index` equals `count`, the error is not about one file.
Error about_file(size_t index, size_t count, const Error& error) {
  if (index == count) return error;
  return {error.code, ipc::with_file_number(index, count, error.message)};
}

Error out_of_turn() {
  return {ErrorCode::kInternal, "A command came out of its turn."};
}

// Hashing must not take cores from others. If the priority may not be changed, it stays.
void step_back() {
  const sched_param none{};
  [[maybe_unused]] const int failed = ::sched_setscheduler(0, SCHED_IDLE, &none);
}

}  // namespace

Status OneLoad::send(const ipc::LoaderEvent& event, std::span<const int> fds) {
  return channel_.send(ipc::encode(event), fds);
}

Result<OneLoad::Order> OneLoad::receive() {
  DJINN_TRY(ipc::Datagram message, channel_.receive());
  DJINN_TRY(ipc::LoaderCommand command, ipc::decode_loader_command(message.bytes));
  return Order{std::move(command), std::move(message.fds)};
}

template <typename Command>
Result<std::pair<Command, std::vector<Fd>>> OneLoad::expect() {
  DJINN_TRY(Order order, receive());
  auto* const expected = std::get_if<Command>(&order.command.body);
  if (expected == nullptr) return out_of_turn();
  return std::pair{std::move(*expected), std::move(order.fds)};
}

Status OneLoad::run() {
  Status done = work();
  if (!done && done.error().code != ErrorCode::kDisconnected) {
    DJINN_CHECK(send({ipc::LoadFailed{done.error().code, done.error().message}}));
  }
  return done;
}

Status OneLoad::work() {
  for (;;) {
    DJINN_CHECK(take_files());
    DJINN_CHECK(identify());
    DJINN_TRY(const Order order, receive());
    if (std::holds_alternative<ipc::TakeIn>(order.command.body)) return take_in(order);
    if (!std::holds_alternative<ipc::ReleaseFiles>(order.command.body)) {
      DJINN_CHECK(plan(order));
      return read_or_compare();
    }
    // Nothing of the files was read, so the next load finds this loader as good as new.
    forget_files();
    DJINN_CHECK(send({ready_}));
  }
}

// Until djinnd wants no more.
Status OneLoad::take_in(const Order& order) {
  const auto* const first = std::get_if<ipc::TakeIn>(&order.command.body);
  if (first == nullptr || order.fds.size() != 1) return out_of_turn();
  DJINN_CHECK(copy(*first, order.fds[0]));
  for (;;) {
    DJINN_TRY(const auto next, expect<ipc::TakeIn>());
    if (next.second.size() != 1) return out_of_turn();
    DJINN_CHECK(copy(next.first, next.second[0]));
  }
}

Status OneLoad::copy(const ipc::TakeIn& command, const Fd& to) {
  if (command.file >= sources_.size()) return out_of_turn();
  const auto digest = [&]() -> Result<load::Digest> {
    store::BlobDisk disk;
    const load::SourceFile& source = sources_[command.file];
    uint64_t header_bytes_left = load::kHeadersBytesMax;
    if (command.is_weights) {
      DJINN_TRY([[maybe_unused]] const auto index, load::read_index(source, header_bytes_left));
    }
    return store::take_in(disk, *source.fd, to, command.bytes);
  }();
  if (!digest) return about_file(command.file, sources_.size(), digest.error());
  return send({ipc::TakenIn{to_message(*digest)}});
}

// Closing a file may wait for the file system, and no signal ends that.
void OneLoad::forget_files() {
  sources_.clear();
  files_.clear();
}

Status OneLoad::take_files() {
  for (bool last = false; !last;) {
    DJINN_TRY(auto taken, expect<ipc::TakeFiles>());
    for (Fd& fd : taken.second) files_.push_back(std::move(fd));
    last = taken.first.last;
    if (files_.size() > limits::kModelFiles) {
      return Error{ErrorCode::kLimitExceeded, "The model has too many files."};
    }
  }
  return {};
}

Status OneLoad::identify() {
  ipc::Identified identified;
  identified.now_ns = static_cast<int64_t>(clock_.wall_ns());
  for (const Fd& fd : files_) {
    auto looked_at = load::identify(fd, clock_);
    if (!looked_at) return about_file(sources_.size(), files_.size(), looked_at.error());
    load::FileIdentity& identity = *looked_at;
    DJINN_TRY(identity.content, load::content_of(fd, identity.bytes));
    // This comes after the look at the file's times, so that a later write changes them.
    identity.unwritten = !identity.content && load::is_unwritten(fd, identity);
    sources_.push_back({&fd, identity});
    identified.files.push_back(to_message(identity));
  }
  return send({std::move(identified)});
}

Status OneLoad::plan(const Order& order) {
  const auto* const command = std::get_if<ipc::PlanLoad>(&order.command.body);
  if (command == nullptr) return out_of_turn();
  srg::LoadPlan plan;
  if (command->has_plan) {
    if (order.fds.size() != 1) return Error{ErrorCode::kMalformed, "The plan is missing."};
    DJINN_TRY(plan, read_plan(order.fds[0]));
  }
  std::vector<load::SafetensorsIndex> indexes;
  uint64_t header_bytes_left = load::kHeadersBytesMax;
  for (const load::SourceFile& file : sources_) {
    auto index = load::read_index(file, header_bytes_left);
    if (!index) return about_file(indexes.size(), sources_.size(), index.error());
    header_bytes_left -= index->header_bytes;
    indexes.push_back(*std::move(index));
  }
  DJINN_TRY(plan_, load::resolve(plan, indexes));
  return send({ipc::Planned{plan_.manifest.extent_bytes}});
}

Status OneLoad::read_or_compare() {
  DJINN_TRY(Order order, receive());
  if (const auto* command = std::get_if<ipc::CompareWith>(&order.command.body)) {
    return compare(*command, std::move(order.fds));
  }
  const auto* const command = std::get_if<ipc::ReadInto>(&order.command.body);
  if (command == nullptr) return out_of_turn();
  return read(*command, order.fds);
}

Status OneLoad::read(const ipc::ReadInto& command, const std::vector<Fd>& extents) {
  DJINN_CHECK(execute(extents));
  if (!command.hash_at_once) step_back();
  return hash(extents);
}

Status OneLoad::compare(const ipc::CompareWith& command, std::vector<Fd> fds) {
  // The memory is let go before the answer, because files of a slow file system may keep this
  // process from ending for long.
  DJINN_TRY(const bool same, is_model(command, fds));
  fds.clear();
  return send({ipc::Compared{same}});
}

Result<bool> OneLoad::is_model(const ipc::CompareWith& command, const std::vector<Fd>& fds) {
  const std::vector<uint64_t>& sizes = plan_.manifest.extent_bytes;
  if (fds.size() != sizes.size() + 1) return out_of_turn();
  const std::vector<std::byte> manifest = ipc::encode(plan_.manifest);
  bool same = is_memfd_of(fds[0], manifest);
  std::vector<pal::Mapping> mappings;
  std::vector<std::span<const std::byte>> extents;
  for (size_t i = 0; same && i < sizes.size(); ++i) {
    DJINN_TRY(pal::Mapping mapped, pal::map_sealed(fds[i + 1], sizes[i]));
    extents.push_back(mapped.bytes());
    mappings.push_back(std::move(mapped));
  }
  if (same) {
    load::ExecuteOptions options;
    options.clock = &clock_;
    std::atomic<size_t> bad_file = sources_.size();
    options.bad_file = &bad_file;
    const auto compared = load::compare(plan_, sources_, extents, options, command.seed);
    if (!compared) return about_file(bad_file, sources_.size(), compared.error());
    same = *compared;
  }
  return same;
}

Status OneLoad::execute(const std::vector<Fd>& extents) {
  const std::vector<uint64_t>& sizes = plan_.manifest.extent_bytes;
  if (extents.size() != sizes.size()) {
    return Error{ErrorCode::kInternal, "There are not as many extents as were planned."};
  }
  std::vector<pal::Mapping> mappings;
  std::vector<load::ExtentTarget> targets;
  for (size_t i = 0; i < sizes.size(); ++i) {
    DJINN_CHECK(pal::verify_memfd(extents[i], sizes[i], pal::Seals::kSize));
    DJINN_TRY(pal::Mapping mapped, pal::map_shared(extents[i], sizes[i], pal::Access::kReadWrite));
    targets.push_back({&extents[i], mapped.bytes()});
    mappings.push_back(std::move(mapped));
  }
  uint64_t told = 0;
  uint64_t told_ns = clock_.monotonic_ns();
  load::ExecuteOptions options;
  options.clock = &clock_;
  options.progress = [&](uint64_t done, uint64_t) {
    const uint64_t now_ns = clock_.monotonic_ns();
    if (done - told < kProgressBytes && now_ns - told_ns < kProgressNs) return true;
    told = done;
    told_ns = now_ns;
    return send({ipc::Progress{done}}).ok();
  };
  std::atomic<size_t> bad_file = sources_.size();
  options.bad_file = &bad_file;
  const auto stats = load::execute(plan_, sources_, targets, options);
  if (!stats) return about_file(bad_file, sources_.size(), stats.error());
  uint64_t huge_bytes = 0;
  for (const pal::Mapping& mapped : mappings) {
    huge_bytes += own_mappings_.huge_bytes(mapped.bytes());
  }
  mappings.clear();  // djinnd cannot seal while there is a writable view
  forget_files();    // who hashes without them ends as soon as it is told to
  DJINN_TRY(const Fd manifest,
            pal::make_sealed_memfd("djinn-manifest", ipc::encode(plan_.manifest)));
  const int fds[] = {manifest.get()};
  return send({ipc::Loaded{stats->read_bytes, stats->files_direct_refused, huge_bytes}}, fds);
}

// A private, read-only mapping does not hinder a seal, and shows what the extents hold.
Status OneLoad::hash(const std::vector<Fd>& extents) {
  std::vector<pal::Mapping> mappings;
  std::vector<std::span<const std::byte>> bytes;
  for (size_t i = 0; i < extents.size(); ++i) {
    DJINN_TRY(pal::Mapping mapped, pal::map_sealed(extents[i], plan_.manifest.extent_bytes[i]));
    bytes.push_back(mapped.bytes());
    mappings.push_back(std::move(mapped));
  }
  DJINN_TRY(load::ModelHasher hasher, load::ModelHasher::make(plan_.manifest, bytes));
  for (bool more = true; more;) {
    DJINN_TRY(more, hasher.step());
  }
  DJINN_TRY(const load::Digest digest, hasher.finish());
  return send({ipc::Hashed{to_message(digest)}});
}

}  // namespace djinn::loader
