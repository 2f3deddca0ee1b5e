// SPDX-License-Identifier: Apache-2.0

// A process may die, and a disk be full, at each step of each verb. Afterwards no blob is a part of
// one, no name is lost, and nothing stays that no name needs.

#include <errno.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <set>
#include <string>

#include "daemon/store/store.h"
#include "daemon/store/store_for_tests.h"

namespace djinn::store {
namespace {

constexpr int kSurvived = 0;
constexpr int kFailed = 1;
constexpr int kDied = 17;

enum class Fault { kDeath, kFullDisk };

// Fails its Nth step, having done half of it where that can be halved.
class FaultyBlobDisk final : public BlobDisk {
 public:
  FaultyBlobDisk(Fault fault, int step) : fault_(fault), left_(step) {}

  Status write(const std::string& path, std::string_view bytes, Mode mode) override {
    if (!is_next()) return BlobDisk::write(path, bytes, mode);
    (void)BlobDisk::write(path, bytes.substr(0, bytes.size() / 2), mode);
    return fail();
  }
  Status make_folder(const std::string& path, Mode mode) override {
    return is_next() ? fail() : BlobDisk::make_folder(path, mode);
  }
  Status rename(const std::string& from, const std::string& to, Existing existing) override {
    return is_next() ? fail() : BlobDisk::rename(from, to, existing);
  }
  Status sync_folder(const std::string& path) override {
    return is_next() ? fail() : BlobDisk::sync_folder(path);
  }
  Result<Fd> make_unnamed(const std::string& folder) override {
    if (is_next()) return fail().error();
    return BlobDisk::make_unnamed(folder);
  }
  Status reserve(const Fd& file, uint64_t bytes) override {
    return is_next() ? fail() : BlobDisk::reserve(file, bytes);
  }
  Status copy(const Fd& from, const Fd& to, uint64_t bytes) override {
    if (!is_next()) return BlobDisk::copy(from, to, bytes);
    (void)BlobDisk::copy(from, to, bytes / 2);
    return fail();
  }
  Status seal(const Fd& file) override { return is_next() ? fail() : BlobDisk::seal(file); }
  Status link(const Fd& file, const std::string& path) override {
    return is_next() ? fail() : BlobDisk::link(file, path);
  }
  Status remove(const std::string& path) override {
    return is_next() ? fail() : BlobDisk::remove(path);
  }
  Status distrust(const Fd& blob) override { return is_next() ? fail() : BlobDisk::distrust(blob); }

 private:
  bool is_next() { return left_-- == 0; }
  Status fail() {
    if (fault_ == Fault::kDeath) ::_exit(kDied);
    return system_error("write", ENOSPC);
  }

  Fault fault_;
  int left_;
};

const Contents kOld = {{"model.safetensors", "shared weights"}, {"config.json", "{}"}};
const Contents kNew = {{"model.safetensors", "shared weights"}, {"config.json", "{\"new\": 1}"}};

class StoreCrashes : public testing::TestWithParam<Fault> {
 protected:
  using Verb = std::function<Status(BlobDisk& disk, Store& store)>;

  Status run(BlobDisk& disk, const Verb& verb) {
    DJINN_TRY(Store store, Store::open(disk, clock_, place_.store()));
    return verb(disk, store);
  }
  // Runs the verb in a process of its own, with a fault at that step. Whether there was such a
  // step.
  bool runs_into(int step, const Verb& verb) {
    const pid_t pid = ::fork();
    EXPECT_GE(pid, 0);
    if (pid == 0) {
      FaultyBlobDisk disk(GetParam(), step);
      ::_exit(run(disk, verb) ? kSurvived : kFailed);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status));
    const int expected = GetParam() == Fault::kDeath ? kDied : kFailed;
    EXPECT_TRUE(WEXITSTATUS(status) == kSurvived || WEXITSTATUS(status) == expected);
    return WEXITSTATUS(status) != kSurvived;
  }
  void succeed(const Verb& verb) {
    const Status done = run(disk_, verb);
    ASSERT_TRUE(done.ok()) << done.error().message;
  }
  // For each step of the verb: the state that `given` makes, the fault, what holds always, and what
  // `then` expects.
  void at_each_step(const Verb& given, const Verb& verb,
                    const std::function<void(Store&, bool has_failed)>& then, int steps_min) {
    int step = 0;
    for (bool has_failed = true; has_failed; ++step) {
      std::filesystem::remove_all(place_.store());
      if (given) succeed(given);
      has_failed = runs_into(step, verb);
      SCOPED_TRACE(step);
      auto opened = Store::open(disk_, clock_, place_.store());
      ASSERT_TRUE(opened.ok()) << opened.error().message;
      expect_whole(*opened);
      then(*opened, has_failed);
      expect_whole(*opened);
    }
    EXPECT_GT(step, steps_min);
  }
  // Every name has its files, every blob its bytes, and after a collection nothing else is there.
  void expect_whole(Store& store) {
    (void)place_.whole_blobs();
    const auto all = store.list();
    ASSERT_TRUE(all.ok());
    EXPECT_TRUE(all->damaged.empty());
    std::set<Digest> needed;
    for (const Record& record : all->records) {
      const auto damaged = store.verify(record);
      EXPECT_TRUE(damaged.ok() && damaged->empty()) << record.name.text();
      for (const File& file : record.files) needed.insert(file.digest);
    }
    const auto collected = store.collect(0);
    ASSERT_TRUE(collected.ok()) << collected.error().message;
    EXPECT_EQ(place_.whole_blobs(), needed);
    size_t names = 0;
    for (const auto& entry : std::filesystem::directory_iterator(place_.names())) {
      EXPECT_FALSE(entry.path().filename().string().starts_with('.'));
      ++names;
    }
    EXPECT_EQ(names, all->records.size());
  }
  Verb importing(std::string name, const Contents& contents,
                 Existing existing = Existing::kRefused) {
    return [this, name, &contents, existing](BlobDisk& disk, Store& store) {
      return import_model(disk, store, place_, name, contents, existing);
    };
  }
  static bool has(Store& store, std::string_view name) {
    return store.record_of(*Name::parse(name)).ok();
  }

