// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/host/cores.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

namespace djinn::daemon {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kNoQuota = std::numeric_limits<uint32_t>::max();

std::vector<std::string> words_of(const std::string& line, char separator) {
  std::vector<std::string> words;
  std::istringstream stream(line);
  for (std::string word; std::getline(stream, word, separator);) words.push_back(std::move(word));
  return words;
}

// Where the groups that bound this process's time are mounted, and which of them is its own.
struct Hierarchy {
  bool is_unified = false;  // version 2
  fs::path mount;
  fs::path root;  // of the hierarchy, which the mount shows
  fs::path own;   // this process's group, from the hierarchy's root on
};

bool has_word(const std::string& list, std::string_view word) {
  const std::vector<std::string> words = words_of(list, ',');
  return std::ranges::find(words, word) != words.end();
}

// Reads the hierarchies' mounts of a line of mountinfo (proc_pid_mountinfo(5)): optional fields
// stand before a dash, and the kind of file system behind it.
std::optional<Hierarchy> mounted(const std::string& line) {
  const std::vector<std::string> words = words_of(line, ' ');
  const auto dash = std::ranges::find(words, "-");
  if (words.size() < 7 || words.end() - dash < 4) return std::nullopt;
  const std::string& kind = dash[1];
  const bool is_unified = kind == "cgroup2";
  if (!is_unified && !(kind == "cgroup" && has_word(dash[3], "cpu"))) return std::nullopt;
  return Hierarchy{is_unified, words[4], words[3], {}};
}

// Finds this process's group in the lines of /proc/self/cgroup: "0::/path" is of version 2, and
// "3:cpu,cpuacct:/path" of version 1.
std::optional<fs::path> own_group(const std::string& root, bool is_unified) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (is_unified ? controllers.empty() : has_word(controllers, "cpu")) {
      return line.substr(second + 1);
    }
  }
  return std::nullopt;
}

std::vector<Hierarchy> hierarchies(const std::string& root) {
  std::vector<Hierarchy> found;
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    std::optional<Hierarchy> one = mounted(line);
    if (!one) continue;
    const auto own = own_group(root, one->is_unified);
    if (!own) continue;
    one->own = *own;
    found.push_back(*std::move(one));
  }
  return found;
}

std::optional<double> number_in(const fs::path& file) {
  std::ifstream stream(file);
  double number = 0;
  if (!(stream >> number)) return std::nullopt;
  return number;
}

// Gives the cores that one group is allowed; nothing where it says nothing. "max", and a negative
// quota of version 1, are no bounds.
std::optional<double> quota_of(const fs::path& group, bool is_unified) {
  double quota = 0;
  double period = 0;
  if (is_unified) {
    std::ifstream stream(group / "cpu.max");
    if (!(stream >> quota >> period)) return std::nullopt;
  } else {
    quota = number_in(group / "cpu.cfs_quota_us").value_or(-1);
    period = number_in(group / "cpu.cfs_period_us").value_or(0);
  }
  if (quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
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
