// SPDX-License-Identifier: Apache-2.0

// Nodes: a directory of a test like /dev, with nodes of a driver's that can be opened: they lead to
// /dev/null.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <initializer_list>
#include <string>

namespace djinn::pal::cuda {

class Nodes {
 public:
  Nodes(std::initializer_list<const char*> names) {
    std::string name = std::filesystem::temp_directory_path() / "djinn-nodes.XXXXXX";
    directory_ = ::mkdtemp(name.data());
    std::filesystem::permissions(directory_, std::filesystem::perms{0755});
    for (const char* one : names) add(one);
  }
  ~Nodes() { std::filesystem::remove_all(directory_); }
  Nodes(const Nodes&) = delete;
  Nodes& operator=(const Nodes&) = delete;

  void add(const char* name) { std::filesystem::create_symlink("/dev/null", path(name)); }
  [[nodiscard]] const std::string& directory() const { return directory_; }
  [[nodiscard]] std::string path(const char* name) const { return directory_ + "/" + name; }

 private:
  std::string directory_;
};

}  // namespace djinn::pal::cuda
