// SPDX-License-Identifier: Apache-2.0

#include "kernel/gc/session_state.h"

#include <string.h>

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernel/base/bytes.h"
#include "kernel/base/checked.h"

namespace djinn::gc {
namespace {

constexpr uint64_t kMagic = 0x646a696e6e737431;  // "djinnst1"
constexpr uint64_t kStatePage = 4096;

uint64_t load(const uint64_t& word) {
  return std::atomic_ref(const_cast<uint64_t&>(word)).load(std::memory_order_acquire);
}
void store(uint64_t& word, uint64_t value) {
  std::atomic_ref(word).store(value, std::memory_order_release);
}

}  // namespace

template <typename T>
struct SessionState::Versioned {
  static_assert(std::is_trivially_copyable_v<T>);
  struct Copy {
    uint64_t stamp;
    T entry;
  };
  Copy copies[2];
};

struct SessionState::Head {
  uint64_t magic;
  uint32_t refs_max;
  uint32_t sequences_max;
  uint64_t commit;
  uint64_t running_step;
  uint64_t heartbeat;
  uint64_t completions_published;
  uint64_t step_published;
  uint64_t picked;  // submissions copied to the in-flight area
  uint64_t in_flight_descriptor_bytes;
  uint64_t in_flight_block_bytes;
  std::byte in_flight_descriptor[64];
  uint64_t undo_stamp;  // the step that undo entries belong to
  uint64_t undo_count;
  Versioned<StepRecord> record;
  uint64_t refs_touched;  // only grows, and before the entry is staged
  char op[kOpNameBytes];  // of the running step; padded with zeros
  uint64_t given_up;      // of the submissions that were picked up, how many are to be given up
  RunCounts counts;
  uint64_t idle_ref_bytes;
};

namespace {

// These are the offsets of the sections behind the head page: undo entries, in-flight block,
// sequences, refs.
constexpr uint64_t kUndoOffset = kStateHeadBytes;
constexpr uint64_t kUndoBytes =
    (kUndoEntriesMax * sizeof(UndoEntry) + kStatePage - 1) / kStatePage * kStatePage;
constexpr uint64_t kInFlightOffset = kUndoOffset + kUndoBytes;
constexpr uint64_t kSequencesOffset = kInFlightOffset + kInFlightBytesMax;
constexpr uint64_t kRefCell = 2 * (sizeof(uint64_t) + sizeof(RefEntry));
constexpr uint64_t kSequenceCell = 2 * (sizeof(uint64_t) + sizeof(SequenceEntry));

// Gives the copy that was written last by a step up to this commit; null if there is none.
template <typename Cell>
auto newest(const Cell& cell, uint64_t commit) -> decltype(&cell.copies[0]) {
  decltype(&cell.copies[0]) best = nullptr;
  for (const auto& copy : cell.copies) {
    if (copy.stamp != 0 && copy.stamp <= commit && (!best || copy.stamp > best->stamp))
      best = &copy;
  }
  return best;
}

uint64_t state_page_up(uint64_t bytes) {
  return (bytes + kStatePage - 1) / kStatePage * kStatePage;
}
uint64_t refs_offset(const StateGeometry& geometry) {
  return kSequencesOffset + state_page_up(geometry.sequences_max * kSequenceCell);
}

UndoEntry& undo_entry(std::span<std::byte> memory, uint64_t index) {
  return reinterpret_cast<UndoEntry*>(memory.data() + kUndoOffset)[index];
}

}  // namespace

UndoExtent one_by_one(uint64_t bytes,
                      std::function<Status(uint64_t from, uint64_t to, uint64_t bytes)> copy) {
  return {bytes, [copy = std::move(copy)](std::span<const ExtentCopy> copies) -> Status {
            for (const ExtentCopy& one : copies) DJINN_CHECK(copy(one.from, one.to, one.bytes));
            return {};
          }};
}

uint64_t state_bytes(const StateGeometry& geometry) {
  return refs_offset(geometry) + state_page_up(geometry.refs_max * kRefCell);
}

uint64_t state_bytes_at_once(const StateGeometry& geometry) {
  return refs_offset(geometry) + state_page_up(std::min(kRefsAtOnce, geometry.refs_max) * kRefCell);
}

namespace {

// Logs and errors show this name, so it ends before any character that no operator's name has.
std::string op_name(std::span<const char> bytes) {
  std::string name;
  for (const char c : bytes) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool known = letter || (c >= '0' && c <= '9') || c == '_' || c == ':' || c == '.';
    if (!known) break;
    name.push_back(c);
  }
  return name;
}

}  // namespace

