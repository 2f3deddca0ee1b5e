#include "daemon/worker/sequence.h"

#include <string.h>

#include <algorithm>
#include <bit>
#include <utility>

namespace djinn::worker {
namespace {

// A growth covers this many slots beyond the need, and is asked for when half of them are used: a
// decode step takes milliseconds, a growth some hundred microseconds.
constexpr uint64_t kAheadTokens = 256;

// The largest count of token slots that so many bytes pay for.
uint64_t slots_paid_by(uint64_t bytes, const gc::SequenceLayout& layout) {
  uint64_t slots = 0;
  for (uint64_t step = std::bit_floor(layout.capacity()); step > 0; step /= 2) {
    const uint64_t next = std::min(slots + step, layout.capacity());
    if (layout.committed_bytes(next) <= bytes) slots = next;
  }
  return slots;
}

}  // namespace

Sequence::Sequence(SessionId session, SequenceHandle handle, const ipc::SequenceGeometry& geometry,
                   gc::SequenceLayout layout, pal::DevicePal& pal, pal::Extent extent,
                   pal::Reservation memory, uint64_t granted)
    : session_(session),
      handle_(handle),
      geometry_(geometry),
      layout_(layout),
      pal_(pal),
      extent_(std::move(extent)),
      memory_(std::move(memory)),
      granted_bytes_(granted) {}

Result<std::shared_ptr<Sequence>> Sequence::map(SessionId session, SequenceHandle handle,
                                                const ipc::SequenceGeometry& geometry, Fd memfd,
                                                uint64_t granted, pal::DevicePal& pal) {
  DJINN_TRY(
      const gc::SequenceLayout layout,
      gc::SequenceLayout::make(geometry.banks * geometry.rows, geometry.layers, geometry.kv_heads,
                               geometry.head_dim, size_of(geometry.dtype), geometry.capacity));
  DJINN_TRY(pal::Extent extent,
            pal.import_extent(std::move(memfd), layout.file_bytes(), pal::Seals::kSize));
  DJINN_TRY(pal::Reservation memory, pal.reserve(extent.bytes));
  DJINN_CHECK(pal.map(memory, 0, extent, 0, extent.bytes, pal::Access::kReadWrite));
  std::shared_ptr<Sequence> sequence(new Sequence(session, handle, geometry, layout, pal,
                                                  std::move(extent), std::move(memory), granted));
  // The former worker may have died between a grant and its pages; committing again is idempotent.
  const uint64_t tokens = slots_paid_by(granted, layout);
  DJINN_CHECK(layout.for_each_range(0, tokens, [&](uint64_t offset, uint64_t bytes) {
    return pal.commit(sequence->extent_, offset, bytes);
  }));
  sequence->committed_.store(tokens, std::memory_order_release);
  sequence->wanted_.store(tokens, std::memory_order_relaxed);
  return sequence;
}

uint64_t Sequence::head_bytes() const {
  return geometry_.capacity * geometry_.head_dim * size_of(geometry_.dtype);
}
uint64_t Sequence::bank_bytes() const {
  return uint64_t{geometry_.rows} * geometry_.kv_heads * head_bytes();
}
int32_t* Sequence::tokens(uint32_t bank, uint32_t row) const {
  DJINN_ASSERT(bank < geometry_.banks && row < geometry_.rows);
  const uint64_t offset = layout_.tokens_offset(bank * geometry_.rows + row);
  return reinterpret_cast<int32_t*>(memory_.data() + offset);
}
std::byte* Sequence::key(uint32_t bank, uint32_t layer) const {
  DJINN_ASSERT(bank < geometry_.banks);
  return memory_.data() + layout_.key_offset(layer) + bank * bank_bytes();
}
std::byte* Sequence::value(uint32_t bank, uint32_t layer) const {
  DJINN_ASSERT(bank < geometry_.banks);
  return memory_.data() + layout_.value_offset(layer) + bank * bank_bytes();
}

void Sequence::copy_rows(uint32_t from, uint32_t to, std::span<const uint32_t> rows,
                         uint64_t tokens) const {
  DJINN_ASSERT(from != to && rows.size() == geometry_.rows && tokens <= committed());
  for (uint32_t row = 0; row < rows.size(); ++row) {
    memcpy(this->tokens(to, row), this->tokens(from, rows[row]), tokens * sizeof(int32_t));
    for (uint32_t layer = 0; layer < geometry_.layers; ++layer) {
      copy_heads(key(from, layer), rows[row], key(to, layer), row, tokens);
      copy_heads(value(from, layer), rows[row], value(to, layer), row, tokens);
    }
  }
}

void Sequence::copy_heads(const std::byte* from, uint32_t from_row, std::byte* to, uint32_t to_row,
                          uint64_t tokens) const {
  const uint64_t bytes = tokens * geometry_.head_dim * size_of(geometry_.dtype);
  for (uint32_t head = 0; head < geometry_.kv_heads; ++head) {
    memcpy(to + (uint64_t{to_row} * geometry_.kv_heads + head) * head_bytes(),
           from + (uint64_t{from_row} * geometry_.kv_heads + head) * head_bytes(), bytes);
  }
}

Status Sequence::commit(uint64_t tokens, Grants& grants) {
  const uint64_t needed = layout_.committed_bytes(tokens);
  if (needed > granted_bytes_) {
    DJINN_CHECK(grants.request(session_, handle_, needed - granted_bytes_));
    granted_bytes_ = needed;
  }
  DJINN_CHECK(
      layout_.for_each_range(committed(), tokens, [&](uint64_t offset, uint64_t bytes) -> Status {
        DJINN_CHECK(pal_.commit(extent_, offset, bytes));
        return pal_.populate(memory_, offset, bytes);
      }));
  committed_.store(tokens, std::memory_order_release);
  return {};
}

// --- Grower

Grower::Grower(Grants& grants, std::function<void()> wake)
    : grants_(grants), wake_(std::move(wake)), thread_([this] { work(); }) {}

Grower::~Grower() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  arrived_.notify_all();
  thread_.join();
}

