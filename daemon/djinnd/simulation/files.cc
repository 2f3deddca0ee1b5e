// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/simulation/files.h"

#include <unistd.h>

#include <span>

#include "daemon/djinnd/simulation/machine.h"
#include "kernel/base/assert.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon::simulation {
namespace {

constexpr uint64_t kFiles = 8;
constexpr uint64_t kMiB = uint64_t{1} << 20;

}  // namespace

// Some files have the same bytes, so that sessions that open them may come to share a model.
Files::Files(Machine& machine) {
  for (uint64_t number = 0; number < kFiles; ++number) {
    ModelFile file;
    auto made = pal::make_sealed_memfd("djinn-file", std::as_bytes(std::span(&number, 1)));
    DJINN_ASSERT(made.ok());
    file.fd = *std::move(made);
    file.inode = number + 1;
    file.content = number < 2 || machine.one_in(3) ? machine.below(2) : number;
    file.bytes = (1 + file.content % 4) * kMiB;
    file.on_block_device = machine.one_in(2);
    file.unwritten = !machine.one_in(3);
    files_.push_back(std::move(file));
  }
}

Result<uint64_t> Files::number_of(const Fd& fd) const {
  uint64_t number = 0;
  const ssize_t got = ::pread(fd.get(), &number, sizeof number, 0);
  if (got == ssize_t{sizeof number} && number < files_.size()) return number;
  return Error{ErrorCode::kMalformed, "The descriptor is of no file of the simulation."};
}

void Files::answer() {
  for (ModelFile& file : files_) file.silent = false;
}

}  // namespace djinn::daemon::simulation
