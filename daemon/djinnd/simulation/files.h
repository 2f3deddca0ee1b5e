// SPDX-License-Identifier: Apache-2.0

// Files: the files that simulated clients open models of. A file's bytes are its number alone; the
// rest is known here.
#pragma once

#include <cstdint>
#include <vector>

#include "kernel/base/fd.h"
#include "kernel/base/result.h"

namespace djinn::daemon::simulation {

class Machine;

struct ModelFile {
  Fd fd;
  uint64_t inode = 0;    // files with the same one are one file
  uint64_t content = 0;  // what its bytes are
  uint64_t bytes = 0;
  bool on_block_device = false;
  bool unwritten = false;
  bool silent = false;  // reads of it do not return
};

class Files {
 public:
  explicit Files(Machine& machine);

  [[nodiscard]] size_t count() const { return files_.size(); }
  [[nodiscard]] ModelFile& at(uint64_t number) { return files_.at(number); }
  // The number of the file that the descriptor is of. Errors: kMalformed for another.
  [[nodiscard]] Result<uint64_t> number_of(const Fd& fd) const;
  // All answer from now on.
  void answer();

 private:
  std::vector<ModelFile> files_;
};

}  // namespace djinn::daemon::simulation
