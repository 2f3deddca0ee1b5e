// SPDX-License-Identifier: Apache-2.0

// The programs that djinnd's tests start. They lie beside the test's own, wherever that was put.
#pragma once

#include <filesystem>
#include <string>

namespace djinn::daemon::testing {

inline std::string program_beside_this(const char* name) {
  return std::filesystem::read_symlink("/proc/self/exe").replace_filename(name).string();
}

inline std::string djinnd_program() {
  return program_beside_this("djinnd");
}

inline std::string loader_program() {
  return program_beside_this("djinn-loader");
}

// testing/fake_worker.cc
inline std::string fake_worker_program() {
  return program_beside_this("djinnd-fake-worker-test");
}

}  // namespace djinn::daemon::testing
