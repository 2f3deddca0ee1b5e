// SPDX-License-Identifier: Apache-2.0

// The parts of djinnd that decide without doing: tables, limits, identity, turns.
#include <gtest/gtest.h>

#include "daemon/djinnd/front/requests.h"
#include "daemon/djinnd/loop/sealed.h"
#include "daemon/djinnd/memory/memory.h"
#include "daemon/djinnd/models/model.h"
#include "daemon/djinnd/programs/program_table.h"
#include "daemon/djinnd/sessions/session.h"
#include "daemon/djinnd/testing/fake_reclaim.h"
#include "kernel/base/owned_state_for_tests.h"
#include "kernel/gc/session_state.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon {
namespace {

constexpr Owner kAlice = Owner::of_user(1000);
constexpr Owner kBob = Owner::of_user(1001);
constexpr Owner kCarol = Owner::of_user(1002);
constexpr WorkerKey kOfAlice{kAlice, kHostDevice};
constexpr WorkerKey kOfBob{kBob, kHostDevice};
constexpr uint64_t kSecond = 1'000'000'000;

load::FileIdentity settled_file() {
  return {8, 1, 42, 1000, 5 * kSecond, 5 * kSecond, true, 100 * kSecond, {}, true};
}

load::FileIdentity young_file() {
  load::FileIdentity young = settled_file();
  young.read_at_ns = 6 * kSecond;  // ctime is one second old
  return young;
}

ModelKey key_of(Owner domain, const load::FileIdentity& file) {
  return {domain, kHostDevice, {}, {file}};
}

TEST(MayShare, a_model_is_on_one_device) {
  ModelKey there = key_of(kAlice, settled_file());
  there.device = {DeviceKind::kFake, 0};
  EXPECT_FALSE(may_share(key_of(kAlice, settled_file()), there));
  EXPECT_FALSE(may_compare(key_of(kAlice, settled_file()), there));
}

TEST(MayShare, equal_files_and_plans_are_one_model) {
  EXPECT_TRUE(may_share(key_of(kAlice, settled_file()), key_of(kAlice, settled_file())));
  EXPECT_TRUE(may_share(key_of(kAlice, settled_file()), key_of(kBob, settled_file())));
}

TEST(MayShare, another_plan_is_another_model) {
  ModelKey other = key_of(kAlice, settled_file());
  other.plan_hash[0] = std::byte{1};
  EXPECT_FALSE(may_share(key_of(kAlice, settled_file()), other));
}

TEST(MayShare, every_field_of_a_file_counts) {
  const ModelKey resident = key_of(kAlice, settled_file());
  const auto differs = [&](auto change) {
    load::FileIdentity file = settled_file();
    change(file);
    return !may_share(resident, key_of(kAlice, file));
  };
  EXPECT_TRUE(differs([](auto& f) { ++f.device_minor; }));
  EXPECT_TRUE(differs([](auto& f) { ++f.inode; }));
  EXPECT_TRUE(differs([](auto& f) { ++f.bytes; }));
  EXPECT_TRUE(differs([](auto& f) { ++f.mtime_ns; }));
  EXPECT_TRUE(differs([](auto& f) { ++f.ctime_ns; }));
}

TEST(MayShare, between_domains_a_file_must_lie_on_a_disk_and_have_been_settled) {
  load::FileIdentity memory = settled_file();
  memory.on_block_device = false;
  EXPECT_TRUE(may_share(key_of(kAlice, memory), key_of(kAlice, memory)));
  EXPECT_FALSE(may_share(key_of(kAlice, memory), key_of(kBob, memory)));
  const load::FileIdentity young = young_file();
  EXPECT_TRUE(may_share(key_of(kAlice, young), key_of(kAlice, young)));
  EXPECT_FALSE(may_share(key_of(kAlice, young), key_of(kBob, settled_file())));
}

TEST(MayCompare, within_a_domain_what_looks_the_same_and_between_two_what_is_as_large) {
  load::FileIdentity written = settled_file();
  written.unwritten = false;
  EXPECT_FALSE(may_share(key_of(kAlice, written), key_of(kAlice, written)));
  EXPECT_TRUE(may_compare(key_of(kAlice, written), key_of(kAlice, written)));
  load::FileIdentity copy = written;
  ++copy.inode;
  EXPECT_FALSE(may_compare(key_of(kAlice, written), key_of(kAlice, copy)));
  EXPECT_TRUE(may_compare(key_of(kAlice, written), key_of(kBob, copy)));
  ++copy.bytes;
  EXPECT_FALSE(may_compare(key_of(kAlice, written), key_of(kBob, copy)));
  ModelKey other = key_of(kBob, written);
  other.plan_hash[0] = std::byte{1};
  EXPECT_FALSE(may_compare(key_of(kAlice, written), other));
}

TEST(ModelTable, who_was_failed_by_anothers_first_load_joins_no_other_one) {
  ModelTable table;
  Model one;
  one.id = {1};
  one.key() = key_of(kAlice, settled_file());
  Model& model = table.add(std::move(one));
  const ModelKey own = key_of(kAlice, settled_file());
  const ModelKey opened = key_of(kBob, settled_file());
  EXPECT_EQ(table.find_shared(opened), &model);
  EXPECT_EQ(table.find_shared(opened, {}, false), nullptr);
  EXPECT_EQ(table.find_shared(own, {}, false), &model) << "it is the opener's own";
  StateForTests::set(model.phase, ModelPhase::kResident);
  EXPECT_EQ(table.find_shared(opened, {}, false), &model) << "it is there";
}

TEST(ModelTable, young_files_share_what_comes_back_from_them_and_not_what_was_read) {
  ModelTable table;
  Model one;
  one.id = {1};
  one.key() = key_of(kAlice, young_file());
  Model& model = table.add(std::move(one));
  const ModelKey opened = key_of(kAlice, settled_file());
  for (const bool held : {false, true}) {
    if (held) StateForTests::value_of(model.leases)[SessionId{9}] = {1, kAlice};
    for (const ModelPhase read : {ModelPhase::kLoading, ModelPhase::kResident}) {
      StateForTests::set(model.phase, read);
      EXPECT_EQ(table.find_shared(opened), nullptr) << held;
    }
    for (const ModelPhase comes_back : {ModelPhase::kEvicting, ModelPhase::kOnDisk}) {
      StateForTests::set(model.phase, comes_back);
      EXPECT_EQ(table.find_shared(opened), &model) << held;
    }
  }
  model.lost = Error{ErrorCode::kHashMismatch, "They were written in between."};
  EXPECT_EQ(table.find_shared(opened), nullptr);
}

TEST(ModelKey, young_files_settle_when_their_bytes_were_looked_at_again) {
  for (const bool on_block_device : {true, false}) {  // as on btrfs
    load::FileIdentity young = young_file();
    young.on_block_device = on_block_device;
    ModelKey key = key_of(kAlice, young);
    load::FileIdentity later = young;
    later.read_at_ns = 100 * kSecond;
    look_again(key, {later});
    EXPECT_TRUE(load::were_settled(key.files)) << on_block_device;
  }
}

TEST(ModelKey, a_look_at_files_that_changed_or_may_be_written_replaces_none) {
  const auto settles = [](auto change) {
    ModelKey key = key_of(kAlice, young_file());
    load::FileIdentity later = settled_file();
    change(later);
    look_again(key, {later});
    return load::were_settled(key.files);
  };
  EXPECT_TRUE(settles([](auto&) {}));
  EXPECT_FALSE(settles([](auto& file) { file.unwritten = false; }));
  EXPECT_FALSE(settles([](auto& file) { ++file.mtime_ns; }));
}

TEST(ModelTable, files_are_compared_first_with_what_was_read_from_them) {
  ModelTable table;
  load::FileIdentity copy = settled_file();
  for (uint64_t id = 1; id <= 20; ++id) {
    Model model;
    model.id = {id};
    StateForTests::set(model.phase, id == 20 ? ModelPhase::kLoading : ModelPhase::kResident);
    copy.inode = settled_file().inode + id;
    model.key() = key_of(kAlice, copy);
    table.add(std::move(model));
  }
  copy.inode = settled_file().inode + 13;
  EXPECT_EQ(table.find_alike(key_of(kBob, copy), {})->id, ModelId{13});
  EXPECT_NE(table.find_alike(key_of(kBob, copy), {ModelId{13}})->id, ModelId{13});
  copy.inode = settled_file().inode + 20;
  EXPECT_NE(table.find_alike(key_of(kBob, copy), {})->id, ModelId{20}) << "it may load for ever";
  EXPECT_EQ(table.find_alike(key_of(kAlice, copy), {})->id, ModelId{20});
}

TEST(ModelTable, files_that_are_compared_with_a_model_keep_it_from_nothing) {
  ModelTable table;
  Model model;
  model.id = {1};
  StateForTests::set(model.phase, ModelPhase::kResident);
  Model& added = table.add(std::move(model));
  added.compared_by.insert(LoadId{7});
  EXPECT_FALSE(added.in_use());
  EXPECT_EQ(added.use(), ModelUse::kNone);
  EXPECT_EQ(table.evictable(kHostDevice, false).size(), 1u);
}

TEST(MayCompare, memory_that_was_opened_is_no_other_users_model) {
  load::FileIdentity sealed = settled_file();
  sealed.content.emplace();
  EXPECT_TRUE(may_compare(key_of(kAlice, sealed), key_of(kAlice, sealed)));
  EXPECT_FALSE(may_compare(key_of(kBob, settled_file()), key_of(kAlice, sealed)))
      << "it would depend on the other's files";
}

TEST(ModelTable, young_files_do_not_share_what_may_come_back_from_others) {
  ModelTable table;
  Model one;
  one.id = {1};
  StateForTests::set(one.phase, ModelPhase::kOnDisk);
  one.key() = key_of(kAlice, young_file());
  Model& model = table.add(std::move(one));
  const ModelKey opened = key_of(kAlice, settled_file());
  EXPECT_EQ(table.find_shared(opened), &model);
  load::FileIdentity other = settled_file();
  ++other.inode;
  model.add_source(key_of(kBob, other), {}, {}, SessionId{2});
  EXPECT_EQ(table.find_shared(opened), nullptr);
}

// A model of Alice's that others have opened, too.
class Sources : public ::testing::Test {
 protected:
  static Error silent() { return {ErrorCode::kTimeout, {}}; }