Result<Progress> read_progress(std::span<const std::byte> head) {
  if (head.size() < kStateHeadBytes)
    return Error{ErrorCode::kMalformed, "The state head is short."};
  SessionState::Head copy;
  memcpy(&copy, head.data(), sizeof copy);
  if (copy.magic != kMagic)
    return Error{ErrorCode::kMalformed, "The state head has no magic number."};
  // The worker is not trusted: only these numbers are taken from the state, and they are no more
  // than hints.
  const auto* const best = newest(copy.record, copy.commit);
  const uint64_t completed = best == nullptr ? 0 : best->entry.completed;
  return Progress{copy.commit,
                  copy.running_step,
                  copy.heartbeat,
                  copy.picked == completed + 1,
                  copy.running_step != 0 ? op_name(copy.op) : std::string(),
                  copy.counts,
                  copy.idle_ref_bytes};
}

void give_up_in_flight(std::span<std::byte> head) {
  DJINN_ASSERT(head.size() >= kStateHeadBytes);
  auto& shared = *reinterpret_cast<SessionState::Head*>(head.data());
  store(shared.given_up, load(shared.picked));
}

void leave_step(std::span<std::byte> head) {
  DJINN_ASSERT(head.size() >= kStateHeadBytes);
  store(reinterpret_cast<SessionState::Head*>(head.data())->running_step, 0);
}

SessionState::SessionState(std::span<std::byte> memory, const StateGeometry& geometry,
                           FaultPoints& faults)
    : memory_(memory), geometry_(geometry), faults_(&faults) {
  static_assert(sizeof(Head) <= kStateHeadBytes);
  static_assert(sizeof(Versioned<RefEntry>) == kRefCell);
  static_assert(sizeof(Versioned<SequenceEntry>) == kSequenceCell);
}

SessionState::Head& SessionState::head() const {
  return *reinterpret_cast<Head*>(memory_.data());
}

SessionState::Versioned<RefEntry>& SessionState::ref_cell(uint32_t index) const {
  DJINN_ASSERT(index < geometry_.refs_max);
  return reinterpret_cast<Versioned<RefEntry>*>(memory_.data() + refs_offset(geometry_))[index];
}

SessionState::Versioned<SequenceEntry>& SessionState::sequence_cell(uint32_t index) const {
  DJINN_ASSERT(index < geometry_.sequences_max);
  return reinterpret_cast<Versioned<SequenceEntry>*>(memory_.data() + kSequencesOffset)[index];
}

Status SessionState::format(std::span<std::byte> memory, const StateGeometry& geometry) {
  if (memory.size() < state_bytes(geometry)) {
    return Error{ErrorCode::kInvalidArgument, "The state extent is smaller than its geometry."};
  }
  Head& fresh = *reinterpret_cast<Head*>(memory.data());
  fresh.refs_max = geometry.refs_max;
  fresh.sequences_max = geometry.sequences_max;
  store(fresh.magic, kMagic);  // last: a half-made head is no head
  return {};
}

Result<SessionState> SessionState::open(std::span<std::byte> memory, const StateGeometry& geometry,
                                        FaultPoints& faults) {
  if (memory.size() < state_bytes(geometry)) {
    return Error{ErrorCode::kMalformed, "The state extent is smaller than its geometry."};
  }
  SessionState state(memory, geometry, faults);
  DJINN_CHECK(state.check_head());
  return state;
}

Status SessionState::check_head() const {
  const Head& h = head();
  if (load(h.magic) != kMagic || h.refs_max != geometry_.refs_max ||
      h.sequences_max != geometry_.sequences_max) {
    return Error{ErrorCode::kMalformed, "The state extent belongs to another geometry or version."};
  }
  if (h.undo_count > kUndoEntriesMax ||
      h.in_flight_descriptor_bytes > sizeof h.in_flight_descriptor ||
      h.in_flight_block_bytes > kInFlightBytesMax || h.refs_touched > geometry_.refs_max) {
    return Error{ErrorCode::kMalformed, "A count in the state extent is over its limit."};
  }
  return {};
}

// --- versioned entries

template <typename T>
T SessionState::valid_copy(const Versioned<T>& cell) const {
  const auto* const best = newest(cell, load(head().commit));
  return best ? best->entry : T{};
}

