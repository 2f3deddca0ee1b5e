#include "daemon/djinnd/config.h"

#include <fmt/os.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

namespace djinn::daemon {
namespace {

namespace fs = std::filesystem;
using ::testing::EndsWith;
using ::testing::HasSubstr;

class ConfigTest : public ::testing::Test {
 protected:
  ConfigTest() {
    std::string pattern = fs::temp_directory_path() / "djinn-config.XXXXXX";
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  ~ConfigTest() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    fmt::output_file(root_ + path).print("{}", text);
  }
  Options options() {
    const Config config = read_config(root_);
    EXPECT_TRUE(config.is_valid()) << config.problems.front().text;
    Options options;
    apply_config(config, options);
    return options;
  }
  // The only problem.
  ConfigProblem problem() {
    const Config config = read_config(root_);
    EXPECT_EQ(config.problems.size(), 1u);
    return config.problems.empty() ? ConfigProblem() : config.problems.front();
  }

  std::string root_;
};

constexpr const char* kMain = "/etc/djinn/djinnd.conf";
constexpr const char* kVendor = "/usr/lib/djinn/djinnd.conf.d/";
constexpr const char* kLocal = "/etc/djinn/djinnd.conf.d/";

TEST_F(ConfigTest, nothing_written_changes_nothing) {
  EXPECT_EQ(options().threads, Options().threads);
  EXPECT_THAT(show_config(read_config(root_)), HasSubstr("memory.limit = 80%  # standard\n"));
}

TEST_F(ConfigTest, every_setting_is_taken_from_the_main_file) {
  write(kMain,
        "[memory]\nlimit = \"12GiB\"\nsession_quota = \"512 MiB\"\nevict_idle_above = 70\n"
        "evict_all_above = \"90%\"\nspill_after = \"3s\"\nspill_directory = "
        "\"/spill\"\n[lane]\nthreads = 3\n[model]\nkeep_alive = \"forever\"\n"
        "[service]\ndrain_timeout = \"0\"\n[worker]\nhang_timeout = \"2min\"\n");
  const Options found = options();
  EXPECT_EQ(found.memory_bytes, uint64_t{12} << 30);
  EXPECT_EQ(found.session_quota_bytes, uint64_t{512} << 20);
  EXPECT_EQ(found.threads, 3u);
  EXPECT_EQ(found.hang_timeout_ms, 120'000u);
  EXPECT_EQ(found.thresholds, (Thresholds{70, 90}));
  EXPECT_EQ(found.spill_idle_ms, 3000u);
  EXPECT_EQ(found.spill_directory, "/spill");
  EXPECT_EQ(found.keep_alive_ms, ipc::kKeepForever);
  EXPECT_EQ(found.drain_timeout_ms, 0u);
  EXPECT_EQ(read_config(root_).values.size(), settings().size());
}

TEST_F(ConfigTest, drop_ins_come_after_the_main_file_by_name_and_win_key_by_key) {
  write(kMain, "lane.threads = 1\nmemory.limit = \"1GiB\"\n");
  write(std::string(kLocal) + "10-a.conf", "lane.threads = 2\n");
  write(std::string(kVendor) + "20-b.conf", "lane.threads = 4\n");
  write(std::string(kLocal) + "30-c.txt", "lane.threads = 8\n");
  EXPECT_EQ(options().threads, 4u);
  EXPECT_EQ(options().memory_bytes, uint64_t{1} << 30);
  EXPECT_THAT(show_config(read_config(root_)), HasSubstr("20-b.conf:1\n"));
}

TEST_F(ConfigTest, a_local_drop_in_stands_for_the_vendors_of_its_name) {
  write(std::string(kVendor) + "10-a.conf", "lane.threads = 4\n");
  EXPECT_EQ(options().threads, 4u);
  write(std::string(kLocal) + "10-a.conf", "memory.limit = \"50%\"\n");
  EXPECT_EQ(options().threads, 0u);
  EXPECT_GT(options().memory_bytes, 0u);
  write(std::string(kLocal) + "10-a.conf", "");
  EXPECT_EQ(options().memory_bytes, 0u);
  fs::remove(root_ + kLocal + "10-a.conf");
  fs::create_symlink("/dev/null", root_ + kLocal + "10-a.conf");
  EXPECT_EQ(options().threads, 0u);
}

TEST_F(ConfigTest, an_unknown_key_is_a_warning_that_names_file_line_and_the_nearest_key) {
  write(kMain, "[lane]\n\ntreads = 3\n");
  const ConfigProblem found = problem();
  EXPECT_FALSE(found.is_error);
  EXPECT_THAT(found.text, EndsWith("djinnd.conf:3: warning: lane.treads is no key; it is ignored; "
                                   "did you mean lane.threads?"));
  write(kMain, "colour = \"blue\"\n");
  EXPECT_THAT(problem().text, EndsWith("colour is no key; it is ignored"));
}

TEST_F(ConfigTest, a_wrong_value_is_an_error_that_says_what_to_write) {
  for (const char* const text :
       {"memory.limit = \"12 parsecs\"", "memory.limit = 0", "memory.limit = \"101%\"",
        "memory.limit = \"99999999999TiB\"", "memory.session_quota = true", "lane.threads = -1",
        "lane.threads = 1025", "worker.hang_timeout = 5", "worker.hang_timeout = \"1d\"",
        "model.keep_alive = \"never\"", "service.drain_timeout = \"2h\"",
        "memory.evict_idle_above = 0", "memory.evict_all_above = \"101%\"",
        "memory = 3.5\nmemory = 4"}) {
    write(kMain, text);
    EXPECT_THAT(problem().text, HasSubstr("djinnd.conf:")) << text;
    EXPECT_TRUE(problem().is_error) << text;
  }
  write(kMain, "worker.hang_timeout = \"1d\"");
  EXPECT_THAT(problem().text,
              EndsWith("djinnd.conf:1: error: worker.hang_timeout: write a time from \"100ms\" to "
                       "\"60min\""));
}

TEST_F(ConfigTest, a_directory_in_place_of_a_file_is_an_error) {
  fs::create_directories(root_ + kMain);
  EXPECT_TRUE(problem().is_error);
}

TEST_F(ConfigTest, standards_are_legal_values_or_words) {
  for (const Setting& setting : settings()) {
    Options nowhere;
    const bool is_a_word = setting.key == "lane.threads" || setting.key == "memory.spill_directory";
    EXPECT_EQ(setting.apply(setting.standard, nowhere).ok(), !is_a_word) << setting.key;
  }
}

}  // namespace
}  // namespace djinn::daemon
