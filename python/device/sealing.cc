// SPDX-License-Identifier: Apache-2.0

#include "python/device/sealing.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/python_variable.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <set>
#include <unordered_set>

#include "kernel/base/bytes.h"
#include "kernel/pal/memfd.h"

namespace djinn::device {
namespace {

constexpr uint64_t kAlignment = 64;

// Gives safetensors' name of the type; null for a type that no parameter has.
const char* name_in_file(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "F32";
    case at::kHalf:
      return "F16";
    case at::kBFloat16:
      return "BF16";
    case at::kDouble:
      return "F64";
    default:
      return nullptr;
  }
}

std::string header_of(std::span<const StoragePtr> parameters) {
  std::string header = "{";
  uint64_t at = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Storage& one = *parameters[i];
    header += fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                          i == 0 ? "" : ",", i, name_in_file(one.type),
                          one.bytes / c10::elementSize(one.type), at, at + one.bytes);
    at += one.bytes;
  }
  header += "}";
  const uint64_t length = sizeof(uint64_t) + header.size();
  header.append((kAlignment - length % kAlignment) % kAlignment, ' ');
  return header;
}

std::byte* append(std::byte* to, std::span<const std::byte> bytes) {
  copy_bytes(bytes, std::span(to, bytes.size()));
  return to + bytes.size();
}

// Writes the length of the header, the header, and the tensors.
void write(std::byte* to, const std::string& header, std::span<const StoragePtr> parameters) {
  const uint64_t length = header.size();
  to = append(to, std::as_bytes(std::span(&length, 1)));
  to = append(to, std::as_bytes(std::span(header)));
  for (const StoragePtr& one : parameters) to = append(to, *one->host);
}

void become(Storage& parameter, std::shared_ptr<const NamedTensor> weight) {
  parameter.location = Location::kWeight;
  parameter.host = nullptr;
  parameter.named = std::move(weight);
}

std::unordered_set<const Storage*> written_in(const Log& log) {
  std::unordered_set<const Storage*> written;
  for (const Entry& entry : log.entries()) {
    for (const uint32_t w : entry.recipe->written) written.insert(entry.operands[w].storage.get());
  }
  return written;
}

}  // namespace

bool is_worth_sealing(const at::Tensor& source) {
  if (source.nbytes() < kSealedBytesMin || !Py_IsInitialized()) return false;
  const pybind11::gil_scoped_acquire gil;
  PyObject* const object = THPVariable_Wrap(source);
  const bool is_parameter =
      object != nullptr &&
      PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(ParameterClass));
  Py_XDECREF(object);
  return is_parameter;
}

std::vector<StoragePtr> sealable(std::span<const std::weak_ptr<Storage>> uploads, const Log& log) {
  const auto written = written_in(log);
  std::vector<StoragePtr> found;
  for (const std::weak_ptr<Storage>& upload : uploads) {
    StoragePtr storage = upload.lock();
    if (!storage || storage->location != Location::kHost || !storage->is_parameter) continue;
    if (storage->bytes < kSealedBytesMin || name_in_file(storage->type) == nullptr) continue;
    storage->is_parameter = false;  // once, however often it was moved
    if (!written.contains(storage.get())) found.push_back(std::move(storage));
  }
  return found;
}

Result<Fd> seal(std::span<const StoragePtr> parameters) {
  const std::string header = header_of(parameters);
  uint64_t bytes = sizeof(uint64_t) + header.size();
  for (const StoragePtr& one : parameters) bytes += one->bytes;
  DJINN_TRY(Fd file, pal::make_memfd("djinn-parameters", bytes));
  {
    DJINN_TRY(const pal::Mapping mapped, pal::map_shared(file, bytes, pal::Access::kReadWrite));
    write(mapped.data(), header, parameters);
  }
  DJINN_CHECK(pal::seal_content(file));
  return file;
}

SealedContents::Key SealedContents::key_of(const Storage& parameter) {
  const XXH128_hash_t hash = XXH3_128bits_withSeed(parameter.host->data(), parameter.host->size(),
                                                   static_cast<uint64_t>(parameter.type));
  return {hash.high64, hash.low64};
}

std::vector<StoragePtr> SealedContents::match(std::span<const StoragePtr> parameters) {
  std::erase_if(weights_, [](const auto& weight) { return weight.second.expired(); });
  std::vector<StoragePtr> others;
  for (const StoragePtr& one : parameters) {
    if (one->location != Location::kHost) continue;
    const auto known = weights_.find(key_of(*one));
    if (known == weights_.end()) {
      others.push_back(one);
    } else {
      become(*one, known->second.lock());
    }
  }
  return others;
}

std::vector<StoragePtr> SealedContents::each_once(std::span<const StoragePtr> parameters) {
  std::vector<StoragePtr> found;
  std::set<Key> seen;
  for (const StoragePtr& one : parameters) {
    if (seen.insert(key_of(*one)).second) found.push_back(one);
  }
  return found;
}

void SealedContents::become_weights(std::span<const StoragePtr> parameters,
                                    const std::shared_ptr<const Lease>& lease) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    auto named = std::make_shared<const NamedTensor>(
        NamedTensor{lease->model(), std::to_string(i), {}, lease});
    weights_[key_of(*parameters[i])] = named;
    become(*parameters[i], std::move(named));
  }
}

}  // namespace djinn::device
