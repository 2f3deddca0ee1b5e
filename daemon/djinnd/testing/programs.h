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

inline std::string mover_program() {
  return program_beside_this("djinn-mover");
}

// testing/lying_mover.cc
inline std::string lying_mover_program() {
  return program_beside_this("djinnd-lying-mover-test");
}

// The folder of the fake driver, for LD_LIBRARY_PATH.
inline std::string fake_cuda_directory() {
  return std::filesystem::path(program_beside_this("x")).parent_path().parent_path() / "fake_cuda";
}

}  // namespace djinn::daemon::testing
