// SPDX-License-Identifier: Apache-2.0

// KeptModel: what djinnd tells its successor of a resident model, whose descriptors systemd keeps
// meanwhile. It lies in a sealed memfd of its own.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ipc/messages.h"
#include "kernel/base/ids.h"

namespace djinn::ipc {

struct KeptKeepAlive {
  uint64_t user = 0;
  std::optional<uint64_t> ms{};  // nothing: as djinnd is configured
  friend bool operator==(const KeptKeepAlive&, const KeptKeepAlive&) = default;
};

struct KeptNumerics {
  uint64_t user = 0;
  srg::Numerics numerics = srg::Numerics::kExact;
  friend bool operator==(const KeptNumerics&, const KeptNumerics&) = default;
};

struct KeptName {
  uint64_t user = 0;
  std::string label;
  std::string path;  // or empty
  friend bool operator==(const KeptName&, const KeptName&) = default;
};

struct KeptModel {
  std::string boot;  // the machine's boot id
  ModelId id;
  uint64_t domain = 0;  // its owner
  std::string label;
  std::array<uint8_t, 32> plan_hash{};
  std::vector<FileIdentity> files;
  int64_t read_at_ns = 0;  // of all files: wall clock, before the first byte was read
  std::vector<uint64_t> extent_bytes;
  std::vector<uint64_t> pinned_by;  // users
  std::optional<std::array<uint8_t, 32>> sha256;
  uint64_t loaded_wall_ns = 0;
  bool has_plan = false;
  std::vector<KeptKeepAlive> keep_alives;
  std::string path;             // as its owner gave it, or empty; the label likewise
  std::vector<KeptName> names;  // what others call it, at most kModelNamesKept
  std::string device;           // "cpu:0"
  uint64_t huge_bytes = 0;
  std::vector<KeptNumerics> numerics;  // of programs, where a user has said them
  friend bool operator==(const KeptModel&, const KeptModel&) = default;
};

}  // namespace djinn::ipc
