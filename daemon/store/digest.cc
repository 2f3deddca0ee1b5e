// SPDX-License-Identifier: Apache-2.0

#include "daemon/store/digest.h"

#include <errno.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace djinn::store {
namespace {

constexpr size_t kHashStepBytes = size_t{1} << 20;

std::optional<unsigned> value_of(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  return std::nullopt;
}

}  // namespace

std::string text_of(const Digest& digest) {
  std::string text;
  for (const std::byte byte : digest) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

std::optional<Digest> digest_from(std::string_view text) {
  Digest digest{};
  if (text.size() != 2 * digest.size()) return std::nullopt;
  for (size_t i = 0; i < digest.size(); ++i) {
    const auto high = value_of(text[2 * i]);
    const auto low = value_of(text[2 * i + 1]);
    if (!high || !low) return std::nullopt;
    digest[i] = static_cast<std::byte>(*high << 4 | *low);
  }
  return digest;
}

Result<Digest> digest_of(std::string_view bytes) {
  DJINN_TRY(load::Sha256 hash, load::Sha256::make());
  DJINN_CHECK(hash.update(std::as_bytes(std::span(bytes))));
  return hash.finish();
}

Result<Digest> digest_of_file(const Fd& file, uint64_t bytes) {
  DJINN_TRY(load::Sha256 hash, load::Sha256::make());
  std::vector<std::byte> step(static_cast<size_t>(std::min<uint64_t>(bytes, kHashStepBytes)));
  for (uint64_t at = 0; at < bytes;) {
    const auto wanted = static_cast<size_t>(std::min<uint64_t>(bytes - at, step.size()));
    const ssize_t got = ::pread(file.get(), step.data(), wanted, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error("read a file of a model", errno);
    if (got == 0) {
      return Error{ErrorCode::kFileChanged, "A file of a model is shorter than it was."};
    }
    DJINN_CHECK(hash.update(std::span(step).first(static_cast<size_t>(got))));
    at += static_cast<uint64_t>(got);
  }
  return hash.finish();
}

}  // namespace djinn::store
