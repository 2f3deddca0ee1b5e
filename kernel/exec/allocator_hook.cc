// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/allocator_hook.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

#include "kernel/base/alignment.h"
#include "kernel/base/assert.h"
#include "kernel/base/checked.h"
#include "kernel/base/size_text.h"
#include "kernel/exec/torch_headers.h"

namespace djinn::exec {
namespace {

// Of blocks of malloc: what LibTorch gives its own.
constexpr size_t kHeapAlignment = 64;

thread_local Sink* current_sink = nullptr;
thread_local Sink* current_device_sink = nullptr;
thread_local Heap* current_heap = nullptr;
DeviceMemory* device_memory = nullptr;

Sink*& sink_of(Where where) {
  return where == Where::kHost ? current_sink : current_device_sink;
}

// These are the ranges of all slabs. The deleter may run on any thread, so the entries are atomic;
// an entry changes only while nothing lives in its slab.
struct SlabRange {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};
};
std::array<SlabRange, 64> slab_ranges;

bool is_in_a_slab(const void* memory) {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  return std::any_of(slab_ranges.begin(), slab_ranges.end(), [address](const SlabRange& range) {
    return address >= range.begin.load(std::memory_order_acquire) &&
           address < range.end.load(std::memory_order_acquire);
  });
}

uint64_t rounded(uint64_t bytes, uint64_t alignment) {
  return (bytes + alignment - 1) & ~(alignment - 1);
}
// Gives the bytes that an allocation takes in a slab; the planner rounds alike.
uint64_t in_slab(uint64_t bytes) {
  return rounded(bytes, kTensorAlignment);
}
uint64_t in_heap(uint64_t bytes) {
  return rounded(bytes, kHeapAlignment);
}
// Of the host blocks are malloc's.
uint64_t in_heap(uint64_t bytes, const DeviceMemory* memory) {
  return memory == nullptr ? in_heap(bytes) : rounded(bytes, kTensorAlignment);
}

// Stands before each block of malloc and keeps how much of it counts as heap: the deleter is told
// no size.
struct alignas(kHeapAlignment) BlockHead {
  uint64_t heap_bytes;
};
std::atomic<uint64_t> heap_live_bytes{0};

enum class Account { kNone, kHeap };

void* from_malloc(size_t bytes, Account account, Content content) {
  if (bytes == 0) return nullptr;
  void* block = nullptr;
  if (bytes > SIZE_MAX / 2 ||
      ::posix_memalign(&block, kHeapAlignment, sizeof(BlockHead) + bytes) != 0) {
    throw std::bad_alloc();
  }
  auto* const head = new (block) BlockHead{account == Account::kHeap ? in_heap(bytes) : 0};
  if (content == Content::kZeros) std::memset(head + 1, 0, bytes);
  heap_live_bytes.fetch_add(head->heap_bytes, std::memory_order_relaxed);
  return head + 1;
}

void to_malloc(void* memory) {
  auto* const head = static_cast<BlockHead*>(memory) - 1;
  heap_live_bytes.fetch_sub(head->heap_bytes, std::memory_order_relaxed);
  ::free(head);
}

class HookedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = current_sink != nullptr ? current_sink->allocate(bytes)
                                           : from_malloc(bytes, Account::kNone, Content::kZeros);
    return {memory, memory, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

HookedAllocator& hooked_allocator() {
  // A storage remembers its allocator, so it must outlive them all.
  static auto* const allocator = new HookedAllocator;
  return *allocator;
}

}  // namespace

Error over_limit(uint64_t bytes, uint64_t bytes_max) {
  return {ErrorCode::kQuotaExceeded,
          fmt::format("The run needs {} for what it computes, and its session's quota is {}. Give "
                      "it less at once, or ask the administrator for a larger "
                      "memory.session_quota, if djinnd has more memory than that.",
                      size_text(bytes), size_text(bytes_max))};
}

void release(void* memory) {
  if (memory == nullptr) return;
  if (current_sink != nullptr) current_sink->released(memory);
  if (!is_in_a_slab(memory)) to_malloc(memory);
}

Outcome<void> Heap::allow(uint64_t bytes) {
  const uint64_t own_bytes = own_of(bytes);
  most_bytes_ = std::max(most_bytes_, own_bytes);
  if (own_bytes > bytes_max_) return over_limit(own_bytes, bytes_max_);
  return owner_.allow(bytes);
}

void* Heap::allocate(size_t bytes, Content content) {
  if (bytes == 0) return nullptr;
  used_ = true;
  const uint64_t total = live_bytes_there() + held_bytes_ + in_heap(bytes, memory_);
  if (Outcome<void> allowed = allow(total); !allowed) {
    refusal_ = std::move(allowed).why_not();
    throw std::bad_alloc();
  }
  if (memory_ != nullptr) return allocate_there(bytes, content);
  return from_malloc(bytes, Account::kHeap, content);
}

void* Heap::allocate_there(size_t bytes, Content content) {
  Outcome<void*> block = memory_->allocate(bytes);
  if (!block) {
    refusal_ = std::move(block).why_not();
    throw std::bad_alloc();
  }
  if (content == Content::kZeros) memory_->zero(*block, bytes);
  return *block;
}

HeapDeleter Heap::deleter() const {
  constexpr auto kOfHost = [](DeviceAddress memory) { release(memory.on_host()); };
  constexpr auto kOfDevice = [](DeviceAddress memory) { release_on_device(memory.on_host()); };
  return memory_ == nullptr ? HeapDeleter{kOfHost} : HeapDeleter{kOfDevice};
}

bool Heap::hold(uint64_t bytes) {
  used_ = true;
  const auto total = checked_add(live_bytes_there() + held_bytes_, bytes);
  if (Outcome<void> allowed = allow(total.value_or(UINT64_MAX)); !allowed) {
    refusal_ = std::move(allowed).why_not();
    return false;
  }
  held_bytes_ += bytes;
  return true;
}

void Heap::unhold(uint64_t bytes) {
  DJINN_ASSERT(bytes <= held_bytes_);
  held_bytes_ -= bytes;
}

ScopedHeap::ScopedHeap(Heap& heap) : former_(current_heap) {
  current_heap = &heap;
}

ScopedHeap::ScopedHeap() : former_(current_heap) {
  current_heap = nullptr;
}

ScopedHeap::~ScopedHeap() {
  current_heap = former_;
}

HeldBytes::HeldBytes(uint64_t bytes) {
  if (bytes <= kUncounted || current_heap == nullptr) return;
  if (!current_heap->hold(bytes)) throw std::bad_alloc();
  heap_ = current_heap;
  bytes_ = bytes;
}

HeldBytes::~HeldBytes() {
  if (heap_ != nullptr) heap_->unhold(bytes_);
}

void Heap::count_anew() {
  prepared_at_bytes_ = own_of(live_bytes_there());
  most_bytes_ = 0;
}

std::optional<Pending> Heap::prepare(uint64_t bytes) {
  DJINN_ASSERT(held_bytes_ == 0);
  const uint64_t live = live_bytes_there();
  count_anew();
  const auto own = checked_add(prepared_at_bytes_, bytes);
  const uint64_t likely = std::min(own.value_or(UINT64_MAX), bytes_max_);
  return owner_.prepare(checked_add(likely, live - prepared_at_bytes_).value_or(UINT64_MAX));
}

void Heap::settle() {
  DJINN_ASSERT(held_bytes_ == 0);
  used_ = false;
  owner_.settle(live_bytes_there());
}

void Heap::trim() {
  settle();
  owner_.trim(live_bytes_there());
}

uint64_t Heap::live_bytes() {
  return heap_live_bytes.load(std::memory_order_relaxed);
}

void install_allocator() {
  c10::SetCPUAllocator(&hooked_allocator(), 255);
}

bool is_allocator_installed() {
  return c10::GetCPUAllocator() == &hooked_allocator();
}

void install_device_memory(DeviceMemory& memory) {
  DJINN_ASSERT(device_memory == nullptr);
  device_memory = &memory;
}

void remove_device_memory() {
  device_memory = nullptr;
}

bool is_device_memory_installed() {
  return device_memory != nullptr;
}

void* allocate_on_device(size_t bytes) {
  if (current_device_sink != nullptr) return current_device_sink->allocate(bytes);
  if (bytes == 0) return nullptr;
  Outcome<void*> block = device_memory->allocate(bytes);
  TORCH_CHECK_WITH(OutOfMemoryError, block.ok(), "The GPU has no memory left for this. ",
                   block.has_failed() ? std::move(block).error().message : "");
  device_memory->zero(*block, bytes);
  return *block;
}

void release_on_device(void* memory) {
  if (memory == nullptr) return;
  if (current_device_sink != nullptr) current_device_sink->released(memory);
  if (!is_in_a_slab(memory)) device_memory->release(memory);
}

ScopedSink::ScopedSink(Sink& sink, Where where)
    : where_(where), former_(std::exchange(sink_of(where), &sink)) {}
ScopedSink::ScopedSink(Where where)
    : where_(where), former_(std::exchange(sink_of(where), nullptr)) {}
ScopedSink::~ScopedSink() {
  sink_of(where_) = former_;
}

RegisteredSlab::RegisteredSlab(std::span<std::byte> slab) : slab_(slab) {
  const auto begin = reinterpret_cast<uintptr_t>(slab.data());
  while (entry_ < slab_ranges.size()) {
    uintptr_t free_entry = 0;
    if (slab_ranges[entry_].begin.compare_exchange_strong(free_entry, begin)) break;
    ++entry_;
  }
  DJINN_ASSERT(entry_ < slab_ranges.size());
  slab_ranges[entry_].end.store(begin + slab.size(), std::memory_order_release);
}

RegisteredSlab::~RegisteredSlab() {
  slab_ranges[entry_].end.store(0, std::memory_order_release);
  slab_ranges[entry_].begin.store(0, std::memory_order_release);
}

void Recorder::note(uint64_t bytes) {
  if (lifetimes_.size() == kAllocationsMax) {
    too_long_ = true;
    lifetimes_ = {};
  }
  if (!too_long_) lifetimes_.push_back({bytes, event_++, UINT32_MAX});
  live_ += in_slab(bytes);
  peak_ = std::max(peak_, live_);
}

void* Recorder::allocate(size_t bytes) {
  void* memory = from_.allocate(bytes);
  if (memory != nullptr) alive_[memory] = {lifetimes_.size(), bytes};
  note(bytes);
  return memory;
}

void Recorder::skip() {
  note(0);
}

void Recorder::released(void* memory) {
  from_.released(memory);
  const auto found = alive_.find(memory);
  if (found == alive_.end()) return;  // older than the recording
  if (!too_long_) lifetimes_[found->second.lifetime].last = event_++;
  live_ -= in_slab(found->second.bytes);
  alive_.erase(found);
}

std::vector<vmu::Lifetime> Recorder::finish() const {
  std::vector<vmu::Lifetime> lifetimes = lifetimes_;
  for (vmu::Lifetime& lifetime : lifetimes) {
    if (lifetime.last != UINT32_MAX) continue;
    lifetime.last = lifetime.bytes == 0 ? lifetime.first : event_;
  }
  return lifetimes;
}

bool Replayer::is_free(const Placement& place) const {
  return std::none_of(alive_.begin(), alive_.end(), [&](const Alive& other) {
    return place.offset < other.offset + other.bytes && other.offset < place.offset + place.bytes;
  });
}

void* Replayer::allocate(size_t bytes) {
  if (fits_ && next_ < plan_.size() && bytes <= plan_[next_].bytes) {
    const Placement place{plan_[next_].offset, bytes};
    if (is_free(place)) {
      ++next_;
      if (bytes == 0) return nullptr;
      alive_.push_back({place.offset, bytes});
      live_ += in_slab(bytes);
      peak_ = std::max(peak_, live_);
      return slab_.data() + place.offset;
    }
  }
  fits_ = false;
  return heap_.allocate(bytes, Content::kZeros);
}

std::vector<Placement> Replayer::alive() const {
  std::vector<Placement> places = alive_;
  std::ranges::sort(places);
  return places;
}

bool Replayer::are_alive(std::span<const Placement> places) const {
  return places.size() == alive_.size() && std::ranges::all_of(alive_, [&](const Placement& one) {
           return std::ranges::binary_search(places, one);
         });
}

void Replayer::go_on_at(size_t next, std::span<const Placement> alive, uint64_t peak_live_bytes) {
  DJINN_ASSERT(fits_ && next_ <= next && next <= plan_.size());
  next_ = next;
  for (const Placement& one : alive) {
    DJINN_ASSERT(is_free(one));
    alive_.push_back({one.offset, one.bytes});
    live_ += in_slab(one.bytes);
  }
  peak_ = std::max(peak_, peak_live_bytes);
}

void Replayer::skip() {
  fits_ = fits_ && next_ < plan_.size();
  if (fits_) ++next_;
}

void Replayer::released(void* memory) {
  auto* const byte = static_cast<std::byte*>(memory);
  if (byte < slab_.data() || byte >= slab_.data() + slab_.size()) return;
  const auto offset = static_cast<uint64_t>(byte - slab_.data());
  const auto found = std::find_if(alive_.begin(), alive_.end(),
                                  [offset](const Alive& entry) { return entry.offset == offset; });
  if (found == alive_.end()) return;
  live_ -= in_slab(found->bytes);
  *found = alive_.back();
  alive_.pop_back();
}

void* Arena::allocate(size_t bytes) {
  if (bytes == 0) return nullptr;
  if (const auto range = ranges_.allocate(bytes)) return slab_.data() + range->offset;
  return heap_.allocate(bytes, Content::kZeros);
}

void Placer::offer(const OutputPlace& place) {
  const bool known =
      std::ranges::find(offered_, place.bytes, &OutputPlace::bytes) != offered_.end();
  if (!known) offered_.push_back(place);
}

void* Placer::allocate(size_t bytes) {
  const auto found = std::ranges::find(offered_, bytes, &OutputPlace::bytes);
  if (found == offered_.end()) return other_.allocate(bytes);
  std::byte* const data = found->data.on_host();
  offered_.erase(found);
  other_.skip();
  return data;
}

void Arena::released(void* memory) {
  auto* const byte = static_cast<std::byte*>(memory);
  if (byte < slab_.data() || byte >= slab_.data() + slab_.size()) return;
  ranges_.free(static_cast<uint64_t>(byte - slab_.data()));
}

}  // namespace djinn::exec
