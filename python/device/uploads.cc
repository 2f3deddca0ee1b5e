// SPDX-License-Identifier: Apache-2.0

#include "python/device/uploads.h"

#include <fmt/format.h>

#include <cstdio>
#include <utility>

#include "python/device/errors.h"
#include "python/device/shadow.h"

namespace djinn::device {
namespace {

// Bytes up to this size are cheaper to send with each run than to keep as a ref.
constexpr size_t kStagedBytesMax = 64 * 1024;

}  // namespace

HostBytes copy_of(std::span<const std::byte> bytes) {
  return std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end());
}

StoragePtr upload(std::span<const std::byte> bytes, at::ScalarType type) {
  StoragePtr storage = storages().make(bytes.size(), type);
  if (bytes.empty()) return storage;
  storage->location = Location::kHost;
  storage->host = copy_of(bytes);
  if (may_have_shadow(type, bytes.size())) storage->shadow = make_shadow(bytes);
  return storage;
}

uint64_t bytes_of(std::span<const StoragePtr> uploads) {
  uint64_t bytes = 0;
  for (const StoragePtr& storage : uploads) bytes += storage->host->size();
  return bytes;
}

bool Uploads::replace(const StoragePtr& storage, at::ScalarType type, HostBytes bytes,
                      bool is_parameter) {
  if (storage->log_uses != 0) return false;
  if (storage->location == Location::kWeight || storage->is_bound) storages().note_move();
  storage->is_bound = false;
  if (storage->location == Location::kRef) {
    take(session_.link().release(std::span(&storage->ref, 1)));
  }
  storage->location = Location::kHost;
  storage->held_bytes.become(0);
  storage->named = nullptr;
  storage->type = type;
  storage->shadow = may_have_shadow(type, storage->bytes) ? make_shadow(*bytes) : c10::Storage();
  storage->host = std::move(bytes);
  storage->is_parameter = is_parameter;
  if (is_parameter) parameters_.push_back(storage);
  return true;
}

void Uploads::put(Storage& storage, HostBytes bytes) {
  take(session_.link().put(storage, std::move(bytes)));
  storage.host = nullptr;
}

void Uploads::put_all(const Log& log, std::span<const size_t> needed) {
  for (const StoragePtr& storage : uploads_of(log, needed)) put(*storage);
}

ipc::InputBinding Uploads::bind(uint32_t number, const StoragePtr& storage,
                                std::vector<client::StagingLease>& staged) {
  session_.refuse_lost(*storage);
  if (storage->location == Location::kRef) return {number, ipc::InputKind::kRef, {}, storage->ref};
  const HostBytes bytes = storage->location == Location::kHost
                              ? storage->host
                              : std::make_shared<const std::vector<std::byte>>(storage->bytes);
  if (bytes->size() <= kStagedBytesMax) {
    staged.push_back(take(session_.link().stage(*bytes)));
    return {number, ipc::InputKind::kStaging, staged.back().range(), {}};
  }
  put(*storage, bytes);
  return {number, ipc::InputKind::kRef, {}, storage->ref};
}

// A run knows the weights of one model, so parameters that are moved beside another model stay
// refs.
void Uploads::seal_parameters(const Log& log) {
  if (parameters_.empty()) return;
  const std::vector<StoragePtr> found = sealable(parameters_, log);
  parameters_.clear();
  std::vector<StoragePtr> others = sealed_.match(found);
  Result<size_t> loaded = 0;
  if (!others.empty() && storages().leases() == 0) {
    loaded = open_sealed(sealed_.each_once(others));
    if (loaded) {
      others = sealed_.match(others);
    } else {  // they are tried again
      for (const StoragePtr& one : others) one->is_parameter = true;
      parameters_.assign(others.begin(), others.end());
    }
  }
  stats_.sealed += found.size() - others.size();
  stats_.shared += found.size() - others.size() - (loaded ? *loaded : 0);
  take(std::move(loaded));
}

// Gives how many of the parameters djinnd did not have before. If there is no room for them, they
// stay here.
Result<size_t> Uploads::open_sealed(const std::vector<StoragePtr>& parameters) {
  const auto file = seal(parameters);
  if (!file) return 0;
  const int number = file->get();
  Link& link = session_.link();
  auto opened = link.client().open_model({"uploaded", std::span(&number, 1)});
  if (!opened) {
    if (opened.error().code == ErrorCode::kCancelled) return std::move(opened).error();
    if (debug_level_ >= 3) fmt::print(stderr, "djinn: not shared: {}\n", opened.error().message);
    return 0;
  }
  link.stats().bytes_up += opened->bytes;
  sealed_.become_weights(parameters,
                         std::make_shared<const Lease>(opened->id.value, opened->bytes));
  return opened->was_resident ? 0 : parameters.size();
}

}  // namespace djinn::device
