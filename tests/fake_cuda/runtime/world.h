// SPDX-License-Identifier: Apache-2.0

// World: what the fake runtime knows of its process.
//
//   block   memory of the device or pinned memory, one allocation; both are the host's
//   mapped  what the driver has mapped: reservations of addresses are what has numbers there
//   thing   what a handle is of: a stream, an event, a graph, a handle of cuBLAS, a descriptor
//   kernel  a function that PyTorch's libraries have registered, known by the address of its stub
//
// A block or a thing is named by its kind and by the number of those before it, so that a log does
// not depend on where the system puts memory. invariant: a name is never given twice.
#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "tests/fake_cuda/options.h"

namespace djinn::fake_runtime {

enum class Kind { kStream, kEvent, kGraph, kGraphExec, kBlas, kDescriptor };

class Thing {
 public:
  explicit Thing(Kind kind) : kind_(kind) {}
  Thing(const Thing&) = delete;
  Thing& operator=(const Thing&) = delete;
  virtual ~Thing() = default;
  [[nodiscard]] Kind kind() const { return kind_; }
  [[nodiscard]] virtual std::string text() const = 0;

 private:
  Kind kind_;
};

enum class Place { kDevice, kPinned };

struct Block {
  Place place = Place::kDevice;
  uint64_t number = 0;
  size_t bytes = 0;
};

// Of the driver's, at an address.
struct Mapped {
  uint64_t reservation = 0;
  uint64_t offset = 0;
};
// Nothing where the driver has nothing mapped, or is not there.
[[nodiscard]] std::optional<Mapped> find_mapped(const void* address);

class World {
 public:
  World();

  // Null if there is no memory for it.
  void* allocate(Place place, size_t bytes);
  bool release(Place place, void* address);
  // Null if the address is in none; else `offset` is the address's in the block.
  const Block* find_block(const void* address, size_t& offset) const;
  [[nodiscard]] size_t bytes_left() const { return options.memory_bytes - allocated_; }

  template <typename T, typename... Arguments>
  T* make(Arguments... arguments) {
    auto thing = std::make_unique<T>(++made_[T::kKind], arguments...);
    T* const at = thing.get();
    things_.emplace(at, std::move(thing));
    return at;
  }
  template <typename T>
  T* find(const void* handle) {
    const auto found = things_.find(handle);
    const bool is_one = found != things_.end() && found->second->kind() == T::kKind;
    return is_one ? static_cast<T*>(found->second.get()) : nullptr;
  }
  template <typename T>
  bool drop(const void* handle) {
    return find<T>(handle) != nullptr && things_.erase(handle) == 1;
  }
  template <typename T, typename Work>
  void for_each(Work work) {
    for (auto& [at, thing] : things_)
      if (thing->kind() == T::kKind) work(static_cast<T&>(*thing));
  }
  [[nodiscard]] const Thing* thing(const void* handle) const;

  // Counts a call. Gives the fault that is planted there, or null.
  const fake_cuda::Fault* count(std::string_view function);
  void write(std::string_view line);
  void flush();

  const fake_cuda::Options options;
  std::recursive_mutex mutex;
  fake_cuda::Code fate = fake_cuda::Code::kSuccess;
  std::unordered_map<const void*, const char*> kernels;  // their mangled names
  std::unordered_map<const void*, size_t> variables;     // their sizes

 private:
  std::FILE* log_ = nullptr;
  size_t allocated_ = 0;
  std::map<uintptr_t, Block> blocks_;
  std::map<Place, uint64_t> blocks_made_;
  std::map<const void*, std::unique_ptr<Thing>> things_;
  std::map<Kind, uint64_t> made_;
  uint64_t calls_ = 0;
  std::unordered_map<std::string, uint64_t> calls_of_;
};

// It is never destroyed: libraries that call us end after main().
World& world();

}  // namespace djinn::fake_runtime
