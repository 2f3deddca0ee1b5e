// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/host/config.h"

#include <fmt/os.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "ipc/messages.h"

namespace djinn::daemon {
namespace {

namespace fs = std::filesystem;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

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
    const Config config = read_config(root_, UnknownKeys::kIgnored);
    EXPECT_TRUE(config.is_valid()) << config.problems.front().text;
    Options options;
    apply_config(config, options);
    return options;
  }
  // The only problem.
  ConfigProblem problem() {
    const Config config = read_config(root_, UnknownKeys::kIgnored);
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
  EXPECT_THAT(show_config(read_config(root_, UnknownKeys::kIgnored)),
              HasSubstr("memory.limit = 80%  # standard\n"));
}

TEST_F(ConfigTest, every_setting_is_taken_from_the_main_file) {
  write(kMain,
        "devices = [\"cuda:0\"]\n[memory]\nlimit = \"12GiB\"\nsession_quota = \"512 "
        "MiB\"\nevict_idle_above = 70\n"
        "evict_all_above = \"90%\"\nspill_after = \"3s\"\nspill_directory = \"/spill\"\n"
        "spill_limit = \"1GiB\"\npin_quota = \"3GiB\"\n[lane]\nthreads = 3\npolicy = \"fifo\"\n"
        "isa = \"avx2\"\nkernels = \"standard\"\n"
        "numerics = \"fast-only\"\n"
        "[model]\nkeep_alive = \"forever\"\n"
        "[remote]\nconnections_max = 5\nmemory_quota = \"10%\"\nmodels_max = 6\n"
        "pin_quota = \"1GiB\"\nsessions_max = 7\n"
        "[service]\ndrain_timeout = \"0\"\n[store]\nkeep_free = \"20GiB\"\n"
        "[worker]\nhang_timeout = \"2min\"\n");
  const Options found = options();
  EXPECT_EQ(found.memory_bytes, uint64_t{12} << 30);
  EXPECT_EQ(found.session_quota_bytes, uint64_t{512} << 20);
  EXPECT_EQ(found.gpus, (std::vector{DeviceId{DeviceKind::kCuda, 0}}));
  EXPECT_EQ(found.threads, 3u);
  EXPECT_EQ(found.policy, SchedulePolicy::kFifo);
  EXPECT_EQ(found.isa, IsaLevel::kAvx2);
  EXPECT_FALSE(found.measures_kernels);
  EXPECT_EQ(found.numerics, srg::Numerics::kFastOnly);
  EXPECT_EQ(found.hang_timeout_ms, 120'000u);
  EXPECT_EQ(found.thresholds, (Thresholds{70, 90}));
  EXPECT_EQ(found.spill_idle_ms, 3000u);
  EXPECT_EQ(found.spill_directory, "/spill");
  EXPECT_EQ(found.spill_limit_bytes, uint64_t{1} << 30);
  EXPECT_EQ(found.pin_quota, (Amount{uint64_t{3} << 30, false}));
  EXPECT_EQ(found.keep_alive_ms, ipc::kKeepForever);
  EXPECT_EQ(found.drain_timeout_ms, 0u);
  EXPECT_EQ(found.keep_free, (Amount{uint64_t{20} << 30}));
  const Quota of_a_principal{Amount{10, true}, Amount{uint64_t{1} << 30}, 7, 6};
  EXPECT_EQ(found.principal_quota, (PrincipalQuota{of_a_principal, 5}));
  EXPECT_EQ(read_config(root_, UnknownKeys::kIgnored).values.size(), settings().size());
}

TEST_F(ConfigTest, the_quota_of_pins_is_a_share_of_the_limit_or_bytes) {
  write(kMain, "[memory]\npin_quota = \"20%\"\n");
  EXPECT_EQ(options().pin_quota.of(1000), 200u);
  write(kMain, "[memory]\npin_quota = 7\nlimit = 3000000\n");
  EXPECT_EQ(options().pin_quota.of(1000), 7u);
  write(kMain, "");
  EXPECT_EQ(options().pin_quota.of(1000), 500u);
  EXPECT_EQ(with_shares(options(), 1000).spill_limit_bytes, 1000u);
  write(kMain, "memory.pin_quota = \"120%\"\n");
  EXPECT_THAT(problem().text, HasSubstr("memory.pin_quota: write bytes like"));
}

TEST_F(ConfigTest, a_section_says_what_a_user_or_a_group_may_have) {
  write(kMain,
        "[user.root]\nmemory_quota = \"4GiB\"\nsessions_max = 2\nmodels_max = 200\n"
        "[user.\"a.b\"]\npin_quota = \"10%\"\n[group.root]\nmemory_quota = \"25%\"\n");
  write(std::string(kLocal) + "10-a.conf", "user.root.sessions_max = 3\n");
  Config config = read_config(root_, UnknownKeys::kIgnored);
  ASSERT_TRUE(config.is_valid());
  look_up_names(config);
  Options found;
  apply_config(config, found);
  const Quota of_root{Amount{uint64_t{4} << 30, false}, {}, 3, 200};
  EXPECT_THAT(found.quotas, ::testing::UnorderedElementsAre(
                                NamedQuota{false, "root", 0, of_root},
                                NamedQuota{false, "a.b", {}, Quota{{}, Amount{10, true}, {}, {}}},
                                NamedQuota{true, "root", 0, Quota{Amount{25, true}, {}, {}, {}}}));
  EXPECT_THAT(show_config(config),
              HasSubstr("\nuser.root.sessions_max = 3  # " + root_ + kLocal + "10-a.conf:1\n"));
}

TEST_F(ConfigTest, a_line_of_the_map_makes_a_principal_a_user_who_is_looked_up) {
  write(kMain,
        "[remote.map]\n\"spiffe://lab/a.b\" = \"daemon\"\n\"spiffe://lab/gone\" = "
        "\"no-such-user\"\n");
  Config config = read_config(root_, UnknownKeys::kRefused);
  ASSERT_TRUE(config.is_valid());
  look_up_names(config);
  ASSERT_EQ(config.problems.size(), 1u);
  EXPECT_THAT(config.problems[0].text,
              HasSubstr("djinnd.conf:3: warning: remote.map.spiffe://lab/gone: there is no user"));
  Options found;
  apply_config(config, found);
  const MappedUser& known = found.principal_map.at("spiffe://lab/a.b");
  EXPECT_EQ(known.name, "daemon");
  EXPECT_EQ(known.number, user_named("daemon"));
  EXPECT_FALSE(known.groups.empty());
  EXPECT_FALSE(found.principal_map.at("spiffe://lab/gone").number.has_value());
  EXPECT_TRUE(reloads("remote.map.spiffe://lab/a.b"));
}

TEST_F(ConfigTest, a_line_of_the_map_names_a_client_and_no_root) {
  for (const char* const wrong :
       {"ann = \"daemon\"", "\"spiffe://lab/djinn-gate/box\" = \"daemon\"",
        "\"spiffe://lab/ann\" = \"root\"", "\"spiffe://lab/ann\" = \"\"",
        // It is no other principal's, whose name goes on with what stands in the table.
        "\"spiffe://lab/ann\".user = \"daemon\"",
        "[remote.map.\"spiffe://lab/ann\"]\nuser = \"daemon\""}) {
    write(kMain, fmt::format("[remote.map]\n{}\n", wrong));
    EXPECT_TRUE(problem().is_error) << wrong;
    EXPECT_THAT(problem().text, HasSubstr("write ")) << wrong;
  }
}

TEST_F(ConfigTest, a_section_says_how_much_of_another_device_is_granted) {
  write(kMain, "[device.\"fake:0\"]\nlimit = \"25%\"\n[device.\"fake:1\"]\nlimit = \"2MiB\"\n");
  Options found = options();
  EXPECT_EQ(limit_of(found, kTestDevice, 64 << 20).value(), (64u << 20) / 100 * 25);
  EXPECT_EQ(limit_of(found, {DeviceKind::kFake, 1}, 64 << 20).value(), 2u << 20);
  EXPECT_EQ(limit_of(found, {DeviceKind::kFake, 2}, 64 << 20).value(), 64u << 20);
  EXPECT_EQ(found.memory_bytes, 0u) << "the host's is as it was";
  const Result<uint64_t> too_much = limit_of(found, {DeviceKind::kFake, 1}, 1 << 20);
  ASSERT_FALSE(too_much.ok());
  EXPECT_THAT(too_much.error().message, HasSubstr("the device has 1.0 MiB"));
  EXPECT_THAT(show_config(read_config(root_, UnknownKeys::kRefused)),
              HasSubstr("device.fake:0.limit = 25%  # "));
  EXPECT_FALSE(reloads("device.fake:0.limit"));
  const auto shown = settings_in_force(Options(), found);
  EXPECT_TRUE(std::ranges::any_of(shown, [](const ipc::SettingReport& one) {
    return one.key == "device.fake:0.limit" && one.value == "25%" && !one.reloads;
  })) << "that of the start";

  found.user_mode = true;
  found.runtime_dir = "/nowhere";
  found.test_device_bytes = 64 << 20;
  ASSERT_TRUE(fill_in(found).ok());
  EXPECT_EQ(found.test_device_bytes, (64u << 20) / 100 * 25);
  ASSERT_EQ(found.config_warnings.size(), 1u);
  EXPECT_THAT(found.config_warnings[0], HasSubstr("device.fake:1.limit is ignored"));
  EXPECT_TRUE(found.written.contains("device.fake:0.limit"));
  EXPECT_FALSE(found.written.contains("device.fake:1.limit")) << "it is not in force";
}

TEST_F(ConfigTest, a_limit_of_a_device_that_cannot_be_is_told_with_what_to_write) {
  const std::map<std::string, std::string> mistakes{
      {"[device.\"cpu:0\"]\nlimit = \"1GiB\"\n", "the host's is memory.limit"},
      {"[device.gpu]\nlimit = \"1GiB\"\n", "named like [device.\"cuda:0\"]"},
      {"[device.\"fake:0\"]\nquota = \"1GiB\"\n", "is written as limit"},
      {"[device.\"fake:0\"]\nlimit = \"lots\"\n", "write bytes like"},
      {"[device.\"fake:0\"]\nlimit = 5\n", "at least \"1MiB\""},
  };
  for (const auto& [text, told] : mistakes) {
    write(kMain, text);
    const Config config = read_config(root_, UnknownKeys::kRefused);
    ASSERT_EQ(config.problems.size(), 1u) << text;
    EXPECT_TRUE(config.problems[0].is_error);
    EXPECT_THAT(config.problems[0].text, HasSubstr(told)) << text;
  }
}

TEST_F(ConfigTest, a_limit_of_a_device_of_another_kind_is_ignored_by_a_start_and_by_a_reload) {
  for (const UnknownKeys unknown : {UnknownKeys::kRefused, UnknownKeys::kIgnored}) {
    for (const std::string device : {"tpu:0"}) {
      const std::string section = "[device.\"" + device + "\"]\n";
      write(kMain, section + "limit = \"1GiB\"\n");
      const Config config = read_config(root_, unknown);
      ASSERT_EQ(config.problems.size(), 1u);
      EXPECT_FALSE(config.problems[0].is_error);
      EXPECT_THAT(config.problems[0].text,
                  HasSubstr("djinnd.conf:2: warning: device." + device +
                            ".limit is ignored: djinnd grants no memory of such a device"));
      write(kMain, section + "limit = \"lots\"\n");
      EXPECT_FALSE(read_config(root_, unknown).is_valid());
    }
  }
}

TEST_F(ConfigTest, gpus_are_a_list_of_names_each_once) {
  const auto gpus_of = [&](const std::string& text) {
    write(kMain, text);
    Options found;
    const Config config = read_config(root_, UnknownKeys::kRefused);
    if (config.is_valid()) apply_config(config, found);
    return config.is_valid() ? std::optional(found.gpus) : std::nullopt;
  };
  const DeviceId first{DeviceKind::kCuda, 0}, second{DeviceKind::kCuda, 1};
  EXPECT_EQ(gpus_of(""), std::vector<DeviceId>{});
  EXPECT_EQ(gpus_of("devices = []\n"), std::vector<DeviceId>{});
  EXPECT_EQ(gpus_of("devices = \"cuda:1\"\n"), std::vector{second});
  EXPECT_EQ(gpus_of("devices = [\"cuda:1\", \"cuda:0\"]\n"), (std::vector{second, first}));
  for (const char* wrong : {"[\"cuda:0\", \"cuda:0\"]", "[\"cpu:0\"]", "[\"cuda:16\"]",
                            "[\"cuda\"]", "[0]", "[\"\"]", "[\"cuda:0,\"]", "\"\"", "true"}) {
    EXPECT_EQ(gpus_of(std::string("devices = ") + wrong + "\n"), std::nullopt) << wrong;
  }
  EXPECT_EQ(gpus_of("lane.threads = [\"4\"]\n"), std::nullopt) << "no other key has a list";
}

TEST_F(ConfigTest, a_gpus_limit_holds_where_the_gpu_is_named_and_else_is_ignored_with_a_warning) {
  const auto read = [&](const std::string& devices) {
    write(kMain, devices + "[device.\"cuda:0\"]\nlimit = \"25%\"\n");
    Options found = options();
    EXPECT_TRUE(fill_in(found).ok());
    return found;
  };
  const DeviceId gpu{DeviceKind::kCuda, 0};
  const Options named = read("devices = [\"cuda:0\"]\n");
  EXPECT_EQ(named.config_warnings, std::vector<std::string>{});
  EXPECT_EQ(limit_of(named, gpu, 400).value(), 100u);
  EXPECT_TRUE(named.written.contains("device.cuda:0.limit"));
  const Options other = read("devices = [\"cuda:1\"]\n");
  ASSERT_EQ(other.config_warnings.size(), 1u);
  EXPECT_THAT(other.config_warnings[0], HasSubstr("device.cuda:0.limit is ignored"));
  EXPECT_FALSE(other.written.contains("device.cuda:0.limit"));
}

TEST_F(ConfigTest, a_warning_names_what_was_written_as_it_was_given) {
  write(kMain, "[memory]\nlimit = \"999TiB\"\n");
  Options by_file = options();
  ASSERT_TRUE(fill_in(by_file).ok());
  ASSERT_EQ(by_file.setting_warnings.size(), 1u);
  EXPECT_THAT(by_file.setting_warnings[0], HasSubstr("memory.limit is 999TiB"));
  EXPECT_THAT(by_file.setting_warnings[0], EndsWith("a share like \"80%\"."));
  std::vector<std::string> words{"djinnd", "--memory", "998TiB"};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  int exit_code = 0;
  auto by_option = parse_options(static_cast<int>(argv.size()), argv.data(), exit_code, options());
  ASSERT_TRUE(by_option && fill_in(*by_option).ok());
  ASSERT_EQ(by_option->setting_warnings.size(), 1u);
  EXPECT_THAT(by_option->setting_warnings[0], HasSubstr("--memory is 998TiB"));
  EXPECT_THAT(by_option->setting_warnings[0], EndsWith("a share like 80%."));
}

TEST_F(ConfigTest, a_limit_or_a_place_that_will_hardly_do_is_a_warning) {
  write(kMain,
        fmt::format("[memory]\nlimit = \"999TiB\"\nspill_directory = \"{}/file/x\"\n", root_));
  fmt::output_file(root_ + "/file").print("");
  Config config = read_config(root_, UnknownKeys::kRefused);
  check_against_machine(config);
  check_spill_directory(config);
  ASSERT_EQ(config.problems.size(), 2u);
  EXPECT_TRUE(config.is_valid());
  EXPECT_THAT(config.problems[0].text, HasSubstr("memory.limit is 999TiB, and the machine has"));
  EXPECT_THAT(config.problems[1].text, HasSubstr("file/x, where no file can be made"));
  Options found;
  apply_config(config, found);
  EXPECT_EQ(found.setting_warnings.size(), 2u);
  EXPECT_THAT(found.config_warnings, ::testing::IsEmpty());

  write(kMain, fmt::format("[memory]\nlimit = \"1MiB\"\nspill_directory = \"{}/new/x\"\n", root_));
  config = read_config(root_, UnknownKeys::kRefused);
  check_against_machine(config);
  check_spill_directory(config);
  EXPECT_THAT(config.problems, ::testing::IsEmpty()) << "djinnd makes the directory";
}

TEST_F(ConfigTest, a_section_of_nobody_is_a_warning_and_a_number_stands_for_itself) {
  write(kMain, "[user.nobody-of-that-name]\nsessions_max = 1\n[group.4242]\nsessions_max = 1\n");
  Config config = read_config(root_, UnknownKeys::kIgnored);
  EXPECT_THAT(config.problems, ::testing::IsEmpty());
  look_up_names(config);
  ASSERT_EQ(config.problems.size(), 1u);
  EXPECT_FALSE(config.problems[0].is_error);
  EXPECT_THAT(config.problems[0].text,
              HasSubstr("djinnd.conf:2: warning: user.nobody-of-that-name: there is no user "
                        "nobody-of-that-name, or the system does not know it now"));
  Options found;
  apply_config(config, found);
  EXPECT_THAT(found.quotas, ::testing::Contains(NamedQuota{true, "4242", 4242, {{}, {}, 1, {}}}));
}

TEST_F(ConfigTest, what_is_no_key_of_a_section_is_told_with_the_nearest) {
  write(kMain, "[user.root]\nmemory_qouta = 1\n");
  EXPECT_THAT(problem().text, EndsWith("user.root.memory_qouta is no key; it is ignored; did you "
                                       "mean memory_quota?"));
  write(kMain, "[group.root]\ncolour = 1\n");
  EXPECT_THAT(problem().text,
              EndsWith("there are memory_quota, models_max, pin_quota and sessions_max"));
  for (const char* const elsewhere :
       {"memory.user_quota = 1", "[users.root]\nmemory_quota = 1", "user.root = 1"}) {
    write(kMain, elsewhere);
    EXPECT_THAT(problem().text, HasSubstr("in a section [user.NAME]")) << elsewhere;
    EXPECT_FALSE(problem().is_error);
  }
  for (const char* const wrong :
       {"memory_quota = \"much\"", "sessions_max = 0", "sessions_max = 129", "models_max = 0",
        "models_max = 257", "pin_quota = true"}) {
    write(kMain, fmt::format("[user.root]\n{}\n", wrong));
    EXPECT_THAT(problem().text, HasSubstr("djinnd.conf:2: error: user.root.")) << wrong;
    EXPECT_TRUE(problem().is_error) << wrong;
  }
}

TEST_F(ConfigTest, drop_ins_come_after_the_main_file_by_name_and_win_key_by_key) {
  write(kMain, "lane.threads = 1\nmemory.limit = \"1GiB\"\n");
  write(std::string(kLocal) + "10-a.conf", "lane.threads = 2\n");
  write(std::string(kVendor) + "20-b.conf", "lane.threads = 4\n");
  write(std::string(kLocal) + "30-c.txt", "lane.threads = 8\n");
  EXPECT_EQ(options().threads, 4u);
  EXPECT_EQ(options().memory_bytes, uint64_t{1} << 30);
  EXPECT_THAT(show_config(read_config(root_, UnknownKeys::kIgnored)), HasSubstr("20-b.conf:1\n"));
}

TEST_F(ConfigTest, a_level_of_instructions_that_nobody_knows_is_refused_with_those_there_are) {
  write(kMain, "[lane]\nisa = \"avx2\"\n");
  EXPECT_EQ(options().isa, IsaLevel::kAvx2);
  write(kMain, "lane.isa = \"AVX\"");
  EXPECT_THAT(problem().text,
              EndsWith("error: lane.isa: write one of \"base\", \"avx2\", \"avx512\", "
                       "\"avx512-bf16\", \"amx\", or \"the best that the machine has\""));
}

TEST_F(ConfigTest, a_level_that_the_machine_lacks_is_warned_of) {
  EXPECT_EQ(fault_of_isa("avx2", IsaLevel::kAvx2, IsaLevel::kAvx2), "");
  EXPECT_THAT(fault_of_isa("avx512", IsaLevel::kAvx512, IsaLevel::kAvx2),
              HasSubstr("lane.isa is avx512, and the machine has avx2"));
}

TEST_F(ConfigTest, a_policy_is_named_as_workers_know_it) {
  write(kMain, "[lane]\npolicy = \"fifo\"\n");
  EXPECT_EQ(options().policy, SchedulePolicy::kFifo);
  write(kMain, "lane.policy = \"Fair\"");
  EXPECT_THAT(problem().text, EndsWith("error: lane.policy: write \"fair\" or \"fifo\""));
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
  write(kMain, "keep_alive = 3\n");
  EXPECT_THAT(problem().text, EndsWith("did you mean model.keep_alive?"));
  write(kMain, "colour = \"blue\"\n");
  EXPECT_THAT(problem().text, EndsWith("colour is no key; it is ignored"));
}

TEST_F(ConfigTest, an_unknown_key_is_an_error_where_somebody_waits_for_the_answer) {
  for (const auto& [text, told] : std::map<std::string, std::string>{
           {"[memory]\nsesion_quota = \"1MiB\"\n",
            "djinnd.conf:2: error: memory.sesion_quota is no key; did you mean "
            "memory.session_quota?"},
           {"[user.root]\nmemory_qouta = 1\n",
            "djinnd.conf:2: error: user.root.memory_qouta is no key; did you mean memory_quota?"},
           {"colour = 1\n", "djinnd.conf:1: error: colour is no key"}}) {
    write(kMain, text);
    const Config config = read_config(root_, UnknownKeys::kRefused);
    EXPECT_FALSE(config.is_valid());
    ASSERT_EQ(config.problems.size(), 1u);
    EXPECT_THAT(config.problems[0].text, EndsWith(told));
    Options options;
    apply_config(read_config(root_, UnknownKeys::kIgnored), options);
    ASSERT_EQ(options.config_warnings.size(), 1u) << "a start goes on, and tells of it";
    EXPECT_THAT(options.config_warnings[0], HasSubstr(": warning: "));
  }
}

TEST_F(ConfigTest, a_root_that_is_no_directory_is_an_error) {
  for (const std::string& root : {root_ + "/nope", root_ + "/file"}) {
    fmt::output_file(root_ + "/file").print("");
    const Config config = read_config(root, UnknownKeys::kIgnored);
    ASSERT_EQ(config.problems.size(), 1u);
    EXPECT_FALSE(config.is_valid());
    EXPECT_THAT(config.problems[0].text, HasSubstr(root + ": error: there is no such directory"));
  }
}

TEST_F(ConfigTest, who_writes_preload_is_told_of_the_unit) {
  for (const char* const text :
       {"[model]\npreload = \"/m\"\n", "[model]\npreload = [\"/m\"]\n", "preload = \"/m\"\n"}) {
    write(kMain, text);
    EXPECT_FALSE(problem().is_error) << text;
    EXPECT_THAT(problem().text, HasSubstr("preload is no key; it is ignored; a model that is"));
    EXPECT_THAT(problem().text, EndsWith("djinn-load@PATH.service, see djinnd(8)"));
  }
}

TEST_F(ConfigTest, a_limit_without_its_unit_is_an_error_that_says_so) {
  for (const char* const text : {"64", "\"64\""}) {
    write(kMain, fmt::format("[memory]\nlimit = {}\n", text));
    EXPECT_TRUE(problem().is_error) << text;
    EXPECT_THAT(problem().text, EndsWith("djinnd.conf:2: error: memory.limit: write at least "
                                         "\"1MiB\"; 64 is 64 bytes, and not \"64GiB\""));
  }
  write(kMain, "[memory]\nlimit = \"64KiB\"\n");
  EXPECT_THAT(problem().text, EndsWith("memory.limit: write at least \"1MiB\""));
  write(kMain, "[memory]\nlimit = 1048576\n");
  EXPECT_EQ(options().memory_bytes, uint64_t{1} << 20);
}

TEST_F(ConfigTest, a_value_with_a_unit_and_without_quotes_is_told_to_have_some) {
  const std::map<std::string, std::string> lines = {{"limit = 64MiB  # for tests", "\"64MiB\""},
                                                    {"limit = 80%", "\"80%\""},
                                                    {"limit=5 GiB", "\"5 GiB\""}};
  for (const auto& [line, quoted] : lines) {
    write(kMain, "[memory]\n" + line + "\n");
    EXPECT_THAT(problem().text, EndsWith("; what has a unit stands in quotes: " + quoted));
    EXPECT_THAT(problem().text, HasSubstr("djinnd.conf:2: error: this is not TOML: "));
  }
  for (const std::string other :
       {"limit = yes", "limit", "limit = \"1GiB\"\nlimit = 3", "limit: 3MiB"}) {
    write(kMain, "[memory]\n" + other + "\n");
    EXPECT_THAT(problem().text, Not(HasSubstr("quotes"))) << other;
  }
}

TEST_F(ConfigTest, what_cannot_be_looked_at_is_not_taken_for_absent) {
  const auto lead_in_a_circle = [&](const char* path) {
    const fs::path link = root_ + path;
    fs::create_directories(link.parent_path());
    fs::create_symlink(link.filename(), link);
    EXPECT_THAT(problem().text, HasSubstr(root_ + path + ": error: "));
    EXPECT_TRUE(problem().is_error);
    fs::remove(link);
  };
  lead_in_a_circle(kMain);
  lead_in_a_circle("/etc/djinn/djinnd.conf.d");
}

TEST_F(ConfigTest, a_wrong_value_is_an_error_that_says_what_to_write) {
  for (const char* const text : {"memory.limit = \"12 parsecs\"",
                                 "memory.limit = 0",
                                 "memory.limit = \"101%\"",
                                 "memory.limit = \"99999999999TiB\"",
                                 "memory.session_quota = true",
                                 "lane.threads = -1",
                                 "lane.isa = \"sse9\"",
                                 "lane.isa = \"\"",
                                 "lane.isa = 2",
                                 "lane.kernels = \"own\"",
                                 "lane.numerics = \"quick\"",
                                 "lane.numerics = \"\"",
                                 "lane.threads = 1025",
                                 "lane.policy = \"lottery\"",
                                 "lane.policy = \"\"",
                                 "lane.policy = 1",
                                 "worker.hang_timeout = 5",
                                 "worker.hang_timeout = \"1d\"",
                                 "model.keep_alive = \"never\"",
                                 "service.drain_timeout = \"2h\"",
                                 "memory.evict_idle_above = 0",
                                 "memory.evict_all_above = \"101%\"",
                                 "memory = 3.5\nmemory = 4"}) {
    write(kMain, text);
    EXPECT_THAT(problem().text, HasSubstr("djinnd.conf:")) << text;
    EXPECT_TRUE(problem().is_error) << text;
  }
  for (const char* numerics : {"quick", ""}) {
    write(kMain, fmt::format("lane.numerics = \"{}\"", numerics));
    EXPECT_THAT(problem().text, EndsWith("djinnd.conf:1: error: lane.numerics: write \"exact\", "
                                         "\"fast\" or \"fast-only\""));
  }
  write(kMain, "lane.kernels = \"own\"");
  EXPECT_THAT(problem().text, EndsWith("lane.kernels: write \"measured\" or \"standard\""));
  write(kMain, "worker.hang_timeout = \"1d\"");
  EXPECT_THAT(problem().text,
              EndsWith("djinnd.conf:1: error: worker.hang_timeout: write a time from \"100ms\" to "
                       "\"60min\""));
}

TEST_F(ConfigTest, a_value_is_a_string_or_a_whole_number_but_for_devices) {
  for (const char* const value : {"true", "false", "1.5", "2026-01-01", "[]", "[\"/spill\"]"}) {
    for (const Setting& setting : settings()) {
      if (setting.key == "devices") continue;
      write(kMain, fmt::format("\n{} = {}\n", setting.key, value));
      const ConfigProblem found = problem();
      EXPECT_TRUE(found.is_error) << found.text;
      EXPECT_THAT(found.text, EndsWith(fmt::format("djinnd.conf:2: error: {}: write a string or a "
                                                   "whole number",
                                                   setting.key)));
    }
  }
}

TEST_F(ConfigTest, the_threshold_for_idle_models_is_not_above_that_for_all) {
  const std::string drop_in = std::string(kLocal) + "10-a.conf";
  write(kMain, "memory.evict_idle_above = 70\nmemory.evict_all_above = 60\n");
  EXPECT_TRUE(problem().is_error);
  EXPECT_THAT(problem().text, EndsWith("djinnd.conf:2: error: memory.evict_all_above: write at "
                                       "least 70%, which memory.evict_idle_above is"));
  write(kMain, "memory.evict_all_above = 60\nmemory.evict_idle_above = 60\n");
  EXPECT_TRUE(read_config(root_, UnknownKeys::kIgnored).is_valid());
  write(drop_in, "\n\nmemory.evict_idle_above = 61\n");
  EXPECT_THAT(problem().text, EndsWith("10-a.conf:3: error: memory.evict_idle_above: write at most "
                                       "60%, which memory.evict_all_above is"));
  fs::remove(root_ + drop_in);
  // The other one may be standard.
  write(kMain, "memory.evict_all_above = 79\n");
  EXPECT_THAT(problem().text, HasSubstr("djinnd.conf:1: error: memory.evict_all_above"));
  write(kMain, "memory.evict_idle_above = 96\n");
  EXPECT_THAT(problem().text, HasSubstr("djinnd.conf:1: error: memory.evict_idle_above"));
}

TEST_F(ConfigTest, a_directory_in_place_of_a_file_is_an_error) {
  fs::create_directories(root_ + kMain);
  EXPECT_TRUE(problem().is_error);
}

TEST_F(ConfigTest, standards_are_legal_values_or_words) {
  for (const Setting& setting : settings()) {
    Options nowhere;
    const bool is_a_word = setting.key == "memory.spill_directory";
    EXPECT_EQ(setting.apply(setting.standard, nowhere).ok(), !is_a_word) << setting.key;
  }
}

}  // namespace
}  // namespace djinn::daemon
