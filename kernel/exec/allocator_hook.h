// SPDX-License-Identifier: Apache-2.0

// The allocator that LibTorch uses on the host: asks the sink of the calling thread, or takes
// malloc.
//
//   Sink      decides where the allocations of one thread go while a ScopedSink is alive
//   Heap      malloc for what no plan places; counted, and bounded by its owner
//   Recorder  a sink that takes another's memory and writes down sizes and lifetimes
//   Replayer  a sink that serves the n-th allocation at its planned place in a slab
//   Arena     a sink that finds each allocation a place in a slab as it comes
//   Placer    a sink in front of another, for outputs that have places of their own
//   DeviceMemory  where heaps of a device that is not the host take their blocks: the process's
//
// A device has sinks and heaps as the host has: with its own allocator and deleter, which take the
// same ways (kernel/exec/cuda).
//
// allocate(0) gives null and still counts as one allocation, for the sequence is what a plan fits.
// What a kernel is given from the heap is zeroed: it may have been another session's. The slab is
// cleaned by its lane (lane.cc). One deleter serves all memory, because LibTorch compares deleters:
// it knows slabs by their range. invariant: two allocations that are alive together never share a
// byte of a slab, even where a run differs from the recorded one.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernel/executor/executor.h"
#include "kernel/vmu/extent_allocator.h"
#include "kernel/vmu/offset_planner.h"

namespace djinn::exec {

class Sink {
 public:
  virtual ~Sink() = default;
  // bytes > 0 gives memory aligned to 64, or throws std::bad_alloc; 0 gives null.
  virtual void* allocate(size_t bytes) = 0;
  virtual void released(void* memory) = 0;
  // One allocation of the sequence was made elsewhere.
  virtual void skip() = 0;
};

// Installs the hook; once, before LibTorch allocates anything that should go through it.
void install_allocator();
[[nodiscard]] bool is_allocator_installed();

// What LibTorch does with memory that allocate() of a sink or of a heap gave. Any thread.
void release(void* memory);

// What memory holds when it is given: whatever was there before, or zeros.
enum class Content { kAny, kZeros };

// Where memory is: this process's, or of the one device beside the host that it computes on.
enum class Where { kHost, kDevice };

// Blocks of a device's memory. Any thread.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  // Aligned to kTensorAlignment, of any content; bytes > 0. Errors, and pending: what the memory's
  // owner says.
  virtual Outcome<void*> allocate(uint64_t bytes) = 0;
  // What was launched with it may still go on: nobody else's stream is given it.
  virtual void release(void* memory) = 0;
  // In the order of what the calling thread launches.
  virtual void zero(void* memory, uint64_t bytes) = 0;
  // Of all blocks that are not released.
  [[nodiscard]] virtual uint64_t live_bytes() const = 0;
};

// Once a process, before LibTorch computes on the device. It lives as long as the process, or until
// it is taken away again, which is before LibTorch has opened the device.
void install_device_memory(DeviceMemory& memory);
void remove_device_memory();
[[nodiscard]] bool is_device_memory_installed();
// What LibTorch's allocator of the device gives: of the thread's sink there, or zeros of that
// memory. Throws as a sink does.
[[nodiscard]] void* allocate_on_device(size_t bytes);
// Likewise release() of what it gave.
void release_on_device(void* memory);

// What a run is told that its owner may not have so much memory.
[[nodiscard]] Error over_limit(uint64_t bytes, uint64_t bytes_max);

class UnboundedHeap final : public HeapOwner {
  Outcome<void> allow(uint64_t) override { return {}; }
  void settle(uint64_t) override {}
};

class Heap {
 public:
  // memory: null for the host's.
  explicit Heap(HeapOwner& owner, DeviceMemory* memory = nullptr)
      : owner_(owner), memory_(memory) {}

