// SPDX-License-Identifier: Apache-2.0
#include "kernel/pal/cuda/node_faults.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "kernel/base/fd.h"

namespace djinn::pal::cuda {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "nvidia";

// What makes it, or brings its module.
std::string remedy(std::string_view name) {
  if (name == "nvidia-uvm") {
    return "load the module nvidia-uvm ('nvidia-modprobe -u -c 0', as root)";
  }
  if (name == "nvidiactl") {
    return "there is no NVIDIA GPU, or its module is not loaded ('modprobe nvidia' and "
           "'nvidia-modprobe -c 0', as root)";
  }
  return fmt::format("make it ('nvidia-modprobe -c {}', as root)", name.substr(kPrefix.size()));
}

Error not_permitted(const std::string& path) {
  struct stat info {};
  (void)::stat(path.c_str(), &info);  // zeros, where it cannot be looked at either
  return {ErrorCode::kPermissionDenied,
          fmt::format("{} may not be opened by user {}: it has mode {:04o} and group {}. Give "
                      "djinnd that group ('systemctl edit djinnd', SupplementaryGroups=)",
                      path, ::geteuid(), info.st_mode & 07777, info.st_gid)};
}

// Those of GPUs, as far as there are any.
std::vector<std::string> nodes_of_gpus(const std::string& directory) {
  std::vector<std::string> nodes;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename();
    const bool is_of_gpu = name.starts_with(kPrefix) && name.size() > kPrefix.size() &&
                           name.find_first_not_of("0123456789", kPrefix.size()) == name.npos;
    if (is_of_gpu) nodes.push_back(entry.path());
  }
  std::ranges::sort(nodes);
  return nodes;
}

}  // namespace

Error fault_of_node(const std::string& path, int number) {
  const std::string name = fs::path(path).filename();
  switch (number) {
    case ENOENT:
      return {ErrorCode::kNotFound, fmt::format("{} is missing: {}", path, remedy(name))};
    case ENXIO:
    case ENODEV:
      return {ErrorCode::kNotFound,
              fmt::format("{} has no module behind it: {}", path, remedy(name))};
    case EACCES:
      return not_permitted(path);
    case EPERM:  // what a control group answers
      return {ErrorCode::kPermissionDenied,
              fmt::format("{} is not permitted to this service: install the package djinn-cuda, "
                          "then 'systemctl daemon-reload' and 'systemctl restart djinnd'",
                          path)};
    default:
      return system_error("open " + path, number);
  }
}

std::optional<Error> fault_of_nodes(const std::string& directory) {
  std::vector<std::string> nodes = nodes_of_gpus(directory);
  if (nodes.empty()) nodes.push_back(directory + "/nvidia0");
  nodes.insert(nodes.begin(), directory + "/nvidiactl");
  nodes.push_back(directory + "/nvidia-uvm");
  for (const std::string& path : nodes) {
    if (!Fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK)).valid()) {
      return fault_of_node(path, errno);
    }
  }
  return std::nullopt;
}

}  // namespace djinn::pal::cuda
