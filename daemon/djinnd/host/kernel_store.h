// SPDX-License-Identifier: Apache-2.0

// KernelStore: what products with matrices were measured to give on this host
// (kernel/base/kernel_table.h). The first worker measures it; all later ones are given it, of this
// djinnd and of those that follow.
//
//   key    what a table is good for: what a rate depends on
//   level  of the workers, whose own may be another one than djinnd's process has: tiles are given
//          to a process that asks. The first one says it
//   file   of the cache directory: lines of the key, of the level, and of the table. One that is
//          damaged is told of in the log and counts for nothing
//
// invariant: the table never changes once there is one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "daemon/djinnd/host/options.h"
#include "daemon/djinnd/loop/work_queue.h"
#include "kernel/base/isa_level.h"
#include "kernel/base/kernel_table.h"

namespace djinn::daemon {

// Loop's thread.
class KernelStore {
 public:
  struct Key {
    std::string cpu;
    IsaLevel level = IsaLevel::kBase;  // of djinnd's process
    uint32_t threads = 0;              // of a lane
    std::string build;
  };

  [[nodiscard]] static Key key_of(const Options& options);

  // directory: made where it is missing; empty: the table is kept by this process alone.
  KernelStore(WorkQueue& work, const std::string& directory, Key key);

  // Takes the table of the file, if it is one of the key. Waits for the disk.
  void read();
  // What a worker of that level measured, or was given. What is new of the first one is kept, by
  // `work`, in a file.
  void take(IsaLevel level, const KernelTable& table);
  // Null: nobody has measured.
  [[nodiscard]] const KernelTable* table() const { return table_ ? &*table_ : nullptr; }
  // Whose table it is, or will be.
  [[nodiscard]] IsaLevel level() const { return level_; }

 private:
  [[nodiscard]] std::string key_text() const;
  [[nodiscard]] std::string path() const;  // empty: none

  WorkQueue& work_;
  const std::string directory_;
  const Key key_;
  IsaLevel level_;
  bool is_told_ = false;  // a worker has said its level
  std::optional<KernelTable> table_;
};

}  // namespace djinn::daemon
