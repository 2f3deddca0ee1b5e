// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/host/cores.h"

#include <fmt/os.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <string>

#include "kernel/base/assert.h"

namespace djinn::daemon {
namespace {

constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
constexpr const char* kUnified =
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
constexpr const char* kCpuOfOld =
    "29 23 0:25 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n";

class Cores : public ::testing::Test {
 protected:
  Cores() {
    std::string path = ::testing::TempDir() + "djinn-cores.XXXXXX";
    DJINN_ASSERT(::mkdtemp(path.data()) != nullptr);
    root_ = path;
  }
  ~Cores() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    fmt::output_file(file.string()).print("{}", text);
  }
  [[nodiscard]] uint32_t found() const { return cores_of_quota(root_); }

  std::string root_;
};

TEST_F(Cores, a_machine_that_says_nothing_has_no_quota) {
  EXPECT_EQ(found(), kNone);
  write("/proc/self/cgroup", "0::/a\n");
  write("/proc/self/mountinfo", kUnified);
  EXPECT_EQ(found(), kNone);
  write("/sys/fs/cgroup/a/cpu.max", "max 100000\n");
  EXPECT_EQ(found(), kNone);
}

TEST_F(Cores, a_quota_is_whole_cores_and_at_least_one) {
  write("/proc/self/cgroup", "0::/a\n");
  write("/proc/self/mountinfo", kUnified);
  for (const auto& [quota, cores] : {std::pair{"400000 100000", 4u},
                                     {"350000 100000", 3u},
                                     {"20000 100000", 1u},
                                     {"30000 10000", 3u}}) {
    write("/sys/fs/cgroup/a/cpu.max", quota);
    EXPECT_EQ(found(), cores) << quota;
  }
}

TEST_F(Cores, the_least_of_all_groups_above_binds) {
  write("/proc/self/cgroup", "0::/a/b/c\n");
  write("/proc/self/mountinfo", kUnified);
  write("/sys/fs/cgroup/a/b/c/cpu.max", "max 100000");
  write("/sys/fs/cgroup/a/b/cpu.max", "800000 100000");
  write("/sys/fs/cgroup/a/cpu.max", "200000 100000");
  EXPECT_EQ(found(), 2u);
  write("/sys/fs/cgroup/a/b/c/cpu.max", "100000 100000");
  EXPECT_EQ(found(), 1u);
}

TEST_F(Cores, groups_of_version_1_bind_too) {
  write("/proc/self/cgroup", "9:memory:/x\n1:cpu,cpuacct:/a/b\n0::/\n");
  write("/proc/self/mountinfo", std::string(kUnified) + kCpuOfOld);
  write("/sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us", "-1\n");
  write("/sys/fs/cgroup/cpu/a/b/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(found(), kNone);
  write("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "250000\n");
  write("/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(found(), 2u);
}

// In a container without a namespace of its own for groups, the path is the host's, and the mount
// shows the container's group as its root.
TEST_F(Cores, a_container_sees_its_own_group_as_the_root) {
  write("/proc/self/cgroup", "0::/docker/1234\n");
  write("/proc/self/mountinfo",
        "30 23 0:26 /docker/1234 /sys/fs/cgroup ro,nosuid - cgroup2 cgroup2 rw\n");
  write("/sys/fs/cgroup/cpu.max", "300000 100000\n");
  EXPECT_EQ(found(), 3u);
  write("/proc/self/cgroup", "0::/../elsewhere\n");
  EXPECT_EQ(found(), 3u);
}

TEST_F(Cores, nonsense_binds_nobody) {
  write("/proc/self/cgroup", "nonsense\n0:\n0::/a\n");
  write("/proc/self/mountinfo", std::string("x\n- cgroup2\n1 2 3 4 5 6 7\n") + kUnified);
  for (const char* text : {"", "a b", "1", "0 100000", "100000 0", "-5 100000"}) {
    write("/sys/fs/cgroup/a/cpu.max", text);
    EXPECT_EQ(found(), kNone) << text;
  }
}

TEST_F(Cores, this_process_can_keep_at_least_one_busy) {
  EXPECT_GE(usable_cores(), 1u);
}

}  // namespace
}  // namespace djinn::daemon