Result<Grower::Readiness> Grower::ensure(const std::shared_ptr<Sequence>& sequence,
                                         uint64_t tokens) {
  const uint64_t capacity = sequence->layout().capacity();
  DJINN_ASSERT(tokens <= capacity);
  const uint64_t committed = sequence->committed();
  const bool ready = tokens <= committed;
  if (!ready) {
    const std::lock_guard lock(sequence->failure_mutex_);
    if (sequence->failure_) {
      sequence->wanted_.store(committed, std::memory_order_relaxed);
      return *std::exchange(sequence->failure_, std::nullopt);
    }
  }
  if (committed < capacity && tokens + kAheadTokens / 2 > committed) {
    ask(sequence, std::min(tokens + kAheadTokens, capacity));
  }
  return ready ? Readiness::kReady : Readiness::kGrowing;
}

void Grower::ask(const std::shared_ptr<Sequence>& sequence, uint64_t tokens) {
  // A growth that is under way comes first; ensure() asks again if it was not enough.
  if (sequence->wanted_.load(std::memory_order_relaxed) > sequence->committed()) return;
  sequence->wanted_.store(tokens, std::memory_order_relaxed);
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(sequence);
  }
  arrived_.notify_one();
}

void Grower::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    arrived_.wait(lock, [&] { return closing_ || !queue_.empty(); });
    if (closing_) return;
    const std::shared_ptr<Sequence> sequence = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    const uint64_t wanted = sequence->wanted_.load(std::memory_order_relaxed);
    if (wanted > sequence->committed()) {
      if (Status grown = sequence->commit(wanted, grants_); !grown) {
        const std::lock_guard failure_lock(sequence->failure_mutex_);
        sequence->failure_ = std::move(grown).error();
      }
    }
    wake_();
    lock.lock();
  }
}

}  // namespace djinn::worker
