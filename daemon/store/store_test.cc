// SPDX-License-Identifier: Apache-2.0

#include "daemon/store/store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <optional>
#include <string>

#include "daemon/store/store_for_tests.h"
#include "kernel/base/clock_for_tests.h"

namespace djinn::store {
namespace {

constexpr uint64_t kHour = 3600;
const Asker kAnn{.owner = Owner::of_user(1000)};
const Asker kBen{.owner = Owner::of_user(1001)};
const Asker kRoot{.owner = Owner::of_user(0), .is_administrator = true};
const Contents kModel = {{"model.safetensors", std::string(3 << 20, 'w')}, {"config.json", "{}"}};

class Stores : public testing::Test {
 protected:
  Stores() { open(); }
  void open() {
    store_.reset();
    auto opened = Store::open(disk_, clock_, place_.store());
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    store_.emplace(*std::move(opened));
  }
  void import_model(std::string_view name, const Contents& contents = kModel) {
    const Status done = store::import_model(disk_, *store_, place_, name, contents);
    ASSERT_TRUE(done.ok()) << done.error().message;
  }
  Record found(std::string_view text) {
    auto record = store_->find(text, kAnn);
    EXPECT_TRUE(record.ok()) << text;
    return record ? *std::move(record) : Record{.name = *Name::parse("none"), .owner = {}};
  }
  ErrorCode code_of(std::string_view text, const Asker& asker) {
    const auto record = store_->find(text, asker);
    return record ? ErrorCode::kOk : record.error().code;
  }
  uint64_t collected(uint64_t grace_s = 0) {
    const auto done = store_->collect(grace_s);
    EXPECT_TRUE(done.ok()) << done.error().message;
    return done ? done->blobs : 0;
  }
  void overwrite(const Digest& digest, std::string_view bytes) {
    ASSERT_EQ(::chmod(place_.blob(digest).c_str(), 0600), 0);
    const Fd file(::open(place_.blob(digest).c_str(), O_WRONLY | O_CLOEXEC));
    EXPECT_TRUE(write_to_disk(file, bytes, "a blob").ok());
  }

