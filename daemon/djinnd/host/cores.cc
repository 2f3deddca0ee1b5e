// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/host/cores.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "daemon/djinnd/loop/proc_files.h"

namespace djinn::daemon {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kNoQuota = std::numeric_limits<uint32_t>::max();

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

bool has_word(std::string_view list, std::string_view word) {
  const std::vector<std::string_view> words = split(list, ',');
  return std::ranges::find(words, word) != words.end();
}

// Where the groups that bound this process's time are mounted, and which of them is its own.
struct Hierarchy {
  bool is_unified = false;  // version 2
  fs::path mount;
  fs::path root;  // of the hierarchy, which the mount shows
  fs::path own;   // this process's group, from the hierarchy's root on
};

// Reads the hierarchy of a line of mountinfo (proc_pid_mountinfo(5)): optional fields stand before
// a dash, and the kind of file system behind it.
std::optional<Hierarchy> mounted(std::string_view line) {
  const std::vector<std::string_view> words = split(line, ' ');
  const auto dash = std::ranges::find(words, "-");
  if (words.size() < 7 || words.end() - dash < 4) return std::nullopt;
  const bool is_unified = dash[1] == "cgroup2";
  if (!is_unified && !(dash[1] == "cgroup" && has_word(dash[3], "cpu"))) return std::nullopt;
  return Hierarchy{is_unified, words[4], words[3], {}};
}

// Finds this process's group in the lines of /proc/self/cgroup: "0::/path" is of version 2, and
// "3:cpu,cpuacct:/path" of version 1.
std::optional<fs::path> own_group(std::string_view groups, bool is_unified) {
  for (const std::string_view line : split(groups, '\n')) {
    const size_t first = line.find(':');
    const size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    if (is_unified ? controllers.empty() : has_word(controllers, "cpu")) {
      return line.substr(second + 1);
    }
  }
  return std::nullopt;
}

std::vector<Hierarchy> hierarchies(const std::string& root) {
  std::vector<Hierarchy> found;
  const std::string groups = read_proc_file((root + "/proc/self/cgroup").c_str());
  const std::string mounts = read_proc_file((root + "/proc/self/mountinfo").c_str());
  for (const std::string_view line : split(mounts, '\n')) {
    std::optional<Hierarchy> one = mounted(line);
    const auto own = one ? own_group(groups, one->is_unified) : std::nullopt;
    if (!own) continue;
    one->own = *own;
    found.push_back(*std::move(one));
  }
  return found;
}

// Gives the cores that one group is allowed; nothing where it says nothing. "max", and a negative
// quota of version 1, are no bounds.
std::optional<double> quota_of(const fs::path& group, bool is_unified) {
  const auto numbers = [&](const char* name) {
    std::vector<uint64_t> found = numbers_in(read_proc_file((group / name).c_str()));
    found.resize(2);
    return found;
  };
  const uint64_t quota = numbers(is_unified ? "cpu.max" : "cpu.cfs_quota_us")[0];
  const uint64_t period = is_unified ? numbers("cpu.max")[1] : numbers("cpu.cfs_period_us")[0];
  if (quota == 0 || period == 0) return std::nullopt;
  return static_cast<double>(quota) / static_cast<double>(period);
}

}  // namespace

uint32_t cores_of_quota(const std::string& root) {
  std::optional<double> least;
  for (const Hierarchy& one : hierarchies(root)) {
    // A container may be shown its own group as the root of what is mounted.
    fs::path below = one.own.lexically_relative(one.root);
    if (below.empty() || *below.begin() == "..") below = ".";
    const fs::path top = root + one.mount.string();
    fs::path group = (top / below).lexically_normal();
    for (;; group = group.parent_path()) {
      const auto quota = quota_of(group, one.is_unified);
      if (quota) least = std::min(least.value_or(*quota), *quota);
      if (group.string().size() <= top.string().size()) break;
    }
  }
  if (!least || *least >= kNoQuota) return kNoQuota;
  return std::max<uint32_t>(1, static_cast<uint32_t>(std::floor(*least)));
}

uint32_t usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (::sched_getaffinity(0, sizeof cores, &cores) != 0) return 1;
  const auto allowed = static_cast<uint32_t>(std::max(1, CPU_COUNT(&cores)));
  return std::min(allowed, cores_of_quota(""));
}

}  // namespace djinn::daemon