  Sources() { model_.key() = key_of(kAlice, settled_file()); }
  void open(Owner user, SessionId session, uint64_t inode = 0) {
    load::FileIdentity file = settled_file();
    file.inode += inode != 0 ? inode : user.number();
    model_.add_source(key_of(user, file), {}, {}, session);
  }
  void wants(Owner user) {
    StateForTests::value_of(model_.mapped)[WorkerKey{user, kHostDevice}].wanted = true;
  }
  // Who is read from now.
  Source& begin() {
    Source* const next = model_.next_source();
    next->load = {++loads_};
    next->silent = next->in_the_way = 0;
    return *next;
  }
  // Looks until it was waited for long enough; nothing if that is never.
  std::optional<uint32_t> looks_at(Source& source, bool silent = true) {
    for (uint32_t looks = 1; looks <= 1000; ++looks) {
      model_.look_at(source, true);
      if (!silent) source.silent = 0;
      if (model_.has_waited_enough_for(source)) return looks;
    }
    return std::nullopt;
  }
  Source& fail_with(ErrorCode code) {
    model_.put_aside(begin(), {code, {}});
    return model_.sources.front();
  }

  Model model_;
  uint64_t loads_ = 0;
};

TEST_F(Sources, everybody_who_opens_a_model_has_one_while_a_session_holds_it_through_that) {
  model_.add_source(key_of(kAlice, settled_file()), {}, {}, SessionId{1});
  EXPECT_EQ(model_.sources.size(), 1u) << "it is the owner's";
  for (uint32_t user = 1001; user <= 1300; ++user) open(Owner::of_user(user), SessionId{user});
  open(kBob, SessionId{2});
  open(kBob, SessionId{3}, 7);
  EXPECT_EQ(model_.sources.size(), 302u);
  model_.forget_sources_of(SessionId{3});
  EXPECT_EQ(model_.sources.size(), 301u);
  model_.forget_sources_of(SessionId{1001});
  EXPECT_EQ(model_.sources.size(), 301u) << "another session of theirs holds it";
  model_.forget_sources_of(SessionId{2});
  model_.forget_sources_of(SessionId{1});
  EXPECT_EQ(model_.sources.size(), 300u);
  EXPECT_EQ(model_.owner(), kAlice);
}

TEST_F(Sources, a_model_is_held_beside_its_owner_while_another_has_a_session_or_awaits_one) {
  StateForTests::value_of(model_.leases)[SessionId{1}] = {1, kAlice};
  EXPECT_FALSE(model_.held_beside(kAlice));
  EXPECT_TRUE(model_.held_beside(kBob));
  StateForTests::value_of(model_.leases)[SessionId{2}] = {1, kBob};
  EXPECT_TRUE(model_.held_beside(kAlice)) << "although their files are forgotten";
  StateForTests::value_of(model_.leases).erase(SessionId{2});
  EXPECT_FALSE(model_.held_beside(kAlice));
  StateForTests::value_of(model_.openers).push_back({{SessionId{3}, 1}, kBob});
  EXPECT_TRUE(model_.held_beside(kAlice));
}

TEST_F(Sources, a_model_is_read_from_the_files_of_who_waits_for_it) {
  open(kBob, SessionId{1});
  open(kCarol, SessionId{2});
  EXPECT_EQ(model_.next_source()->user(), kAlice) << "nobody waits";
  wants(kCarol);
  EXPECT_EQ(begin().user(), kCarol);
}

TEST_F(Sources, each_is_tried_once_in_a_return_and_who_was_silent_comes_last_in_the_next) {
  open(kBob, SessionId{1});
  open(kBob, SessionId{2}, 7);
  open(kCarol, SessionId{3});
  wants(kBob);
  EXPECT_EQ(fail_with(ErrorCode::kTimeout).user(), kAlice);
  EXPECT_EQ(begin().user(), kAlice) << "all of the user's that was silent were tried";
  model_.put_aside(*model_.next_source(), {ErrorCode::kIo, {}});
  model_.put_aside(begin(), {ErrorCode::kIo, {}});
  EXPECT_EQ(model_.next_source(), nullptr);
  model_.end_return();
  EXPECT_EQ(begin().user(), kAlice) << "although Bob waits";
}

TEST_F(Sources, patience_grows_and_has_an_end) {
  open(kBob, SessionId{1});
  uint32_t last = 0;
  for (int round = 0; round < 40; ++round) {
    model_.put_aside(model_.sources.front(), silent());
    EXPECT_GE(model_.sources.front().patience, last);
    last = model_.sources.front().patience;
  }
  EXPECT_GT(last, Source::kPatience);
  EXPECT_EQ(last, Source::kPatienceMax);
  open(kAlice, SessionId{2}, 7);
  EXPECT_EQ(model_.sources.back().patience, last) << "opening it anew does not help";
}

TEST_F(Sources, who_waits_alone_waits_for_their_own_files_as_long_as_it_takes) {
  wants(kAlice);
  Source& own = begin();
  EXPECT_EQ(looks_at(own), std::nullopt);
  wants(kBob);  // whose own files are not what they were
  EXPECT_TRUE(model_.has_waited_enough_for(own)) << "although no other source is left";
}

TEST_F(Sources, silent_files_are_left_for_those_of_others) {
  open(kBob, SessionId{1});
  EXPECT_EQ(looks_at(begin()), Source::kPatience);
  EXPECT_EQ(looks_at(begin(), false), std::nullopt) << "they say something, and nobody waits";
}

TEST_F(Sources, nobody_is_kept_from_their_own_files_by_slow_ones_of_others) {
  open(kBob, SessionId{1});
  wants(kAlice);
  Source& slow = begin();
  EXPECT_EQ(looks_at(slow, false), std::nullopt);
  wants(kBob);
  EXPECT_EQ(looks_at(slow, false), Source::kInTheWay);
  model_.put_aside(slow, silent());
  Source& own = begin();
  EXPECT_EQ(own.user(), kBob);
  EXPECT_EQ(looks_at(own, false), std::nullopt) << "who was tried already is kept from nothing";
}

TEST_F(Sources, only_files_that_are_others_are_forgotten_and_only_then_the_owner_changes) {
  open(kBob, SessionId{1});
  for (const ErrorCode passes : {ErrorCode::kTimeout, ErrorCode::kLoaderLost, ErrorCode::kIo,
                                 ErrorCode::kSystem, ErrorCode::kOutOfMemory}) {
    fail_with(passes);
    fail_with(passes);
    model_.end_return();
    EXPECT_EQ(model_.sources.size(), 2u) << name_of(passes);
    EXPECT_EQ(model_.owner(), kAlice);
  }
  wants(kAlice);
  for (Source& source : model_.sources) source.patience = Source::kPatience;
  fail_with(ErrorCode::kFileChanged);
  EXPECT_EQ(model_.owner(), kBob);
  EXPECT_EQ(model_.sources.size(), 1u);
  fail_with(ErrorCode::kHashMismatch);
  EXPECT_EQ(model_.next_source(), nullptr);
  EXPECT_EQ(model_.owner(), kBob) << "who is asked next time";
}

TEST_F(Sources, what_is_being_read_is_forgotten_when_that_is_over) {
  open(kBob, SessionId{1});
  wants(kBob);
  const LoadId load = begin().load;
  model_.forget_sources_of(SessionId{1});
  EXPECT_NE(model_.source_of(load), nullptr);
  model_.end_return();
  EXPECT_EQ(model_.sources.size(), 1u);
}

TEST(Model, says_why_it_stays_where_it_is) {
  Model model;
  EXPECT_EQ(model.use(), ModelUse::kMoving) << "it is being loaded";
  StateForTests::set(model.phase, ModelPhase::kResident);
  EXPECT_EQ(model.use(), ModelUse::kNone);
  StateForTests::value_of(model.leases)[SessionId{1}] = {1, kAlice};
  EXPECT_EQ(model.use(), ModelUse::kHeld);
  StateForTests::value_of(model.openers).emplace_back();
  EXPECT_EQ(model.use(), ModelUse::kMoving) << "somebody opens it";
}

TEST(ModelTable, idle_models_go_in_the_order_of_their_last_use) {
  ModelTable table;
  for (uint64_t id = 1; id <= 3; ++id) {
    Model model;
    model.id = {id};
    StateForTests::set(model.phase, ModelPhase::kResident);
    table.add(std::move(model));
  }
  table.touch(*table.find(ModelId{1}));
  StateForTests::value_of(table.find(ModelId{2})->leases)[SessionId{9}] = {1, kAlice};
  ASSERT_EQ(table.evictable(kHostDevice, false).size(), 2u);
  EXPECT_EQ(table.evictable(kHostDevice, false)[0]->id.value, 3u);
  StateForTests::value_of(table.find(ModelId{3})->pins).insert(kAlice);
  EXPECT_EQ(table.evictable(kHostDevice, false)[0]->id.value, 1u);
  EXPECT_TRUE(table.evictable(kHostDevice, true).empty()) << "it could not come back";
}

TEST(ModelTable, a_model_that_somebody_opens_gives_way_to_nobody) {
  ModelTable table;
  Model opened;
  opened.id = {1};
  StateForTests::set(opened.phase, ModelPhase::kResident);
  opened.sha256.emplace();
  opened.key().files = {settled_file()};
  opened.sources.front().files = {std::make_shared<const Fd>()};
  StateForTests::value_of(opened.leases)[SessionId{1}] = {1, kAlice};
  table.add(std::move(opened));
  Model& model = *table.find(ModelId{1});
  ASSERT_EQ(table.evictable(kHostDevice, true).size(), 1u) << "it can come back";
  StateForTests::value_of(model.openers).emplace_back();
  EXPECT_TRUE(table.evictable(kHostDevice, true).empty()) << "nobody would ask for it again";
}

TEST(Fingerprint, worker_model_and_every_byte_count) {
  const auto of = [](WorkerKey worker, uint64_t model, std::string_view graph) {
    load::Sha256 hash = *load::Sha256::make();
    EXPECT_TRUE(hash.update(std::as_bytes(std::span(graph))).ok());
    return *fingerprint_of(worker, ModelId{model}, *hash.finish());
  };
  EXPECT_EQ(of(kOfAlice, 2, "graph"), of(kOfAlice, 2, "graph"));
  EXPECT_NE(of(kOfAlice, 2, "graph"), of(kOfBob, 2, "graph"));
  EXPECT_NE(of(kOfAlice, 2, "graph"), of({kAlice, {DeviceKind::kCpu, 1}}, 2, "graph"));
  EXPECT_NE(of(kOfAlice, 2, "graph"), of(kOfAlice, 3, "graph"));
  EXPECT_NE(of(kOfAlice, 2, "graph"), of(kOfAlice, 2, "grapi"));
}

TEST(ProgramTable, only_programs_that_nobody_uses_are_forgotten) {
  ProgramTable table;
  Program program;
  program.id = {1};
  program.worker = kOfAlice;
  StateForTests::set(program.phase, ProgramPhase::kAdmitted);
  program.graph_bytes = ProgramTable::kBytesPerDomain;
  program.users.insert(SessionId{5});
  Program& kept = table.add(std::move(program));
  EXPECT_FALSE(table.has_room(kOfAlice, 1));
  EXPECT_TRUE(table.has_room(kOfBob, 1));
  EXPECT_EQ(table.oldest_unused(kOfAlice), nullptr);
  kept.users.clear();
  EXPECT_EQ(table.oldest_unused(kOfAlice), &kept);
  EXPECT_EQ(table.oldest_unused(kOfBob), nullptr);
}

class LeftOver : public ::testing::Test {
 protected:
  static constexpr uint64_t kHalf = ProgramTable::kBytesUnused / 2;

