// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_cuda/runtime/world.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <iterator>

#include "functions.h"

namespace djinn::fake_runtime {
namespace {

constexpr int kPoison = 0xA5;

std::string_view environment(const char* name) {
  const char* const text = ::getenv(name);
  return text == nullptr ? "" : text;
}

bool is_of_runtime(std::string_view name) {
  return std::ranges::find(kFunctions, name) != std::end(kFunctions);
}

void flush_at_exit() {
  world().flush();
}

}  // namespace

World::World()
    : options(fake_cuda::read_options(environment("DJINN_FAKE_RUNTIME"), is_of_runtime)) {
  const std::string path(environment("DJINN_FAKE_RUNTIME_LOG"));
  if (path.empty()) return;
  log_ = std::fopen(path.c_str(), "we");
  if (log_ == nullptr) ::abort();
  std::atexit(flush_at_exit);
}

void* World::allocate(Place place, size_t bytes) {
  if (place == Place::kDevice && bytes > bytes_left()) return nullptr;
  void* const at =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return nullptr;
  ::memset(at, kPoison, bytes);
  blocks_[reinterpret_cast<uintptr_t>(at)] = {place, ++blocks_made_[place], bytes};
  if (place == Place::kDevice) allocated_ += bytes;
  return at;
}

bool World::release(Place place, void* address) {
  const auto found = blocks_.find(reinterpret_cast<uintptr_t>(address));
  if (found == blocks_.end() || found->second.place != place) return false;
  ::munmap(address, found->second.bytes);
  if (place == Place::kDevice) allocated_ -= found->second.bytes;
  blocks_.erase(found);
  return true;
}

const Block* World::find_block(const void* address, size_t& offset) const {
  const auto at = reinterpret_cast<uintptr_t>(address);
  const auto after = blocks_.upper_bound(at);
  if (after == blocks_.begin()) return nullptr;
  const auto& [begin, block] = *std::prev(after);
  offset = at - begin;
  return offset < block.bytes ? &block : nullptr;
}

const Thing* World::thing(const void* handle) const {
  const auto found = things_.find(handle);
  return found == things_.end() ? nullptr : found->second.get();
}

const fake_cuda::Fault* World::count(std::string_view function) {
  if (options.faults.empty()) return nullptr;
  const std::string_view name = fake_cuda::plain_name(function);
  const uint64_t of_all = ++calls_, of_its_own = ++calls_of_[std::string(name)];
  for (const fake_cuda::Fault& fault : options.faults) {
    if (fault.function == "*" && fault.number == of_all) return &fault;
    if (fault.function == name && fault.number == of_its_own) return &fault;
  }
  return nullptr;
}

void World::write(std::string_view line) {
  if (log_ != nullptr) std::fwrite(line.data(), 1, line.size(), log_);
}

void World::flush() {
  if (log_ != nullptr) std::fflush(log_);
}

World& world() {
  static World* const it = new World;
  return *it;
}

}  // namespace djinn::fake_runtime