  PlaceForTests place_;
  SystemClock clock_;
  BlobDisk disk_;
};

TEST_P(StoreCrashes, of_a_founding_there_is_what_the_next_opening_completes) {
  at_each_step(
      nullptr, [](BlobDisk&, Store&) { return Status(); },
      [&](Store& store, bool) {
        EXPECT_TRUE(import_model(disk_, store, place_, "old", kOld).ok());
      },
      8);
}

TEST_P(StoreCrashes, of_an_import_there_is_all_or_nothing_and_the_next_one_succeeds) {
  at_each_step(
      importing("old", kOld), importing("new", kNew),
      [&](Store& store, bool has_failed) {
        EXPECT_TRUE(has(store, "old"));
        EXPECT_TRUE(has_failed || has(store, "new"));
        EXPECT_TRUE(import_model(disk_, store, place_, "new", kNew, Existing::kReplaced).ok());
      },
      16);
}

TEST_P(StoreCrashes, a_name_that_is_replaced_stands_for_the_old_files_or_the_new_ones) {
  at_each_step(
      importing("old", kOld), importing("old", kNew, Existing::kReplaced),
      [&](Store& store, bool has_failed) {
        const auto record = store.record_of(*Name::parse("old"));
        ASSERT_TRUE(record.ok());
        const Digest config = record->files[1].digest;
        EXPECT_TRUE(config == *digest_of(kNew[1].second) ||
                    (has_failed && config == *digest_of(kOld[1].second)));
      },
      16);
}

TEST_P(StoreCrashes, a_removal_and_a_collection_take_what_no_name_needs_and_nothing_else) {
  const Verb both = [&](BlobDisk& disk, Store& store) -> Status {
    DJINN_CHECK(import_model(disk, store, place_, "old", kOld));
    return import_model(disk, store, place_, "new", kNew);
  };
  at_each_step(
      both,
      [](BlobDisk&, Store& store) -> Status {
        DJINN_CHECK(store.remove(*Name::parse("old")));
        const auto collected = store.collect(0);
        return collected ? Status() : collected.error();
      },
      [&](Store& store, bool has_failed) {
        EXPECT_TRUE(has(store, "new"));
        EXPECT_TRUE(has_failed || !has(store, "old"));
      },
      3);
}

TEST_P(StoreCrashes, a_damaged_blob_that_is_mended_is_damaged_or_whole) {
  const File shared{"model.safetensors", *digest_of(kOld[0].second), kOld[0].second.size()};
  const Verb damaged = [&](BlobDisk& disk, Store& store) -> Status {
    DJINN_CHECK(import_model(disk, store, place_, "old", kOld));
    DJINN_TRY(const Blob blob, store.open_file(shared));
    return disk.distrust(blob.file);
  };
  int step = 0;
  for (bool has_failed = true; has_failed; ++step) {
    std::filesystem::remove_all(place_.store());
    succeed(damaged);
    has_failed = runs_into(step, importing("new", kNew));
    (void)place_.whole_blobs();
    succeed(importing("newer", kNew));
    auto opened = Store::open(disk_, clock_, place_.store());
    ASSERT_TRUE(opened.ok());
    expect_whole(*opened);
    EXPECT_TRUE(has(*opened, "old")) << step;
  }
  EXPECT_GT(step, 16);
}

INSTANTIATE_TEST_SUITE_P(Faults, StoreCrashes, testing::Values(Fault::kDeath, Fault::kFullDisk),
                         [](const auto& fault) {
                           return fault.param == Fault::kDeath ? "death" : "full_disk";
                         });

}  // namespace
}  // namespace djinn::store
