// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/host/kernel_store.h"

#include <fmt/os.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <iterator>
#include <optional>
#include <string>

#include "daemon/djinnd/loop/loop.h"
#include "daemon/djinnd/loop/proc_files.h"

namespace djinn::daemon {
namespace {

namespace fs = std::filesystem;

class KernelStoreTest : public ::testing::Test {
 protected:
  KernelStoreTest() {
    char directory[] = "/tmp/kernel-store-XXXXXX";
    directory_ = ::mkdtemp(directory);
  }
  ~KernelStoreTest() override { fs::remove_all(directory_); }

  static KernelStore::Key key() { return {"A CPU", IsaLevel::kAvx2, 2, "1.0-abc"}; }
  static KernelTable some_table(uint32_t rate) {
    KernelTable table;
    table.read_mbs = rate;
    table.products[0] = {2 * rate, rate};
    return table;
  }
  // What a djinnd that starts finds.
  std::optional<KernelTable> found(const KernelStore::Key& of) {
    Loop loop;
    WorkQueue work(loop, "test");
    KernelStore store(work, cache(), of);
    store.read();
    return store.table() != nullptr ? std::optional(*store.table()) : std::nullopt;
  }
  // One that had nothing, or nothing that counts, and whose worker measured this.
  void keep(const KernelTable& table) {
    Loop loop;
    WorkQueue work(loop, "test");  // it does what is left when it ends
    KernelStore store(work, cache(), key());
    store.take(key().level, table);
  }
  std::string cache() const { return directory_ + "/cache/djinn"; }
  std::string path() const { return cache() + "/kernels-avx2-2"; }
  void write(const std::string& text) const { fmt::output_file(path()).print("{}", text); }

  std::string directory_;
};

TEST_F(KernelStoreTest, a_table_that_was_measured_is_the_next_djinnds) {
  EXPECT_EQ(found(key()), std::nullopt);
  keep(some_table(1000));
  EXPECT_EQ(found(key()), some_table(1000));
  EXPECT_EQ(std::distance(fs::directory_iterator(cache()), fs::directory_iterator()), 1);
}

TEST_F(KernelStoreTest, what_was_taken_first_stays) {
  Loop loop;
  WorkQueue work(loop, "test");
  KernelStore store(work, "", key());
  store.read();
  EXPECT_EQ(store.table(), nullptr);
  store.take(key().level, some_table(1000));
  store.take(key().level, some_table(2000));
  store.take(IsaLevel::kBase, some_table(3000));
  EXPECT_EQ(store.level(), key().level);
  ASSERT_NE(store.table(), nullptr);
  EXPECT_EQ(*store.table(), some_table(1000));
}

TEST_F(KernelStoreTest, a_table_of_another_processor_or_build_or_level_counts_for_nothing) {
  keep(some_table(1000));
  KernelStore::Key other = key();
  other.cpu = "Another";
  EXPECT_EQ(found(other), std::nullopt);
  other = key();
  other.build = "1.0-abd";
  EXPECT_EQ(found(other), std::nullopt);
  other = key();
  other.level = IsaLevel::kBase;
  EXPECT_EQ(found(other), std::nullopt);
  other = key();
  other.threads = 3;
  EXPECT_EQ(found(other), std::nullopt);
}

// Such as tiles, which the kernel gives to one process and not to another.
TEST_F(KernelStoreTest, the_first_worker_says_whose_table_it_is_and_not_djinnds_processor) {
  keep(some_table(1000));
  KernelTable measured;
  measured.read_mbs = 5;
  {
    Loop loop;
    WorkQueue work(loop, "test");
    KernelStore store(work, cache(), key());
    store.read();
    EXPECT_EQ(*store.table(), some_table(1000));
    store.take(IsaLevel::kBase, measured);
    EXPECT_EQ(*store.table(), measured);
    EXPECT_EQ(store.level(), IsaLevel::kBase);
  }
  Loop loop;
  WorkQueue work(loop, "test");
  KernelStore next(work, cache(), key());
  next.read();
  ASSERT_NE(next.table(), nullptr) << "measured once a host";
  EXPECT_EQ(*next.table(), measured);
  EXPECT_EQ(next.level(), IsaLevel::kBase);
}

TEST_F(KernelStoreTest, a_damaged_file_counts_for_nothing_and_is_replaced) {
  keep(some_table(1000));
  const std::string whole = read_proc_file(path().c_str());
  for (size_t bytes = 0; bytes < whole.size(); bytes += 7) {
    write(whole.substr(0, bytes));
    ASSERT_EQ(found(key()), std::nullopt) << bytes;
  }
  for (const std::string& text : {whole.substr(0, whole.size() - 1), whole + whole, whole + "\n",
                                  std::string(100'000, 'x')}) {
    write(text);
    EXPECT_EQ(found(key()), std::nullopt) << text.size();
  }
  keep(some_table(2000));
  EXPECT_EQ(found(key()), some_table(2000));
}

TEST_F(KernelStoreTest, a_file_that_another_user_made_counts_for_nothing) {
  if (::geteuid() != 0) GTEST_SKIP() << "it takes root to make one";
  keep(some_table(1000));
  ASSERT_EQ(::chown(path().c_str(), 65534, 65534), 0);
  EXPECT_EQ(found(key()), std::nullopt);
  keep(some_table(2000));
  EXPECT_EQ(found(key()), some_table(2000));
}

// A directory in its place, a link to nowhere.
TEST_F(KernelStoreTest, what_is_no_file_counts_for_nothing) {
  fs::create_directories(path());
  EXPECT_EQ(found(key()), std::nullopt);
  keep(some_table(1000));
  EXPECT_EQ(found(key()), std::nullopt);
  fs::remove(path());
  fs::create_symlink("nowhere", path());
  EXPECT_EQ(found(key()), std::nullopt);
  keep(some_table(1000));
  EXPECT_EQ(found(key()), some_table(1000));
}

}  // namespace
}  // namespace djinn::daemon