  // As Sink::allocate(); throws when the owner refuses, too, and keeps why.
  void* allocate(size_t bytes, Content content);
  // Whoever has these gives what allocate() gave back to this heap's memory.
  [[nodiscard]] HeapBytes own(const void* memory) const {
    return HeapBytes(DeviceAddress(static_cast<const std::byte*>(memory)), deleter());
  }
  // Bytes of all heaps together from which on this one refuses by itself: kQuotaExceeded.
  void set_limit(uint64_t bytes_max) { bytes_max_ = bytes_max; }
  // So many of the live bytes are not for what this heap serves: they count for no limit of it, and
  // nobody is told that it took them.
  void set_others(uint64_t bytes) { others_bytes_ = bytes; }
  [[nodiscard]] uint64_t others() const { return others_bytes_; }
  [[nodiscard]] bool is_refused() const { return refusal_.has_value(); }
  // Refused for now: more is on its way, and the run is to be repeated.
  [[nodiscard]] bool awaits_more() const { return refusal_ && refusal_->is_pending(); }
  // Why the last allocation was refused, once.
  std::optional<NotDone> take_refusal() { return std::exchange(refusal_, std::nullopt); }
  // The bytes of all heaps of the host that are not released.
  [[nodiscard]] static uint64_t live_bytes();
  // Likewise of all heaps where this one is.
  [[nodiscard]] uint64_t live_bytes_there() const {
    return memory_ == nullptr ? live_bytes() : memory_->live_bytes();
  }
  // Whether it may have so many bytes more that it does not see, and holds them until unhold(). The
  // caller throws where not, as allocate() does.
  [[nodiscard]] bool hold(uint64_t bytes);
  void unhold(uint64_t bytes);
  // A run begins that is likely to take so many bytes. Pending: as HeapOwner::prepare().
  [[nodiscard]] std::optional<Pending> prepare(uint64_t bytes);
  // From now on taken_bytes() is of what follows.
  void count_anew();
  // The most that was asked for at once since prepare(), beside what lived then.
  [[nodiscard]] uint64_t taken_bytes() const {
    return most_bytes_ - std::min(most_bytes_, prepared_at_bytes_);
  }
  // Tells the owner what is still needed, which keeps the rest for the next run; after trim() it
  // does not.
  void settle();
  void trim();
  // Likewise, if there were allocations since it was told last.
  void settle_if_used() {
    if (used_) settle();
  }

 private:
  Outcome<void> allow(uint64_t bytes);
  void* allocate_there(size_t bytes, Content content);
  [[nodiscard]] HeapDeleter deleter() const;
  // Of all the heaps' bytes those that are not others'.
  [[nodiscard]] uint64_t own_of(uint64_t bytes) const {
    return bytes - std::min(bytes, others_bytes_);
  }

  HeapOwner& owner_;
  DeviceMemory* memory_;
  std::optional<NotDone> refusal_;
  uint64_t bytes_max_ = UINT64_MAX;
  uint64_t held_bytes_ = 0;
  uint64_t others_bytes_ = 0;
  // Without others':
  uint64_t prepared_at_bytes_ = 0;
  uint64_t most_bytes_ = 0;  // since prepare()
  bool used_ = false;
};

// What kernels of this thread take for themselves is held of heap while this lives.
class ScopedHeap {
 public:
  explicit ScopedHeap(Heap& heap);
  ScopedHeap();  // nobody is asked, as without one
  ~ScopedHeap();
  ScopedHeap(const ScopedHeap&) = delete;
  ScopedHeap& operator=(const ScopedHeap&) = delete;

 private:
  Heap* former_;
};

// Bytes that a kernel takes where no allocator of ours sees it. Throws std::bad_alloc where they
// are refused; without a ScopedHeap nobody is asked.
class HeldBytes {
 public:
  // As little is part of what a worker has beside its grants, so that a step that selects from a
  // vocabulary's logits asks nobody.
  static constexpr uint64_t kUncounted = uint64_t{8} << 20;

  explicit HeldBytes(uint64_t bytes);
  ~HeldBytes();
  HeldBytes(const HeldBytes&) = delete;
  HeldBytes& operator=(const HeldBytes&) = delete;

 private:
  Heap* heap_ = nullptr;
  uint64_t bytes_ = 0;
};

// Sends the calling thread's allocations there to sink.
class ScopedSink {
 public:
  explicit ScopedSink(Sink& sink, Where where = Where::kHost);
  explicit ScopedSink(Where where = Where::kHost);  // to malloc, as without one
  ~ScopedSink();
  ScopedSink(const ScopedSink&) = delete;
  ScopedSink& operator=(const ScopedSink&) = delete;

 private:
  Where where_;
  Sink* former_;
};

// Tells the deleter that a range belongs to a slab and is not to be freed. At most 64 at a time.
class RegisteredSlab {
 public:
  explicit RegisteredSlab(std::span<std::byte> slab);
  ~RegisteredSlab();
  RegisteredSlab(const RegisteredSlab&) = delete;
  RegisteredSlab& operator=(const RegisteredSlab&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() const { return slab_; }

 private:
  std::span<std::byte> slab_;
  size_t entry_ = 0;
};

class Recorder final : public Sink {
 public:
  // Planning is quadratic, and takes 0.2 s at worst for so many: a run of more has no plan.
  static constexpr size_t kAllocationsMax = 8192;

