// SPDX-License-Identifier: Apache-2.0

#include "kernel/load/hash.h"

#include <openssl/evp.h>

#include <algorithm>
#include <string_view>

namespace djinn::load {
namespace {

Error hash_failed() {
  return {ErrorCode::kSystem, "SHA-256 is not available in this OpenSSL."};
}

void put_number(std::vector<std::byte>& out, uint64_t value) {
  for (int shift = 0; shift < 64; shift += 8) out.push_back(static_cast<std::byte>(value >> shift));
}

void put_text(std::vector<std::byte>& out, std::string_view text) {
  put_number(out, text.size());
  const auto bytes = std::as_bytes(std::span(text));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

void put_numbers(std::vector<std::byte>& out, std::span<const uint64_t> values) {
  put_number(out, values.size());
  for (const uint64_t value : values) put_number(out, value);
}

}  // namespace

void Sha256::Free::operator()(evp_md_ctx_st* context) const {
  EVP_MD_CTX_free(context);
}

Result<Sha256> Sha256::make() {
  std::unique_ptr<evp_md_ctx_st, Free> context(EVP_MD_CTX_new());
  if (!context || EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) != 1) {
    return hash_failed();
  }
  return Sha256(std::move(context));
}

Status Sha256::update(std::span<const std::byte> bytes) {
  if (EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) != 1) return hash_failed();
  return {};
}

Result<Digest> Sha256::finish() {
  Digest digest;
  unsigned written = 0;
  auto* const out = reinterpret_cast<unsigned char*>(digest.data());
  if (EVP_DigestFinal_ex(context_.get(), out, &written) != 1) return hash_failed();
  DJINN_ASSERT(written == digest.size());
  return digest;
}

std::vector<std::byte> canonical_bytes(const srg::ModelManifest& manifest) {
  std::vector<std::byte> out;
  put_text(out, "djinn.model.v1");
  put_numbers(out, manifest.extent_bytes);
  put_number(out, manifest.tensors.size());
  for (const srg::TensorEntry& tensor : manifest.tensors) {
    put_text(out, tensor.name);
    put_number(out, static_cast<uint64_t>(tensor.dtype) | static_cast<uint64_t>(tensor.form) << 8);
    put_numbers(out, tensor.sizes);
    put_number(out, tensor.extent);
    put_number(out, tensor.offset);
    put_number(out, tensor.bytes);
  }
  return out;
}

Result<ModelHasher> ModelHasher::make(const srg::ModelManifest& manifest,
                                      std::span<const std::span<const std::byte>> extents) {
  const bool fits = std::equal(
      extents.begin(), extents.end(), manifest.extent_bytes.begin(), manifest.extent_bytes.end(),
      [](const auto& extent, uint64_t bytes) { return extent.size() == bytes; });
  if (!fits) {
    return Error{ErrorCode::kInvalidArgument, "The extents are not those of the manifest."};
  }
  DJINN_TRY(Sha256 hash, Sha256::make());
  DJINN_CHECK(hash.update(canonical_bytes(manifest)));
  return ModelHasher(std::move(hash), {extents.begin(), extents.end()});
}

Result<bool> ModelHasher::step(uint64_t step_bytes) {
  DJINN_ASSERT(step_bytes > 0);
  while (at_ < left_.size() && left_[at_].empty()) ++at_;
  if (at_ == left_.size()) return false;
  const size_t bytes = std::min<uint64_t>(step_bytes, left_[at_].size());
  DJINN_CHECK(hash_.update(left_[at_].first(bytes)));
  left_[at_] = left_[at_].subspan(bytes);
  return true;
}

Result<Digest> ModelHasher::finish() {
  DJINN_ASSERT(at_ == left_.size());
  return hash_.finish();
}

}  // namespace djinn::load