  PlaceForTests place_;
  ClockAhead clock_;
  BlobDisk disk_;
  std::optional<Store> store_;
};

TEST_F(Stores, what_was_imported_is_there_after_it_is_opened_anew_and_only_to_be_read) {
  import_model("gpt2");
  open();
  const Record record = found("gpt2");
  ASSERT_EQ(record.files.size(), kModel.size());
  for (size_t i = 0; i < kModel.size(); ++i) {
    EXPECT_EQ(record.files[i].name, kModel[i].first);
    const auto blob = store_->open_file(record.files[i]);
    ASSERT_TRUE(blob.ok()) << blob.error().message;
    EXPECT_EQ(*digest_of_file(blob->file, record.files[i].bytes), *digest_of(kModel[i].second));
    struct stat info {};
    ASSERT_EQ(::fstat(blob->file.get(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0400U);
  }
}

TEST_F(Stores, one_process_at_a_time_has_it) {
  const auto second = Store::open(disk_, clock_, place_.store());
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::kBusy);
}

TEST_F(Stores, another_versions_is_left_as_it_is) {
  import_model("gpt2");
  store_.reset();
  write_file(place_.store() + "/format", "djinn-store 2\n");
  const auto opened = Store::open(disk_, clock_, place_.store());
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(place_.whole_blobs().size(), kModel.size());
}

TEST_F(Stores, two_models_with_the_same_file_have_one_blob_that_stays_for_the_last_of_them) {
  import_model("a");
  import_model("b", {kModel[0]});
  EXPECT_EQ(place_.whole_blobs().size(), 2U);
  ASSERT_TRUE(store_->remove(*Name::parse("a")).ok());
  EXPECT_EQ(collected(), 1U);
  EXPECT_TRUE(store_->open_file(found("b").files[0]).ok());
  ASSERT_TRUE(store_->remove(*Name::parse("b")).ok());
  EXPECT_EQ(collected(), 1U);
  EXPECT_TRUE(place_.whole_blobs().empty());
}

TEST_F(Stores, who_may_not_read_a_name_hears_what_they_would_of_one_that_is_not_there) {
  import_model("gpt2");
  Record record = found("gpt2");
  record.readers = {*Reader::parse("owner")};
  record.aliases = {"hf:openai/gpt2@607a"};
  ASSERT_TRUE(store_->publish(record, Existing::kReplaced).ok());
  EXPECT_EQ(code_of("gpt2", kAnn), ErrorCode::kOk);
  EXPECT_EQ(code_of("gpt2", kRoot), ErrorCode::kOk);
  EXPECT_EQ(code_of("hf:openai/gpt2@607a", kAnn), ErrorCode::kOk);
  EXPECT_EQ(code_of("hf:openai/gpt2@607a", kBen), ErrorCode::kNotFound);
  const auto hidden = store_->find("gpt2", kBen);
  ASSERT_TRUE(store_->remove(record.name).ok());
  const auto gone = store_->find("gpt2", kBen);
  EXPECT_EQ(hidden.error().code, gone.error().code);
  EXPECT_EQ(hidden.error().message, gone.error().message);
}

TEST_F(Stores, an_alias_is_the_last_published_that_one_may_read) {
  import_model("old");
  import_model("new", {kModel[1]});
  for (const auto& [name, since_s] : {std::pair{"old", 1}, std::pair{"new", 2}}) {
    Record record = found(name);
    record.since_s = static_cast<uint64_t>(since_s);
    record.aliases = {"hf:a/b@main"};
    if (since_s == 2) record.readers = {*Reader::parse("owner")};
    ASSERT_TRUE(store_->publish(record, Existing::kReplaced).ok());
  }
  EXPECT_EQ(store_->find("hf:a/b@main", kAnn)->name.text(), "new:latest");
  EXPECT_EQ(store_->find("hf:a/b@main", kBen)->name.text(), "old:latest");
}

TEST_F(Stores, a_name_with_its_contents_never_stands_for_others) {
  import_model("gpt2");
  const std::string pinned = "gpt2@sha256:" + text_of(*contents_of(found("gpt2")));
  EXPECT_EQ(code_of(pinned, kAnn), ErrorCode::kOk);
  ASSERT_TRUE(
      store::import_model(disk_, *store_, place_, "gpt2", {kModel[1]}, Existing::kReplaced).ok());
  EXPECT_EQ(code_of(pinned, kAnn), ErrorCode::kHashMismatch);
  EXPECT_EQ(code_of("gpt2", kAnn), ErrorCode::kOk);
}

TEST_F(Stores, a_name_is_not_replaced_unless_that_is_said_nor_without_its_files) {
  import_model("gpt2");
  Record record = found("gpt2");
  EXPECT_EQ(store_->publish(record).error().code, ErrorCode::kAlreadyExists);
  record.files.push_back({"more.json", *digest_of("more"), 4});
  EXPECT_EQ(store_->publish(record, Existing::kReplaced).error().code, ErrorCode::kNotFound);
  record.files.back() = {"more.json", *digest_of("{}"), 3};  // there, with another size
  EXPECT_EQ(store_->publish(record, Existing::kReplaced).error().code, ErrorCode::kFileChanged);
  EXPECT_EQ(found("gpt2").files.size(), kModel.size());
  EXPECT_EQ(store_->remove(*Name::parse("none")).error().code, ErrorCode::kNotFound);
}

TEST_F(Stores, a_blob_without_a_name_goes_after_its_time_unless_somebody_holds_it) {
  auto imported = import_file(disk_, *store_, place_, "config.json", "{}");
  ASSERT_TRUE(imported.ok());
  clock_.move_on(2 * kHour * kNsPerSecond);
  EXPECT_EQ(collected(kHour), 0U);
  auto blob = store_->open_file(imported->file);
  ASSERT_TRUE(blob.ok());
  imported->held.reset();
  EXPECT_EQ(collected(kHour), 0U);  // opened, it is held as before
  blob->held.reset();
  EXPECT_EQ(collected(3 * kHour), 0U);
  EXPECT_EQ(collected(kHour), 1U);
  // Whoever has a descriptor reads on.
  EXPECT_EQ(*digest_of_file(blob->file, 2), *digest_of("{}"));
}

TEST_F(Stores, while_a_record_cannot_be_read_nothing_is_removed_and_the_others_are_served) {
  import_model("good");
  import_model("bad", {{"config.json", "bad"}});
  ASSERT_TRUE(import_file(disk_, *store_, place_, "a.json", "garbage").ok());
  const auto blobs = place_.whole_blobs();
  const std::string path = place_.names() + "/bad%3Alatest";
  const std::string text = *read_regular_file(path, kRecordBytesMax);
  for (const std::string& hostile : {std::string(), text.substr(0, text.size() / 2), text + text,
                                     std::string(kRecordBytesMax + 1, 'x')}) {
    write_file(path, hostile);
    const auto done = store_->collect(0);
    ASSERT_FALSE(done.ok());
    EXPECT_TRUE(done.error().code == ErrorCode::kMalformed ||
                done.error().code == ErrorCode::kLimitExceeded);
    EXPECT_EQ(place_.whole_blobs(), blobs);
    const auto all = store_->list();
    ASSERT_TRUE(all.ok());
    EXPECT_EQ(all->records.size(), 1U);
    EXPECT_EQ(all->damaged.size(), 1U);
    EXPECT_EQ(code_of("good", kAnn), ErrorCode::kOk);
    EXPECT_EQ(code_of("bad", kAnn), ErrorCode::kNotFound);
    EXPECT_NE(code_of("bad", kRoot), ErrorCode::kNotFound);
  }
  ASSERT_TRUE(store_->remove(*Name::parse("bad")).ok());
  EXPECT_EQ(collected(), 2U);
  write_file(place_.names() + "/no escape", text);
  EXPECT_EQ(store_->collect(0).error().code, ErrorCode::kMalformed);
}

TEST_F(Stores, a_record_under_anothers_name_is_no_record) {
  import_model("mine");
  std::filesystem::copy(place_.names() + "/mine%3Alatest", place_.names() + "/other%3Alatest");
  EXPECT_EQ(store_->record_of(*Name::parse("other")).error().code, ErrorCode::kMalformed);
}

TEST_F(Stores, a_blob_that_somebody_wrote_to_is_not_opened_and_the_next_import_mends_it) {
  import_model("gpt2");
  const Record record = found("gpt2");
  overwrite(record.files[0].digest, "x");
  EXPECT_EQ(store_->open_file(record.files[0]).error().code, ErrorCode::kFileChanged);
  import_model("again");
  EXPECT_TRUE(store_->open_file(record.files[0]).ok());
  EXPECT_EQ(place_.whole_blobs().size(), kModel.size());
}

TEST_F(Stores, verification_finds_bytes_that_rotted_and_they_are_no_longer_opened) {
  import_model("gpt2");
  const Record record = found("gpt2");
  EXPECT_TRUE(store_->verify(record)->empty());
  overwrite(record.files[0].digest, "x");
  const timespec times[2] = {{1, 0}, {kBlobTime, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, place_.blob(record.files[0].digest).c_str(), times, 0), 0);
  ASSERT_TRUE(store_->open_file(record.files[0]).ok());  // nothing but its bytes tells
  std::filesystem::remove(place_.blob(record.files[1].digest));
  EXPECT_EQ(*store_->verify(record), record.files);
  EXPECT_EQ(store_->open_file(record.files[0]).error().code, ErrorCode::kFileChanged);
  EXPECT_EQ(store_->open_file(record.files[1]).error().code, ErrorCode::kNotFound);
  import_model("again");
  EXPECT_TRUE(store_->verify(record)->empty());
}

TEST_F(Stores, what_is_not_its_own_it_leaves_alone) {
  import_model("gpt2");
  const std::string strangers[] = {place_.store() + "/blobs/sha256/README",
                                   place_.store() + "/notes",
                                   place_.blob(found("gpt2").files[0].digest) + ".bak"};
  for (const std::string& path : strangers) write_file(path, "a stranger's");
  EXPECT_EQ(collected(), 0U);
  for (const std::string& path : strangers) EXPECT_TRUE(std::filesystem::exists(path)) << path;
}

TEST_F(Stores, files_of_other_file_systems_are_taken_in_and_what_is_no_file_is_not) {
  const Fd memory(::memfd_create("weights", MFD_CLOEXEC));
  ASSERT_EQ(::write(memory.get(), "abc", 3), 3);
  const Fd to = *store_->make_room(3);
  EXPECT_EQ(*take_in(disk_, memory, to, 3), *digest_of("abc"));
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const Fd in(ends[0]);
  const Fd out(ends[1]);
  EXPECT_EQ(take_in(disk_, in, *store_->make_room(3), 3).error().code, ErrorCode::kInvalidArgument);
}

TEST_F(Stores, a_file_of_another_size_than_was_said_is_refused) {
  for (const uint64_t bytes : {0, 2, 4}) {
    const Fd to = *store_->make_room(bytes);
    EXPECT_EQ(take_in(disk_, place_.file("abc"), to, bytes).error().code, ErrorCode::kFileChanged);
  }
  EXPECT_TRUE(import_file(disk_, *store_, place_, "empty.txt", "").ok());
}

// Somebody writes to the file while it is copied.
class RestlessDisk final : public BlobDisk {
 public:
  Status copy(const Fd& from, const Fd& to, uint64_t bytes) override {
    DJINN_CHECK(BlobDisk::copy(from, to, bytes));
    return ::pwrite(from.get(), "X", 1, 0) == 1 ? Status() : system_error("write", errno);
  }
};

TEST_F(Stores, a_file_that_is_written_to_meanwhile_is_refused) {
  const Fd memory(::memfd_create("weights", MFD_CLOEXEC));
  ASSERT_EQ(::write(memory.get(), "abc", 3), 3);
  const timespec long_ago[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(::futimens(memory.get(), long_ago), 0);
  RestlessDisk disk;
  const Fd to = *store_->make_room(3);
  EXPECT_EQ(take_in(disk, memory, to, 3).error().code, ErrorCode::kFileChanged);
}

}  // namespace
}  // namespace djinn::store
