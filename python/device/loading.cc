// SPDX-License-Identifier: Apache-2.0

#include "python/device/loading.h"

#include <unordered_map>
#include <unordered_set>

#include "kernel/base/file.h"

namespace djinn::device {
namespace {

using OriginPtr = std::shared_ptr<const Origin>;

class Tracer {
 public:
  explicit Tracer(const Log& log) {
    for (const Entry& entry : log.entries()) note(entry);
  }

  OriginPtr trace(const StoragePtr& storage) {
    auto& known = origins_[storage.get()];
    if (known == nullptr) known = make(storage);
    return known;
  }

 private:
  struct Making {
    const Entry* entry = nullptr;
    size_t product = 0;
    bool copied = false;   // the entry is a copy_ into all of it
    bool used = false;     // by an entry up to now
    bool written = false;  // in another way
  };

  void note(const Entry& entry) {
    for (size_t i = 0; i < entry.products.size(); ++i) {
      if (entry.products[i]) making_[entry.products[i].get()] = {.entry = &entry, .product = i};
    }
    for (const uint32_t w : entry.recipe->written) {
      Making& making = making_[entry.operands[w].storage.get()];
      if (making.entry == nullptr && !making.used && copies_into_all(entry)) {
        making = {.entry = &entry, .copied = true};
      } else {
        making.written = true;
      }
    }
    for (const Operand& operand : entry.operands) making_[operand.storage.get()].used = true;
  }

  // Tells whether the entry fills a new storage by one copy, as conversions and clones do.
  static bool copies_into_all(const Entry& entry) {
    if (entry.recipe->op != "aten::copy_" || entry.operands.size() != 2) return false;
    const Operand& into = entry.operands[0];
    return dense_bytes(into.sizes, into.type) == into.storage->bytes &&
           entry.operands[1].storage != into.storage;
  }

  OriginPtr make(const StoragePtr& storage) {
    auto origin = std::make_shared<Origin>();
    const Making making = making_[storage.get()];
    if (making.written) {
      origin->kind = Origin::Kind::kWritten;
    } else if (making.entry != nullptr) {
      fill(*origin, making);
    } else {
      fill(*origin, *storage);
    }
    return origin;
  }

  void fill(Origin& origin, const Making& making) {
    origin.kind = Origin::Kind::kOperator;
    origin.recipe = making.entry->recipe;
    if (making.copied) return fill_copied(origin, *making.entry);
    origin.product = making.entry->recipe->products[making.product];
    for (const Operand& operand : making.entry->operands) {
      origin.operands.emplace_back(trace(operand.storage), operand);
    }
  }

  void fill_copied(Origin& origin, const Entry& copy) {
    const Operand& into = copy.operands[0];
    origin.product.type = into.type;
    origin.product.sizes = into.sizes;
    origin.product.strides = into.strides;
    origin.operands.emplace_back(std::make_shared<Origin>(), into);  // zero before
    origin.operands.emplace_back(trace(copy.operands[1].storage), copy.operands[1]);
  }

  static void fill(Origin& origin, const Storage& storage) {
    origin.named = storage.named;
    switch (storage.location) {
      case Location::kSource:
        origin.kind = Origin::Kind::kSource;
        break;
      case Location::kWeight:
        origin.kind = Origin::Kind::kWeight;
        break;
      case Location::kHost:
        origin.kind = Origin::Kind::kHost;
        break;
      case Location::kRef:
        origin.kind = Origin::Kind::kRef;
        break;
      case Location::kInput:
      case Location::kSequence:
      case Location::kZero:
      case Location::kLogged:
      case Location::kLost:
        origin.kind = Origin::Kind::kZero;
        break;
    }
  }

  std::unordered_map<const Storage*, Making> making_;
  std::unordered_map<const Storage*, OriginPtr> origins_;
};

Result<std::vector<Fd>> open_files(const std::vector<std::string>& paths) {
  std::vector<Fd> files;
  for (const std::string& path : paths) {
    DJINN_TRY(Fd file, open_regular_file(path));
    files.push_back(std::move(file));
  }
  return files;
}

}  // namespace

at::Tensor make_source(uint64_t file, std::string name, at::ScalarType type,
                       at::IntArrayRef sizes) {
  StoragePtr storage = storages().make(dense_bytes(sizes, type), type);
  storage->location = Location::kSource;
  storage->named = std::make_shared<const NamedTensor>(NamedTensor{file, std::move(name)});
  return dense_tensor(storage, type, sizes);
}

std::vector<OriginPtr> trace(const std::vector<at::Tensor>& tensors) {
  std::vector<StoragePtr> all;
  for (const at::Tensor& tensor : tensors) all.push_back(storage_of(tensor));
  return Device::get().with_log([&](Log& log) {
    Tracer tracer(log);
    std::vector<OriginPtr> origins;
    for (const StoragePtr& storage : all) origins.push_back(tracer.trace(storage));
    return origins;
  });
}

std::vector<NamedTensor> pending_sources() {
  return Device::get().with_log([](Log& log) {
    std::unordered_set<const Storage*> seen;
    std::vector<NamedTensor> found;
    for (const size_t i : log.needed()) {
      for (const Operand& operand : log.entries()[i].operands) {
        const Storage& storage = *operand.storage;
        if (storage.location == Location::kSource && seen.insert(&storage).second) {
          found.push_back(*storage.named);
        }
      }
    }
    return found;
  });
}

Result<client::OpenedModel> open_model(const std::string& label,
                                       const std::vector<std::string>& paths,
                                       const srg::LoadPlan& plan,
                                       std::optional<uint64_t> keep_alive_ms) {
  return Device::get().with_link([&](Link& link) -> Result<client::OpenedModel> {
    DJINN_TRY(const std::vector<Fd> files, open_files(paths));
    std::vector<int> numbers;
    for (const Fd& file : files) numbers.push_back(file.get());
    const bool says_nothing = plan == srg::LoadPlan{};
    return link.client().open_model({label, numbers, paths}, says_nothing ? nullptr : &plan,
                                    {false, keep_alive_ms});
  });
}

void bind(const at::Tensor& tensor, std::shared_ptr<const Lease> lease, std::string name) {
  const StoragePtr storage = storage_of(tensor);
  auto named = std::make_shared<const NamedTensor>(
      NamedTensor{lease->model(), std::move(name), {}, std::move(lease)});
  const at::ScalarType type = tensor.scalar_type();
  Device::get().with_log([&](Log& log) {
    log.forget_product(storage);
    storage->location = Location::kWeight;
    storage->type = type;
    storage->named = std::move(named);
    storage->host = nullptr;
  });
}

void bind_source(uint64_t file, std::string_view tensor, std::shared_ptr<const Lease> lease,
                 std::string name) {
  auto named = std::make_shared<const NamedTensor>(
      NamedTensor{lease->model(), std::move(name), {}, std::move(lease)});
  Device::get().with_log([&](Log& log) {
    for (const Entry& entry : log.entries()) {
      for (const Operand& operand : entry.operands) {
        Storage& storage = *operand.storage;
        if (storage.location != Location::kSource) continue;
        if (storage.named->owner != file || storage.named->name != tensor) continue;
        storage.location = Location::kWeight;
        storage.named = named;
      }
    }
  });
}

}  // namespace djinn::device