  // from: where the recorded run's memory is taken.
  explicit Recorder(Sink& from) : from_(from) {}

  void* allocate(size_t bytes) override;
  void released(void* memory) override;
  void skip() override;

  // What was recorded; what is still alive lives to the end. Nothing where is_too_long().
  [[nodiscard]] std::vector<vmu::Lifetime> finish() const;
  // Of too many allocations: from there on peak_live_bytes() alone is kept.
  [[nodiscard]] bool is_too_long() const { return too_long_; }
  [[nodiscard]] uint64_t peak_live_bytes() const { return peak_; }

 private:
  struct Alive {
    size_t lifetime;
    uint64_t bytes;
  };
  void note(uint64_t bytes);

  Sink& from_;
  std::vector<vmu::Lifetime> lifetimes_;
  std::unordered_map<void*, Alive> alive_;
  bool too_long_ = false;
  uint32_t event_ = 0;
  uint64_t live_ = 0;
  uint64_t peak_ = 0;
};

struct Placement {
  uint64_t offset = 0;
  uint64_t bytes = 0;  // at most
  friend auto operator<=>(const Placement&, const Placement&) = default;
};

class Replayer final : public Sink {
 public:
  Replayer(std::span<const Placement> plan, std::span<std::byte> slab, Heap& heap)
      : plan_(plan), slab_(slab), heap_(heap) {}
  // Goes on where the other one is now, which stays there. peak_live_bytes() is of what follows.
  Replayer(const Replayer& other, Heap& heap)
      : plan_(other.plan_),
        slab_(other.slab_),
        heap_(heap),
        alive_(other.alive_),
        next_(other.next_),
        fits_(other.fits_),
        live_(other.live_),
        peak_(other.live_) {}

  void* allocate(size_t bytes) override;
  void released(void* memory) override;
  void skip() override;

  // Allocations of the plan, up to number `next`, were made without this: of these so many are
  // alive, at their places, and meanwhile so much was at once.
  void go_on_at(size_t next, std::span<const Placement> alive, uint64_t peak_live_bytes);
  [[nodiscard]] size_t next() const { return next_; }
  // The places of what is alive, in their order; whether these are those.
  [[nodiscard]] std::vector<Placement> alive() const;
  [[nodiscard]] bool are_alive(std::span<const Placement> places) const;
  [[nodiscard]] std::span<std::byte> slab() const { return slab_; }

  // Whether every allocation so far was the planned one. After a miss the rest is the heap's.
  [[nodiscard]] bool fits() const { return fits_; }
  [[nodiscard]] uint64_t peak_live_bytes() const { return peak_; }

 private:
  using Alive = Placement;
  [[nodiscard]] bool is_free(const Placement& place) const;

  std::span<const Placement> plan_;
  std::span<std::byte> slab_;
  Heap& heap_;
  std::vector<Alive> alive_;
  size_t next_ = 0;
  bool fits_ = true;
  uint64_t live_ = 0;
  uint64_t peak_ = 0;
};

class Arena final : public Sink {
 public:
  Arena(std::span<std::byte> slab, Heap& heap)
      : slab_(slab),
        ranges_(slab.size() - slab.size() % vmu::RangeAllocator::kGranuleBytes),
        heap_(heap) {}

  // What finds no place is the heap's.
  void* allocate(size_t bytes) override;
  void released(void* memory) override;
  void skip() override {}

 private:
  std::span<std::byte> slab_;
  vmu::RangeAllocator ranges_;
  Heap& heap_;
};

// invariant: no two places on offer are of one size, so what a kernel is given is the place of the
// one result that it can be.
class Placer final : public Sink {
 public:
  explicit Placer(Sink& other) : other_(other) {}

  // The next allocation of so many bytes is made there. A place of a size that is on offer already
  // is left out.
  void offer(const OutputPlace& place);
  void withdraw() { offered_.clear(); }

  void* allocate(size_t bytes) override;
  void released(void* memory) override { other_.released(memory); }
  void skip() override { other_.skip(); }

 private:
  Sink& other_;
  std::vector<OutputPlace> offered_;
};

}  // namespace djinn::exec