template <typename T>
void SessionState::stage(Versioned<T>& cell, const T& entry) {
  const uint64_t next = load(head().commit) + 1;
  // The target is the copy that is not valid now: the one that this step has written already, or
  // else the older one.
  auto& a = cell.copies[0];
  auto& b = cell.copies[1];
  auto& target = a.stamp == next ? a : b.stamp == next ? b : a.stamp <= b.stamp ? a : b;
  store(target.stamp, 0);  // a torn entry must not carry a stamp that may become valid
  faults_->hit();
  target.entry = entry;
  faults_->hit();
  store(target.stamp, next);
  faults_->hit();
}

template <typename T>
void SessionState::void_staged(Versioned<T>& cell) {
  const uint64_t commit = load(head().commit);
  for (auto& copy : cell.copies) {
    if (copy.stamp <= commit) continue;
    store(copy.stamp, 0);
    faults_->hit();
  }
}

void SessionState::void_all_staged() {
  void_staged(head().record);
  for (uint32_t i = 0; i < refs_touched(); ++i) void_staged(ref_cell(i));
  for (uint32_t i = 0; i < geometry_.sequences_max; ++i) void_staged(sequence_cell(i));
}

void SessionState::stage_ref(uint32_t index, const RefEntry& entry) {
  if (index >= refs_touched()) {
    store(head().refs_touched, uint64_t{index} + 1);
    faults_->hit();
  }
  stage(ref_cell(index), entry);
}
void SessionState::stage_sequence(uint32_t index, const SequenceEntry& entry) {
  stage(sequence_cell(index), entry);
}
void SessionState::stage_record(const StepRecord& record) {
  stage(head().record, record);
}

uint32_t SessionState::refs_touched() const {
  return static_cast<uint32_t>(load(head().refs_touched));
}
std::span<std::byte> SessionState::ref_pages(uint32_t from, uint32_t to) const {
  DJINN_ASSERT(from <= to && to <= geometry_.refs_max);
  const uint64_t begin = (refs_offset(geometry_) + from * kRefCell) / kStatePage * kStatePage;
  return memory_.subspan(begin, state_page_up(refs_offset(geometry_) + to * kRefCell) - begin);
}
uint64_t SessionState::step() const {
  return load(head().commit);
}
RefEntry SessionState::ref(uint32_t index) const {
  if (index >= refs_touched()) return {};
  return valid_copy(ref_cell(index));
}
SequenceEntry SessionState::sequence(uint32_t index) const {
  return valid_copy(sequence_cell(index));
}
StepRecord SessionState::record() const {
  return valid_copy(head().record);
}

// --- the running step

void SessionState::begin() {
  Head& h = head();
  DJINN_ASSERT(h.undo_count == 0);
  store(h.running_step, load(h.commit) + 1);
  faults_->hit();
}

void SessionState::pause() {
  DJINN_ASSERT(head().undo_count == 0);
  store(head().running_step, 0);
}

void SessionState::suspend() {
  Head& h = head();
  DJINN_ASSERT(h.running_step == load(h.commit) + 1);
  store(h.running_step, 0);
  faults_->hit();
}

void SessionState::resume() {
  Head& h = head();
  DJINN_ASSERT(h.running_step == 0);
  store(h.running_step, load(h.commit) + 1);
  faults_->hit();
}

Status SessionState::save_for_undo(const UndoExtent& extent, std::span<const UndoEntry> ranges) {
  Head& h = head();
  DJINN_ASSERT(h.undo_count <= kUndoEntriesMax);
  if (ranges.size() > kUndoEntriesMax - h.undo_count) {
    return Error{ErrorCode::kLimitExceeded,
                 "The run writes more than 256 ranges in place. Split it into several runs."};
  }
  std::vector<ExtentCopy> copies;
  for (const UndoEntry& range : ranges) {
    DJINN_ASSERT(range_fits(range.target, range.bytes, extent.bytes));
    DJINN_ASSERT(range_fits(range.saved, range.bytes, extent.bytes));
    copies.push_back({range.target, range.saved, range.bytes});
  }
  DJINN_CHECK(extent.copy(copies));
  faults_->hit();
  for (size_t i = 0; i < ranges.size(); ++i) {
    undo_entry(memory_, h.undo_count + i) = ranges[i];
    faults_->hit();
  }
  store(h.undo_stamp, load(h.commit) + 1);
  faults_->hit();
  store(h.undo_count, h.undo_count + ranges.size());
  faults_->hit();
  return {};
}

