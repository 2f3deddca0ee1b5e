// SPDX-License-Identifier: Apache-2.0

// The digest of a loaded model: SHA-256 over its manifest and the bytes of its extents, so that two
// models with equal digests have the same tensors under the same names.
//
// Incremental, so that a loader can hash at idle priority, stop between steps, and be killed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernel/base/result.h"
#include "kernel/srg/load_plan.h"

struct evp_md_ctx_st;

namespace djinn::load {

using Digest = std::array<std::byte, 32>;

// Any number of update calls, then finish, once.
class Sha256 {
 public:
  static Result<Sha256> make();
  Status update(std::span<const std::byte> bytes);
  Result<Digest> finish();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  explicit Sha256(std::unique_ptr<evp_md_ctx_st, Free> context) : context_(std::move(context)) {}
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

// The bytes that stand for a manifest in the digest: every field, little-endian, lengths first.
std::vector<std::byte> canonical_bytes(const srg::ModelManifest& manifest);

// Hashes a model in steps of at most step_bytes. extents: the mapped extents, as the manifest says;
// they outlive the hasher and do not change (they may be sealed already).
class ModelHasher {
 public:
  static constexpr uint64_t kStepBytes = uint64_t{1} << 20;  // about 3 ms without SHA instructions

  static Result<ModelHasher> make(const srg::ModelManifest& manifest,
                                  std::span<const std::span<const std::byte>> extents);

  // Hashes the next step; false when nothing is left.
  Result<bool> step(uint64_t step_bytes = kStepBytes);
  // After step gave false.
  Result<Digest> finish();

 private:
  ModelHasher(Sha256 hash, std::vector<std::span<const std::byte>> left)
      : hash_(std::move(hash)), left_(std::move(left)) {}

  Sha256 hash_;
  std::vector<std::span<const std::byte>> left_;
  size_t at_ = 0;
};

}  // namespace djinn::load