  Program& add(uint64_t id, WorkerKey worker, uint64_t bytes) {
    Program program;
    program.id = {id};
    program.worker = worker;
    program.fingerprint[0] = static_cast<std::byte>(id);
    StateForTests::set(program.phase, ProgramPhase::kAdmitted);
    program.graph_bytes = bytes;
    return table_.add(std::move(program));
  }

  ProgramTable table_;
};

TEST_F(LeftOver, of_programs_that_nobody_uses_those_that_were_used_last_stay) {
  Program& first = add(1, kOfAlice, kHalf);
  add(2, kOfAlice, kHalf);
  add(3, kOfAlice, kHalf);
  add(4, kOfBob, kHalf);
  table_.touch(first);
  EXPECT_EQ(table_.left_over(kOfAlice), std::vector{ProgramId{2}});
  EXPECT_TRUE(table_.left_over(kOfBob).empty());
}

TEST_F(LeftOver, one_that_is_too_large_leaves_the_room_to_others) {
  add(1, kOfAlice, kHalf);
  add(2, kOfAlice, ProgramTable::kBytesUnused + 1);
  EXPECT_EQ(table_.left_over(kOfAlice), std::vector{ProgramId{2}});
}

TEST_F(LeftOver, all_stay_while_somebody_uses_or_awaits_one) {
  add(1, kOfAlice, kHalf);
  add(2, kOfAlice, kHalf);
  Program& used = add(3, kOfAlice, kHalf);
  used.users.insert(SessionId{5});
  EXPECT_TRUE(table_.left_over(kOfAlice).empty());
  used.users.clear();
  used.waiters.push_back({SessionId{5}, 1});
  EXPECT_TRUE(table_.left_over(kOfAlice).empty());
}

TEST(SequenceSlots, a_slot_tells_its_tenants_apart) {
  SequenceSlots slots;
  const SequenceHandle first = (*slots.make({}))->handle;
  slots.erase(first);
  const SequenceHandle second = (*slots.make({}))->handle;
  EXPECT_EQ(first.index, second.index);
  EXPECT_NE(first.generation, second.generation);
  EXPECT_EQ(slots.find(first).error().code, ErrorCode::kStaleHandle);
  EXPECT_EQ(slots.find({first.index, second.generation + 1}).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(slots.find({limits::kSequences, 1}).error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(slots.find(second).ok());
}
TEST(SequenceSlots, there_are_as_many_as_the_limit_says) {
  SequenceSlots slots;
  for (uint32_t i = 0; i < limits::kSequences; ++i) ASSERT_TRUE(slots.make({}).ok());
  EXPECT_EQ(slots.make({}).error().code, ErrorCode::kLimitExceeded);
}

TEST(Geometry, zeros_and_excesses_are_refused) {
  const ipc::SequenceGeometry good{1, 2, 2, 64, DType::kFloat32, 128};
  EXPECT_TRUE(check_geometry(good).ok());
  ipc::SequenceGeometry none = good;
  none.rows = 0;
  EXPECT_EQ(check_geometry(none).error().code, ErrorCode::kInvalidArgument);
  ipc::SequenceGeometry many = good;
  many.banks = 3;
  EXPECT_EQ(check_geometry(many).error().code, ErrorCode::kInvalidArgument);
  ipc::SequenceGeometry typeless = good;
  typeless.dtype = DType::kInvalid;
  EXPECT_EQ(check_geometry(typeless).error().code, ErrorCode::kInvalidArgument);
  ipc::SequenceGeometry wide = good;
  wide.rows = limits::kRows + 1;
  EXPECT_EQ(check_geometry(wide).error().code, ErrorCode::kLimitExceeded);
}

TEST(Staging, is_rounded_up_to_pages_and_bounded) {
  EXPECT_EQ(*check_staging_bytes(1), 4096u);
  EXPECT_EQ(*check_staging_bytes(4096), 4096u);
  EXPECT_EQ(*check_staging_bytes(limits::kStagingBytesMax), limits::kStagingBytesMax);
  EXPECT_EQ(check_staging_bytes(limits::kStagingBytesMax + 1).error().code,
            ErrorCode::kLimitExceeded);
}

TEST(CheckTurn, breaches_are_told_from_requests) {
  Session session;
  const ipc::ClientRequest hello{1, ipc::Hello{}};
  const ipc::ClientRequest status{2, ipc::GetStatus{}};
  EXPECT_TRUE(check_turn(session, hello, 0).ok());
  EXPECT_FALSE(check_turn(session, status, 0).ok());
  StateForTests::set(session.phase, SessionPhase::kLive);
  EXPECT_FALSE(check_turn(session, hello, 0).ok());
  EXPECT_TRUE(check_turn(session, status, 0).ok());
  EXPECT_FALSE(check_turn(session, status, 1).ok()) << "a descriptor that nobody announced";
  EXPECT_FALSE(check_turn(session, {0, ipc::GetStatus{}}, 0).ok());
  EXPECT_TRUE(check_turn(session, {3, ipc::AddFiles{2}}, 2).ok());
  EXPECT_FALSE(check_turn(session, {3, ipc::AddFiles{2}}, 1).ok());
  session.pending.insert(2);
  EXPECT_FALSE(check_turn(session, status, 0).ok()) << "the number is taken";
  for (uint32_t i = 10; session.pending.size() < limits::kRequestsPending; ++i) {
    session.pending.insert(i);
  }
  EXPECT_FALSE(check_turn(session, {9, ipc::GetStatus{}}, 0).ok());
}

TEST(Sealed, only_memfds_that_nobody_can_change_are_read) {
  const std::string_view text = "content";
  const Fd good = *pal::make_sealed_memfd("test", std::as_bytes(std::span(text)));
  EXPECT_EQ(read_sealed(good, 100, "graph")->size(), text.size());
  EXPECT_EQ(read_sealed(good, 3, "graph").error().code, ErrorCode::kLimitExceeded);
  const Fd open = *pal::make_memfd("test", 8);
  EXPECT_EQ(read_sealed(open, 100, "graph").error().code, ErrorCode::kInvalidArgument);
  const Fd file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(read_sealed(file, 1 << 30, "graph").error().code, ErrorCode::kInvalidArgument);
  const Fd path(::open("/proc/self/exe", O_PATH | O_CLOEXEC));
  EXPECT_EQ(read_sealed(path, 1 << 30, "graph").error().code, ErrorCode::kInvalidArgument);
}

// --- memory

struct Asked {
  std::vector<ErrorCode> answers;
  Memory::Granted note() {
    return [this](const Status& status) {
      answers.push_back(status ? ErrorCode::kOk : status.error().code);
    };
  }
};

constexpr Memory::Holder kSession{vmu::HolderKind::kSession, 1};
constexpr Memory::Holder kOther{vmu::HolderKind::kSession, 2};
constexpr Memory::Holder kModel{vmu::HolderKind::kModel, 3};

TEST(Memory, a_session_meets_its_quota_and_all_meet_the_device) {
  const Quotas quotas;
  Memory memory(kHostDevice, 1000, 400, quotas);
  Asked asked;
  memory.request(kSession, 400, asked.note());
  memory.request(kSession, 1, asked.note());
  memory.request(kOther, 400, asked.note());
  memory.request(kModel, 300, asked.note());
  memory.request(kModel, 200, asked.note());
  EXPECT_EQ(asked.answers, (std::vector{ErrorCode::kOk, ErrorCode::kQuotaExceeded, ErrorCode::kOk,
                                        ErrorCode::kOutOfMemory, ErrorCode::kOk}));
  EXPECT_EQ(memory.held_by(vmu::HolderKind::kSession), 800u);
  EXPECT_EQ(memory.release_all(kSession), 400u);
  EXPECT_EQ(memory.granted_bytes(), 600u);
}

TEST(Memory, a_session_that_is_refused_hears_what_it_holds_itself) {
  const Quotas quotas;
  Memory memory(kHostDevice, 1000, 2000, quotas);
  Asked asked;
  memory.request(kSession, 350, asked.note());
  std::string told;
  const auto note = [&](const Status& status) { told = status ? "" : status.error().message; };
  memory.request(kSession, 700, note);
  EXPECT_TRUE(told.ends_with(" This session itself holds 350 B.")) << told;
  memory.request(kOther, 700, note);
  EXPECT_EQ(told.find("itself"), std::string::npos) << told;
  EXPECT_EQ(memory.own_part_of(kSession), " This session itself holds 350 B.");
  EXPECT_EQ(memory.own_part_of(kOther), "");
}

TEST(Memory, why_there_is_none_fits_the_record_of_a_step) {
  constexpr uint64_t kMebibyte = 1 << 20;
  const Quotas quotas;
  Memory memory(kHostDevice, 1023 * kMebibyte, 9000 * kMebibyte, quotas);
  Asked asked;
  memory.request(kSession, 1022 * kMebibyte + 7, asked.note());
  std::string told;
  const auto note = [&](const Status& status) { told = status ? "" : status.error().message; };
  memory.request(kSession, 1023 * kMebibyte, note);
  EXPECT_TRUE(told.ends_with(" This session itself holds 1022 MiB.")) << told;
  EXPECT_LT(told.size() + 3 * std::string_view("1023 MiB").size(), gc::kErrorTextBytes) << told;
}

TEST(Memory, what_never_fits_is_told_so) {
  const Quotas quotas;
  Memory memory(kHostDevice, 1000, 9000, quotas);
  std::string told;
  const auto note = [&](const Status& status) { told = status ? "" : status.error().message; };
  memory.request(kModel, 1001, note);
  EXPECT_TRUE(told.starts_with("1001 B are needed, which cannot fit in 1000 B")) << told;
  EXPECT_NE(told.find("--memory"), std::string::npos) << told;
}

TEST(Memory, a_request_waits_for_what_is_being_evicted) {
  const Quotas quotas;
  Memory memory(kHostDevice, 1000, 1000, quotas);
  Asked asked;
  memory.request(kModel, 900, asked.note());
  uint64_t evicting = 0;
  testing::FakeReclaim reclaim;
  reclaim.has_room = [&](uint64_t bytes) {
    evicting = bytes;
    return true;
  };
  memory.set_reclaim(reclaim);
  memory.request(kSession, 300, asked.note());
  EXPECT_EQ(asked.answers.size(), 1u);
  EXPECT_EQ(evicting, 200u);
  memory.release_all(kModel);
  EXPECT_EQ(asked.answers, (std::vector{ErrorCode::kOk, ErrorCode::kOk}));
  EXPECT_EQ(memory.held_by(kSession), 300u);
}

TEST(Memory, who_leaves_makes_way_for_those_behind) {
  const Quotas quotas;
  Memory memory(kHostDevice, 1000, 1000, quotas);
  Asked asked;
  Asked small;
  memory.request(kModel, 900, asked.note());
  testing::FakeReclaim reclaim;
  memory.set_reclaim(reclaim);
  memory.request(kSession, 300, asked.note());
  memory.release(kModel, 150);
  memory.request(kOther, 150, small.note());
  EXPECT_TRUE(small.answers.empty()) << "a part of what is free is kept for who waits";
  memory.cancel(kSession);
  EXPECT_EQ(asked.answers, (std::vector{ErrorCode::kOk, ErrorCode::kCancelled}));
  EXPECT_EQ(small.answers, std::vector{ErrorCode::kOk});
}

TEST(Memory, what_one_part_waits_for_is_cancelled_alone) {
  const Quotas quotas;
  Memory memory(kHostDevice, 1000, 1000, quotas);
  Asked group;
  Asked refs;
  memory.request(kModel, 900, group.note());
  testing::FakeReclaim reclaim;
  memory.set_reclaim(reclaim);
  memory.request(kSession, 300, group.note(), 7);
  memory.request(kSession, 200, refs.note());
  memory.cancel(kSession, 7);
  EXPECT_EQ(group.answers, (std::vector{ErrorCode::kOk, ErrorCode::kCancelled}));
  EXPECT_TRUE(refs.answers.empty());
  memory.release_all(kModel);
  EXPECT_EQ(refs.answers, std::vector{ErrorCode::kOk});
}

TEST(Memory, another_quota_holds_for_sessions_that_are_there) {
  const Quotas quotas;
  Memory memory(kHostDevice, 1000, 400, quotas);
  Asked asked;
  memory.request(kSession, 300, asked.note());
  memory.set_session_quota(200);
  memory.request(kSession, 1, asked.note());
  memory.set_session_quota(500);
  memory.request(kSession, 200, asked.note());
  EXPECT_EQ(asked.answers,
            (std::vector{ErrorCode::kOk, ErrorCode::kQuotaExceeded, ErrorCode::kOk}));
}

constexpr Memory::Holder kLane{vmu::HolderKind::kLane, 4};

Quotas alice_may_have(uint64_t bytes) {
  NamedQuota named;
  named.name = "alice";
  named.number = kAlice.user();
  named.quota.memory = Amount{bytes};
  Quotas quotas;
  quotas.set({named}, {});
  return quotas;
}

TEST(Memory, a_users_quota_is_for_all_their_sessions_and_their_lane_together) {
  const Quotas quotas = alice_may_have(500);
  Memory memory(kHostDevice, 1000, 400, quotas);
  memory.charge(kSession, kAlice);
  memory.charge(kOther, kAlice);
  memory.charge(kLane, kAlice);
  Asked alices;
  memory.request(kSession, 300, alices.note());
  memory.request(kOther, 100, alices.note());
  memory.request(kLane, 101, alices.note());
  memory.request(kLane, 100, alices.note());
  EXPECT_EQ(alices.answers, (std::vector{ErrorCode::kOk, ErrorCode::kOk, ErrorCode::kQuotaExceeded,
                                         ErrorCode::kOk}));
  // A slab takes the place of the one before; models are nobody's.
  memory.release(kSession, 50);
  memory.request(kLane, 150, alices.note());
  EXPECT_EQ(alices.answers.back(), ErrorCode::kOk);
  memory.request(kModel, 100, alices.note());
  EXPECT_EQ(alices.answers.back(), ErrorCode::kOk);
  constexpr Memory::Holder kBobs{vmu::HolderKind::kSession, 5};
  Asked bobs;
  memory.charge(kBobs, kBob);
  memory.request(kBobs, 300, bobs.note());
  EXPECT_EQ(bobs.answers, std::vector{ErrorCode::kOk});
}

TEST(Memory, what_lies_aside_counts_for_its_user_and_returns_all_the_same) {
  const Quotas quotas = alice_may_have(500);
  Memory memory(kHostDevice, 1000, 1000, quotas);
  memory.charge(kSession, kAlice);
  memory.charge(kOther, kAlice);
  Asked asked;
  memory.request(kSession, 400, asked.note());
  memory.release(kSession, 400);
  memory.set_aside(kSession, 400);
  EXPECT_EQ(memory.held_by_user(kAlice), 400u);
  memory.request(kOther, 200, asked.note());
  memory.request_return(kSession, 400, asked.note());
  EXPECT_EQ(asked.answers,
            (std::vector{ErrorCode::kOk, ErrorCode::kQuotaExceeded, ErrorCode::kOk}));
  EXPECT_EQ(memory.held_by_user(kAlice), 400u);
  memory.release_all(kSession);
  EXPECT_EQ(memory.held_by_user(kAlice), 0u);
}

TEST(Memory, who_waits_for_their_own_to_leave_is_refused_nothing_and_holds_nobody_up) {
  const Quotas quotas = alice_may_have(500);
  Memory memory(kHostDevice, 1000, 1000, quotas);
  uint64_t leaving = 400;
  testing::FakeReclaim reclaim;
  reclaim.has_room = [](uint64_t) { return false; };
  reclaim.leaving_of = [&](Owner user) { return user == kAlice ? leaving : 0; };
  memory.set_reclaim(reclaim);
  memory.charge(kSession, kAlice);
  memory.charge(kOther, kAlice);
  Asked gone;
  Asked next;
  Asked others;
  memory.request(kSession, 400, gone.note());
  memory.request(kOther, 300, next.note());
  memory.request(kModel, 300, others.note());
  EXPECT_TRUE(next.answers.empty());
  EXPECT_EQ(others.answers, std::vector{ErrorCode::kOk});
  memory.release_all(kSession);
  EXPECT_EQ(next.answers, std::vector{ErrorCode::kOk});
  // Where nothing more comes free, it is refused.
  memory.request(kOther, 300, next.note());
  EXPECT_EQ(next.answers.size(), 1u);
  leaving = 0;
  memory.freed();
  EXPECT_EQ(next.answers.back(), ErrorCode::kQuotaExceeded);
}

TEST(Memory, who_leaves_while_waiting_gets_nothing) {
  const Quotas quotas;
  Memory memory(kHostDevice, 1000, 1000, quotas);
  Asked asked;
  memory.request(kModel, 900, asked.note());
  testing::FakeReclaim reclaim;
  memory.set_reclaim(reclaim);
  memory.request(kSession, 300, asked.note());
  memory.release_all(kSession);
  memory.release_all(kModel);
  EXPECT_EQ(asked.answers, (std::vector{ErrorCode::kOk, ErrorCode::kCancelled}));
  EXPECT_EQ(memory.granted_bytes(), 0u);
}

}  // namespace
}  // namespace djinn::daemon
