// SPDX-License-Identifier: Apache-2.0

#include "kernel/gc/session_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kernel/base/random.h"

namespace djinn::gc {
namespace {

UndoExtent undo_extent(std::span<std::byte> memory) {
  return one_by_one(memory.size(), [memory](uint64_t from, uint64_t to, uint64_t bytes) {
    memmove(memory.data() + to, memory.data() + from, bytes);
    return Status();
  });
}

constexpr StateGeometry kGeometry{4, 2};

// --- memory that outlives a process: a state extent and the session's extent behind it

class Memory {
 public:
  static constexpr uint64_t kExtentBytes = 16384;

  Memory() : bytes_(state_bytes(kGeometry) + kExtentBytes) {
    void* at = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    DJINN_ASSERT(at != MAP_FAILED);
    data_ = static_cast<std::byte*>(at);
    DJINN_ASSERT(SessionState::format(state(), kGeometry).ok());
  }
  ~Memory() { ::munmap(data_, bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  [[nodiscard]] std::span<std::byte> state() const { return {data_, state_bytes(kGeometry)}; }
  [[nodiscard]] std::span<std::byte> extent() const {
    return {data_ + state_bytes(kGeometry), kExtentBytes};
  }
  [[nodiscard]] SessionState open(FaultPoints& faults) const {
    return SessionState::open(state(), kGeometry, faults).value();
  }
  [[nodiscard]] std::vector<std::byte> save() const { return {data_, data_ + bytes_}; }
  void restore(const std::vector<std::byte>& saved) {
    std::copy(saved.begin(), saved.end(), data_);
  }

 private:
  size_t bytes_;
  std::byte* data_ = nullptr;
};

// Zeroed bytes that nobody else sees, for what dies with the test.
struct Private {
  Memory memory;
  FaultPoints faults;
  SessionState state = memory.open(faults);
  std::span<std::byte> extent = memory.extent();
  Status save(const std::vector<UndoEntry>& ranges) {
    return state.save_for_undo(undo_extent(extent), ranges);
  }
};

// --- what a session looks like to its users

std::string to_text(const RefEntry& ref, std::span<const std::byte> extent) {
  std::string text(reinterpret_cast<const char*>(&ref), sizeof ref);
  if (ref.state != RefState::kLive) return text;
  return text.append(reinterpret_cast<const char*>(extent.data() + ref.offset), ref.bytes);
}

// Every ref with its bytes, every sequence, the step and its record: byte for byte.
struct Snapshot {
  uint64_t step = 0;
  std::vector<std::string> parts;
  friend bool operator==(const Snapshot&, const Snapshot&) = default;
};

Snapshot snapshot(const SessionState& state, std::span<const std::byte> extent) {
  Snapshot out{state.step(), {}};
  for (uint32_t i = 0; i < kGeometry.refs_max; ++i) {
    out.parts.push_back(to_text(state.ref(i), extent));
  }
  for (uint32_t i = 0; i < kGeometry.sequences_max; ++i) {
    const SequenceEntry entry = state.sequence(i);
    out.parts.emplace_back(reinterpret_cast<const char*>(&entry), sizeof entry);
  }
  const StepRecord record = state.record();
  out.parts.emplace_back(reinterpret_cast<const char*>(&record), sizeof record);
  return out;
}

// --- a worker that follows a script
//
// What it does next depends on the committed state and a seed alone, so a worker that takes over
// does what its predecessor would have done. What a step writes depends on what it found, so a step
// that is done twice, or half, leaves other bytes.

class Script {
 public:
  static constexpr uint64_t kSteps = 14;

  Script(uint64_t seed, SessionState& state, std::span<std::byte> extent, FaultPoints& faults)
      : seed_(seed), state_(state), extent_(extent), faults_(faults) {}

  // From wherever the session is to the end.
  void run(const std::function<void()>& after_step = [] {}) {
    publish();
    while (state_.step() < kSteps) {
      pick_up_if_idle();
      step();
      publish();
      after_step();
    }
  }

 private:
  static constexpr uint64_t kRefBytes = 512;
  static constexpr uint64_t kSavedOffset = 8192;  // where old bytes are kept
  static constexpr uint64_t kStepsOfRun = 3;      // two tokens, then done

  enum Action : uint64_t { kSwap, kWrite, kPoison, kSequence, kFail, kTwoWrites, kActions };

  void publish() {
    state_.set_completions_published(state_.step());
    state_.set_step_published(state_.step());
  }

  // The copy of a submission must be whole whenever it is there at all.
  void pick_up_if_idle() {
    const uint64_t index = state_.record().completed;
    const std::vector<std::byte> descriptor(64, static_cast<std::byte>(index + 1));
    const std::vector<std::byte> block(100 + index, static_cast<std::byte>(index + 101));
    const auto in_flight = state_.in_flight();
    if (!in_flight) return state_.pick_up(index, descriptor, block);
    DJINN_ASSERT(in_flight->submission_index == index);
    DJINN_ASSERT(std::ranges::equal(in_flight->descriptor, descriptor));
    DJINN_ASSERT(std::ranges::equal(in_flight->block, block));
  }

  void step() {
    const uint64_t number = state_.step() + 1;
    Random random(seed_ * 1000 + number);
    saved_ = kSavedOffset;
    state_.begin();
    act(static_cast<Action>(number % kActions), random, number);
    state_.suspend();
    faults_.hit();
    state_.resume();
    for (uint64_t more = random.below(4); more > 0; --more) {
      act(static_cast<Action>(random.below(kFail)), random, number);
    }
    state_.stage_record(next_record(number));
    state_.commit();
  }

  void act(Action action, Random& random, uint64_t number) {
    const auto index = static_cast<uint32_t>(random.below(kGeometry.refs_max));
    switch (action) {
      case kSwap:
        return swap(index, number);
      case kTwoWrites:
        write(index, random, number);
        return write(index, random, number);
      case kWrite:
        return write(index, random, number);
      case kPoison:
        return state_.stage_ref(index, {RefState::kPoisoned, word(number), 0, 0, 101, 0});
      case kSequence:
        return grow(static_cast<uint32_t>(random.below(kGeometry.sequences_max)), number);
      case kFail:
        return fail(index, random, number);
      case kActions:
        break;
    }
    DJINN_ASSERT(false);
  }

  // Writes the spare half of a ref's place, from the bytes of the valid half, and points there.
  void swap(uint32_t index, uint64_t number) {
    const RefEntry old = state_.ref(index);
    const uint64_t first = 2 * uint64_t{index} * kRefBytes;
    const bool is_live = old.state == RefState::kLive;
    const uint64_t spare = is_live && old.offset == first ? first + kRefBytes : first;
    for (uint64_t i = 0; i < kRefBytes; ++i) {
      const auto before = is_live ? extent_[old.offset + i] : std::byte{0};
      extent_[spare + i] = mixed(before, number);
      if (i % 256 == 0) faults_.hit();
    }
    state_.stage_ref(index, {RefState::kLive, word(number), spare, kRefBytes, 0, 0});
  }

  // Overwrites a random range of a live ref in place. It is saved as two, at once.
  void write(uint32_t index, Random& random, uint64_t number) {
    const RefEntry ref = state_.ref(index);
    if (ref.state != RefState::kLive) return swap(index, number);
    const uint64_t begin = random.below(kRefBytes - 1);
    const uint64_t bytes = 1 + random.below(kRefBytes - begin);
    const uint64_t target = ref.offset + begin;
    const uint64_t part = bytes / 2;
    const std::array ranges{UndoEntry{target, saved_, part},
                            UndoEntry{target + part, saved_ + part, bytes - part}};
    saved_ += bytes;
    DJINN_ASSERT(state_.save_for_undo(undo_extent(extent_), ranges).ok());
    for (uint64_t i = 0; i < bytes; ++i) {
      extent_[target + i] = mixed(extent_[target + i], number);
      if (i % 256 == 0) faults_.hit();
    }
  }

  void grow(uint32_t index, uint64_t number) {
    SequenceEntry entry = state_.sequence(index);
    entry.generation = entry.generation == 0 ? word(number) : entry.generation;
    entry.rows = 2;
    entry.length = entry.length * 3 + number;
    entry.padding[number % kRowsMax] += word(number);
    state_.stage_sequence(index, entry);
  }

  // A run that fails half-way leaves nothing, and poisons in a step of its own.
  void fail(uint32_t index, Random& random, uint64_t number) {
    write(index, random, number);
    write(index, random, number);
    grow(0, number);
    state_.stage_ref(index, {RefState::kPoisoned, 999, 0, 0, 999, 0});
    DJINN_ASSERT(state_.roll_back(undo_extent(extent_)).ok());
    saved_ = kSavedOffset;
    state_.begin();
    state_.stage_ref(index, {RefState::kPoisoned, word(number), 0, 0, 102, 0});
  }

  StepRecord next_record(uint64_t number) const {
    StepRecord record = state_.record();
    const bool ends = number % kStepsOfRun == 0;
    record.kind = ends ? StepKind::kDone : StepKind::kToken;
    record.completed += ends ? 1 : 0;
    record.run = record.completed + 1;
    record.generated = record.generated * 7 + number;
    record.random_offset += number;
    record.error_text.fill(static_cast<char>('a' + number));
    return record;
  }

  static std::byte mixed(std::byte before, uint64_t number) {
    return static_cast<std::byte>(std::to_integer<uint64_t>(before) * 31 + number);
  }
  static uint32_t word(uint64_t number) { return static_cast<uint32_t>(number); }

  uint64_t seed_;
  SessionState& state_;
  std::span<std::byte> extent_;
  FaultPoints& faults_;
  uint64_t saved_ = 0;
};

// --- processes that die

enum class End { kFinished, kKilled, kOther };

// body runs in a child, over shared memory, and may die in it.
End in_child(const std::function<void()>& body) {
  const pid_t child = ::fork();
  DJINN_ASSERT(child >= 0);
  if (child == 0) {
    body();
    ::_exit(0);
  }
  int status = 0;
  DJINN_ASSERT(::waitpid(child, &status, 0) == child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return End::kFinished;
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL ? End::kKilled : End::kOther;
}

// A worker's life: it opens, recovers, goes on. Dies at hit `at` of what it does after recovery.
End work_until(const Memory& memory, uint64_t seed, uint64_t at) {
  return in_child([&] {
    FaultPoints none;
    SessionState recovering = memory.open(none);
    DJINN_ASSERT(recovering.recover(undo_extent(memory.extent())).ok());
    FaultPoints faults(at);
    SessionState state = memory.open(faults);
    Script(seed, state, memory.extent(), faults).run();
  });
}

End recover_until(const Memory& memory, uint64_t at) {
  return in_child([&] {
    FaultPoints faults(at);
    SessionState state = memory.open(faults);
    DJINN_ASSERT(state.recover(undo_extent(memory.extent())).ok());
  });
}

Snapshot recovered(const Memory& memory) {
  FaultPoints none;
  SessionState state = memory.open(none);
  EXPECT_TRUE(state.recover(undo_extent(memory.extent())));
  return snapshot(state, memory.extent());
}

// The undisturbed run: how the session looks after each step, and every byte at the end.
struct Reference {
  std::map<uint64_t, Snapshot> after;
  std::vector<std::byte> extent;
  uint64_t hits = 0;
};

Reference undisturbed(uint64_t seed) {
  Private session;
  Reference reference;
  const auto note = [&] {
    Snapshot now = snapshot(session.state, session.extent);
    reference.after[now.step] = std::move(now);
  };
  note();
  Script(seed, session.state, session.extent, session.faults).run(note);
  reference.extent.assign(session.extent.begin(), session.extent.end());
  reference.hits = session.faults.passed();
  return reference;
}

void expect_at_a_step(const Reference& reference, const Snapshot& found) {
  ASSERT_TRUE(reference.after.contains(found.step));
  ASSERT_EQ(found, reference.after.at(found.step));
}

void expect_finishes(const Reference& reference, const Memory& memory, uint64_t seed) {
  ASSERT_EQ(work_until(memory, seed, 0), End::kFinished);
  FaultPoints none;
  ASSERT_EQ(snapshot(memory.open(none), memory.extent()), reference.after.at(Script::kSteps));
  ASSERT_TRUE(std::ranges::equal(memory.extent(), reference.extent));
}

// Recovery itself dies at every point, each time over the same remains; whoever recovers after that
// finds the same step.
void expect_recovery_is_idempotent(const Reference& reference, Memory& memory) {
  const std::vector<std::byte> remains = memory.save();
  End end = End::kKilled;
  for (uint64_t at = 1; end == End::kKilled; ++at) {
    memory.restore(remains);
    end = recover_until(memory, at);
    ASSERT_NE(end, End::kOther);
    ASSERT_NO_FATAL_FAILURE(expect_at_a_step(reference, recovered(memory)));
  }
}

class SessionStateDeath : public testing::TestWithParam<uint64_t> {};

TEST_P(SessionStateDeath, dying_between_any_two_writes_loses_the_open_step_and_nothing_else) {
  const Reference reference = undisturbed(GetParam());
  for (uint64_t at = 1; at <= reference.hits; ++at) {
    SCOPED_TRACE(testing::Message() << "dies at hit " << at << " of " << reference.hits);
    Memory memory;
    ASSERT_EQ(work_until(memory, GetParam(), at), End::kKilled);
    ASSERT_NO_FATAL_FAILURE(expect_recovery_is_idempotent(reference, memory));
    ASSERT_NO_FATAL_FAILURE(expect_at_a_step(reference, recovered(memory)));
    ASSERT_NO_FATAL_FAILURE(expect_finishes(reference, memory, GetParam()));
  }
}

#if defined(__SANITIZE_ADDRESS__)
// A fork copies the page tables of the shadow memory too; one script shows what a sanitizer can
// see.
INSTANTIATE_TEST_SUITE_P(Seeds, SessionStateDeath, testing::Values(1));
#else
INSTANTIATE_TEST_SUITE_P(Seeds, SessionStateDeath, testing::Values(1, 2, 3));
#endif

TEST(SessionState, a_session_whose_workers_die_again_and_again_gets_to_its_end) {
  for (uint64_t seed = 10; seed < 20; ++seed) {
    const Reference reference = undisturbed(seed);
    Random random(seed);
    Memory memory;
    uint64_t step = 0;
    for (End end = End::kKilled; end != End::kFinished;) {
      end = work_until(memory, seed, 1 + random.below(reference.hits / 4));
      ASSERT_NE(end, End::kOther);
      const Snapshot found = recovered(memory);
      ASSERT_NO_FATAL_FAILURE(expect_at_a_step(reference, found));
      ASSERT_GE(found.step, step) << "a committed step was lost";
      step = found.step;
    }
    ASSERT_NO_FATAL_FAILURE(expect_finishes(reference, memory, seed));
  }
}

TEST(SessionState, the_script_does_everything_that_can_be_done) {
  // Guards the tests above: a script without live refs or roll-backs would prove little.
  const Reference reference = undisturbed(1);
  EXPECT_EQ(reference.after.size(), Script::kSteps + 1);
  EXPECT_GT(reference.hits, 200u);
  for (uint64_t step = 1; step <= Script::kSteps; ++step) {
    EXPECT_NE(reference.after.at(step).parts, reference.after.at(step - 1).parts);
  }
}

// --- one step

RefEntry live(uint32_t generation) {
  return {RefState::kLive, generation, 64, 64, 0, 0};
}

TEST(SessionState, what_is_staged_is_invisible_until_the_commit_and_then_all_of_it_is_there) {
  Private s;
  s.state.begin();
  s.state.stage_ref(1, live(7));
  s.state.stage_sequence(0, {.generation = 1, .rows = 2, .length = 3});
  StepRecord record;
  record.completed = 5;
  s.state.stage_record(record);
  EXPECT_EQ(s.state.ref(1).state, RefState::kFree);
  EXPECT_EQ(s.state.sequence(0).length, 0u);
  EXPECT_EQ(s.state.record().completed, 0u);
  s.state.commit();
  EXPECT_EQ(s.state.step(), 1u);
  EXPECT_EQ(s.state.ref(1).generation, 7u);
  EXPECT_EQ(s.state.sequence(0).length, 3u);
  EXPECT_EQ(s.state.record().completed, 5u);
}

TEST(SessionState, the_last_of_several_stagings_in_a_step_counts) {
  Private s;
  s.state.begin();
  s.state.stage_ref(0, live(1));
  s.state.commit();
  s.state.begin();
  for (uint32_t generation = 2; generation < 6; ++generation) {
    s.state.stage_ref(0, live(generation));
    EXPECT_EQ(s.state.ref(0).generation, 1u) << "the committed copy was overwritten";
  }
  s.state.commit();
  EXPECT_EQ(s.state.ref(0).generation, 5u);
}

TEST(SessionState, an_entry_that_was_left_alone_for_many_steps_is_still_valid) {
  Private s;
  s.state.begin();
  s.state.stage_ref(0, live(1));
  s.state.commit();
  for (int i = 0; i < 10; ++i) {
    s.state.begin();
    s.state.stage_ref(1, live(2));
    s.state.commit();
  }
  EXPECT_EQ(s.state.ref(0).generation, 1u);
}

TEST(SessionState, the_pages_of_all_refs_are_those_at_once_and_the_rest) {
  constexpr StateGeometry kMany{1000, 2};
  std::vector<std::byte> bytes(state_bytes(kMany));
  ASSERT_TRUE(SessionState::format(bytes, kMany).ok());
  FaultPoints faults;
  const SessionState state = SessionState::open(bytes, kMany, faults).value();
  const auto rest = state.ref_pages(kRefsAtOnce, kMany.refs_max);
  EXPECT_LE(rest.data(), bytes.data() + state_bytes_at_once(kMany));
  EXPECT_EQ(rest.data() + rest.size(), bytes.data() + bytes.size());
  EXPECT_LE(state_bytes_at_once(kGeometry), state_bytes(kGeometry));
}

TEST(SessionState, entries_behind_the_last_one_staged_are_not_looked_at) {
  Memory memory;
  FaultPoints faults;
  SessionState state = memory.open(faults);
  EXPECT_EQ(state.refs_touched(), 0u);
  state.begin();
  state.stage_ref(2, {RefState::kLive, 1, 0, 8, 0, 0});
  state.stage_ref(1, {RefState::kLive, 1, 8, 8, 0, 0});
  state.commit();
  EXPECT_EQ(state.refs_touched(), 3u);
  EXPECT_EQ(state.ref(0).state, RefState::kFree);
  EXPECT_EQ(state.ref(3).state, RefState::kFree);
  SessionState again = memory.open(faults);
  ASSERT_TRUE(again.recover(undo_extent(memory.extent())).ok());
  EXPECT_EQ(again.refs_touched(), 3u);
  EXPECT_EQ(again.ref(2).bytes, 8u);
}

TEST(SessionState, a_step_that_is_given_up_leaves_the_session_as_it_was) {
  Private s;
  s.state.begin();
  s.state.stage_ref(0, live(1));
  s.state.commit();
  const Snapshot before = snapshot(s.state, s.extent);
  s.state.begin();
  ASSERT_TRUE(s.save({{64, 8192, 64}}));
  memset(s.extent.data() + 64, 0xaa, 64);
  s.state.stage_ref(0, live(2));
  s.state.stage_sequence(1, {.generation = 9, .rows = 9, .length = 9});
  ASSERT_TRUE(s.state.roll_back(undo_extent(s.extent)));
  EXPECT_EQ(snapshot(s.state, s.extent), before);
  s.state.begin();
  s.state.commit();
  EXPECT_EQ(s.state.ref(0).generation, 1u) << "a staged copy came back to life";
  EXPECT_EQ(s.state.sequence(1).generation, 0u);
}

TEST(SessionState, overlapping_ranges_are_restored_to_their_oldest_bytes) {
  Private s;
  for (size_t i = 0; i < 16; ++i) s.extent[i] = static_cast<std::byte>(i);
  const std::vector<std::byte> before(s.extent.begin(), s.extent.begin() + 16);
  s.state.begin();
  ASSERT_TRUE(s.save({{0, 8192, 10}}));
  memset(s.extent.data(), 0xaa, 10);
  ASSERT_TRUE(s.save({{5, 8202, 10}}));
  memset(s.extent.data() + 5, 0xbb, 10);
  ASSERT_TRUE(s.state.roll_back(undo_extent(s.extent)));
  EXPECT_TRUE(std::equal(before.begin(), before.end(), s.extent.begin()));
}

TEST(SessionState, a_step_takes_as_many_undo_ranges_as_promised_and_no_more) {
  Private s;
  s.state.begin();
  for (uint32_t i = 0; i < kUndoEntriesMax; ++i) {
    ASSERT_TRUE(s.save({{i, 8192 + i, 1}}));
  }
  EXPECT_EQ(s.save({{0, 9000, 1}}).error().code, ErrorCode::kLimitExceeded);
  s.state.commit();
  s.state.begin();
  EXPECT_TRUE(s.save({{0, 9000, 1}})) << "a commit empties the log";
}

TEST(SessionState, of_more_ranges_than_a_step_takes_none_is_saved) {
  Private s;
  s.state.begin();
  ASSERT_TRUE(s.save({{0, 8192, 1}}));
  s.extent[0] = std::byte{5};
  s.extent[9000] = std::byte{6};
  const std::vector<UndoEntry> ranges(kUndoEntriesMax, {0, 9000, 1});
  EXPECT_EQ(s.save(ranges).error().code, ErrorCode::kLimitExceeded);
  EXPECT_EQ(s.extent[9000], std::byte{6});
  ASSERT_TRUE(s.state.roll_back(undo_extent(s.extent)));
  EXPECT_EQ(s.extent[0], std::byte{0}) << "the one before is still in the log";
}

TEST(SessionState, recovery_does_not_undo_a_committed_step) {
  Private s;
  s.state.begin();
  ASSERT_TRUE(s.save({{0, 8192, 1}}));
  s.extent[0] = std::byte{5};
  s.state.commit();
  ASSERT_TRUE(s.state.recover(undo_extent(s.extent)));
  EXPECT_EQ(s.extent[0], std::byte{5});
}

// --- in flight, publication, progress

TEST(SessionState, a_submission_is_in_flight_from_pick_up_to_the_commit_that_completes_it) {
  Private s;
  const std::vector<std::byte> descriptor(64, std::byte{1}), block(1000, std::byte{2});
  EXPECT_FALSE(s.state.in_flight());
  s.state.pick_up(0, descriptor, block);
  ASSERT_TRUE(s.state.in_flight());
  EXPECT_TRUE(std::ranges::equal(s.state.in_flight()->descriptor, descriptor));
  EXPECT_TRUE(std::ranges::equal(s.state.in_flight()->block, block));
  StepRecord record;
  record.kind = StepKind::kToken;
  s.state.begin();
  s.state.stage_record(record);
  s.state.commit();
  EXPECT_TRUE(s.state.in_flight()) << "a token does not complete a generation";
  record.completed = 1;
  s.state.begin();
  s.state.stage_record(record);
  EXPECT_TRUE(s.state.in_flight());
  s.state.commit();
  EXPECT_FALSE(s.state.in_flight());
}

TEST(SessionState, the_largest_and_the_smallest_submission_fit) {
  Private s;
  const std::vector<std::byte> block(kInFlightBytesMax, std::byte{3});
  s.state.begin();
  s.state.stage_ref(0, live(1));
  s.state.commit();
  s.state.pick_up(0, std::vector<std::byte>(64), block);
  EXPECT_TRUE(std::ranges::equal(s.state.in_flight()->block, block));
  EXPECT_EQ(s.state.ref(0).generation, 1u) << "the block ran over the refs";
  StepRecord record;
  record.completed = 1;
  s.state.begin();
  s.state.stage_record(record);
  s.state.commit();
  s.state.pick_up(1, std::vector<std::byte>(64), {});
  EXPECT_TRUE(s.state.in_flight()->block.empty());
}

TEST(SessionState, progress_tells_the_step_and_whether_one_runs) {
  Private s;
  const auto progress = [&] {
    return read_progress(s.memory.state().first(kStateHeadBytes)).value();
  };
  EXPECT_EQ(progress().running_step, 0u);
  s.state.begin();
  EXPECT_EQ(progress().commit, 0u);
  EXPECT_EQ(progress().running_step, 1u);
  s.state.commit();
  EXPECT_EQ(progress().commit, 1u);
  EXPECT_EQ(progress().running_step, 0u);
}

TEST(SessionState, a_step_that_is_suspended_does_not_run_and_is_undone_all_the_same) {
  Private s;
  const auto running = [&] {
    return read_progress(s.memory.state().first(kStateHeadBytes))->running_step;
  };
  s.state.begin();
  const std::array range{UndoEntry{0, 8192, 100}};
  const std::byte before = s.memory.extent()[7];
  ASSERT_TRUE(s.state.save_for_undo(undo_extent(s.memory.extent()), range));
  s.memory.extent()[7] = ~before;
  s.state.suspend();
  EXPECT_EQ(running(), 0u);
  s.state.resume();
  EXPECT_EQ(running(), 1u);
  EXPECT_EQ(s.memory.extent()[7], ~before);
  s.state.suspend();
  ASSERT_TRUE(s.state.recover(undo_extent(s.memory.extent())));  // the next worker
  EXPECT_EQ(s.memory.extent()[7], before);
  s.state.begin();
  s.state.commit();
}

TEST(SessionState, a_step_that_was_left_is_undone_all_the_same) {
  Private s;
  s.state.begin();
  s.state.stage_ref(0, live(1));
  leave_step(s.memory.state().first(kStateHeadBytes));
  EXPECT_EQ(read_progress(s.memory.state().first(kStateHeadBytes))->running_step, 0u);
  ASSERT_TRUE(s.state.recover(undo_extent(s.memory.extent())));
  s.state.begin();
  s.state.commit();
  EXPECT_EQ(s.state.ref(0).state, RefState::kFree);
}

// Also between two steps of it, when none runs.
TEST(SessionState, progress_tells_whether_a_submission_is_in_flight) {
  Private s;
  const auto in_flight = [&] {
    return read_progress(s.memory.state().first(kStateHeadBytes)).value().in_flight;
  };
  const auto step = [&](uint64_t completed) {
    StepRecord record;
    record.completed = completed;
    s.state.begin();
    s.state.stage_record(record);
    s.state.commit();
  };
  EXPECT_FALSE(in_flight());
  s.state.pick_up(0, std::vector<std::byte>(64), {});
  EXPECT_TRUE(in_flight());
  step(0);
  EXPECT_TRUE(in_flight());
  step(1);
  EXPECT_FALSE(in_flight());
}

TEST(SessionState, counts_add_up_over_workers_and_are_no_part_of_a_step) {
  const Memory memory;
  FaultPoints none;
  RunCounts more{1, 2, 3, 4, 5, 6, 7, 8, 3};
  memory.open(none).count(more);
  more.last_tier = 0;  // nothing computed
  SessionState next = memory.open(none);
  next.count(more);
  const RunCounts counts = read_progress(memory.state().first(kStateHeadBytes))->counts;
  EXPECT_EQ(counts.graphs, 2u);
  EXPECT_EQ(counts.failed, 8u);
  EXPECT_EQ(counts.plan_misses, 12u);
  EXPECT_EQ(counts.bytes_out, 16u);
  EXPECT_EQ(counts.last_tier, 3u);
  EXPECT_EQ(next.step(), 0u);
}

TEST(SessionState, publication_is_remembered_beside_the_steps) {
  Private s;
  s.state.set_completions_published(11);
  s.state.set_step_published(12);
  ASSERT_TRUE(s.state.recover(undo_extent(s.extent)));
  EXPECT_EQ(s.state.completions_published(), 11u);
  EXPECT_EQ(s.state.step_published(), 12u);
}

// --- a state extent that a worker of ours did not leave like this

TEST(SessionState, memory_that_is_no_state_extent_is_refused) {
  FaultPoints faults;
  const Memory memory;
  const auto code = [&](std::span<std::byte> bytes, const StateGeometry& geometry) {
    const auto state = SessionState::open(bytes, geometry, faults);
    return state ? ErrorCode::kOk : state.error().code;
  };
  EXPECT_EQ(code(memory.state(), kGeometry), ErrorCode::kOk);
  EXPECT_EQ(code(memory.state(), {3, 2}), ErrorCode::kMalformed);
  EXPECT_EQ(code(memory.state(), {4, 1}), ErrorCode::kMalformed);
  EXPECT_EQ(code(memory.state().first(4096), kGeometry), ErrorCode::kMalformed);
  memory.state()[0] ^= std::byte{1};
  EXPECT_EQ(code(memory.state(), kGeometry), ErrorCode::kMalformed);
  EXPECT_EQ(SessionState::format(memory.state().first(4096), kGeometry).error().code,
            ErrorCode::kInvalidArgument);
}

TEST(SessionState, a_head_that_is_no_head_tells_no_progress) {
  std::vector<std::byte> head(kStateHeadBytes);
  EXPECT_EQ(read_progress(head).error().code, ErrorCode::kMalformed);
  EXPECT_EQ(read_progress(std::span(head).first(100)).error().code, ErrorCode::kMalformed);
}

TEST(SessionState, an_undo_range_outside_the_extent_is_refused_and_writes_nothing_there) {
  Private s;
  s.state.begin();
  ASSERT_TRUE(s.save({{4096, 8192, 4096}}));
  // The session's extent is smaller now than the log believes.
  EXPECT_EQ(s.state.recover(undo_extent(s.extent.first(6000))).error().code, ErrorCode::kMalformed);
  EXPECT_EQ(s.state.recover(undo_extent(s.extent.first(9000))).error().code, ErrorCode::kMalformed);
  EXPECT_TRUE(s.state.recover(undo_extent(s.extent)));
}

TEST(SessionState, an_undo_range_over_what_was_saved_of_it_is_refused) {
  Private s;
  s.state.begin();
  ASSERT_TRUE(s.save({{4096, 6000, 4096}}));
  EXPECT_EQ(s.state.recover(undo_extent(s.extent)).error().code, ErrorCode::kMalformed);
}

TEST(SessionState, a_copy_that_fails_is_told_and_the_range_is_not_in_the_log) {
  Private s;
  s.state.begin();
  const UndoExtent broken{s.extent.size(), [](std::span<const ExtentCopy>) -> Status {
                            return Error{ErrorCode::kInternal, "A test made this copy fail."};
                          }};
  EXPECT_FALSE(s.state.save_for_undo(broken, std::array{UndoEntry{0, 8192, 10}}));
  EXPECT_TRUE(s.state.roll_back(broken)) << "there is nothing to copy back";
  s.state.begin();
  ASSERT_TRUE(s.save({{0, 8192, 10}}));
  memset(s.extent.data(), 0xaa, 10);
  EXPECT_FALSE(s.state.roll_back(broken));
  EXPECT_TRUE(s.state.roll_back(undo_extent(s.extent))) << "again";
  EXPECT_EQ(s.extent[0], std::byte{0});
}

TEST(SessionState, random_bytes_in_the_extent_are_refused_or_survived) {
  Random random(3);
  for (int i = 0; i < 2000; ++i) {
    Memory memory;
    FaultPoints faults;
    for (int n = 0; n < 8; ++n) {
      const uint64_t at = 16 + random.below(n % 2 == 0 ? 200 : state_bytes(kGeometry) - 16);
      memory.state()[at] = static_cast<std::byte>(random.next());
    }
    auto state = SessionState::open(memory.state(), kGeometry, faults);
    if (!state || !state->recover(undo_extent(memory.extent()))) continue;
    (void)state->in_flight();
    (void)state->record();
    state->begin();
    state->stage_ref(0, live(1));
    state->commit();
    EXPECT_EQ(state->ref(0).generation, 1u);
  }
}

}  // namespace
}  // namespace djinn::gc