void SessionState::commit() {
  Head& h = head();
  store(h.commit, load(h.commit) + 1);
  faults_->hit();
  // The entries have the stamp of the committed step now, so they are void even if we die before
  // this.
  store(h.undo_count, 0);
  faults_->hit();
  store(h.running_step, 0);
  faults_->hit();
}

Status SessionState::undo(const UndoExtent& extent) {
  Head& h = head();
  if (h.undo_stamp == load(h.commit) + 1) {
    // Ranges are restored backwards: where they overlap, the oldest bytes were saved first and must
    // be restored last.
    for (uint64_t i = std::min<uint64_t>(h.undo_count, kUndoEntriesMax); i > 0; --i) {
      const UndoEntry entry = undo_entry(memory_, i - 1);
      if (!range_fits(entry.target, entry.bytes, extent.bytes) ||
          !range_fits(entry.saved, entry.bytes, extent.bytes)) {
        return Error{ErrorCode::kMalformed, "An undo range leaves the session's extent."};
      }
      if (entry.saved < entry.target + entry.bytes && entry.target < entry.saved + entry.bytes) {
        return Error{ErrorCode::kMalformed, "An undo range lies over what was saved of it."};
      }
      const ExtentCopy back{entry.saved, entry.target, entry.bytes};
      DJINN_CHECK(extent.copy({&back, 1}));
      faults_->hit();
    }
  }
  store(h.undo_count, 0);
  faults_->hit();
  return {};
}

Status SessionState::roll_back(const UndoExtent& extent) {
  DJINN_CHECK(undo(extent));
  void_all_staged();
  store(head().running_step, 0);
  faults_->hit();
  return {};
}

Status SessionState::recover(const UndoExtent& extent) {
  DJINN_CHECK(check_head());
  return roll_back(extent);
}

// --- in flight

void SessionState::pick_up(uint64_t submission_index, std::span<const std::byte> descriptor,
                           std::span<const std::byte> block) {
  Head& h = head();
  DJINN_ASSERT(descriptor.size() <= sizeof h.in_flight_descriptor);
  DJINN_ASSERT(block.size() <= kInFlightBytesMax);
  DJINN_ASSERT(submission_index == record().completed);  // the one before is complete
  copy_bytes(descriptor, h.in_flight_descriptor);
  faults_->hit();
  copy_bytes(block, memory_.subspan(kInFlightOffset));
  faults_->hit();
  store(h.in_flight_descriptor_bytes, descriptor.size());
  store(h.in_flight_block_bytes, block.size());
  faults_->hit();
  store(h.picked, submission_index + 1);
  faults_->hit();
}

std::optional<SessionState::InFlight> SessionState::in_flight() const {
  const Head& h = head();
  const uint64_t completed = record().completed;
  if (load(h.picked) != completed + 1) return std::nullopt;
  return InFlight{completed,
                  {h.in_flight_descriptor, h.in_flight_descriptor_bytes},
                  {memory_.data() + kInFlightOffset, h.in_flight_block_bytes}};
}

bool SessionState::is_given_up() const {
  return load(head().given_up) == load(head().picked) && load(head().picked) != 0;
}

// --- publication

uint64_t SessionState::completions_published() const {
  return load(head().completions_published);
}
uint64_t SessionState::step_published() const {
  return load(head().step_published);
}
void SessionState::set_completions_published(uint64_t count) {
  store(head().completions_published, count);
  faults_->hit();
}
void SessionState::set_idle_ref_bytes(uint64_t bytes) {
  store(head().idle_ref_bytes, bytes);
}
void SessionState::set_step_published(uint64_t step) {
  store(head().step_published, step);
  faults_->hit();
}

void SessionState::beat(std::string_view op) {
  Head& h = head();
  std::array<char, kOpNameBytes> name{};
  std::copy_n(op.begin(), std::min(op.size(), name.size()), name.begin());
  memcpy(h.op, name.data(), name.size());
  store(h.heartbeat, load(h.heartbeat) + 1);
}

void SessionState::count(const RunCounts& more) {
  RunCounts& counts = head().counts;
  const auto add = [&](uint64_t RunCounts::*count) {
    store(counts.*count, load(counts.*count) + more.*count);
  };
  for (const auto count :
       {&RunCounts::graphs, &RunCounts::programs, &RunCounts::generations, &RunCounts::failed,
        &RunCounts::tokens, &RunCounts::plan_misses, &RunCounts::bytes_in, &RunCounts::bytes_out}) {
    add(count);
  }
  if (more.last_tier != 0) store(counts.last_tier, more.last_tier);
}

}  // namespace djinn::gc
