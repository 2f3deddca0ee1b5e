// SPDX-License-Identifier: Apache-2.0

// What this folder's tests and benchmark share: safetensors files built from parts, and memory to
// load into.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernel/base/random.h"
#include "kernel/load/execute.h"
#include "kernel/load/plan.h"
#include "kernel/load/safetensors.h"
#include "kernel/load/source.h"
#include "kernel/pal/memfd.h"

namespace djinn::load::testing {

// The code of a Result's error, kOk for none: what table tests compare.
template <typename T>
ErrorCode code_of(const Result<T>& result) {
  return result.ok() ? ErrorCode::kOk : result.error().code;
}

inline std::string length_prefix(uint64_t length) {
  std::string prefix;
  for (int shift = 0; shift < 64; shift += 8) prefix.push_back(static_cast<char>(length >> shift));
  return prefix;
}

// A file of a header and so many bytes of data.
inline std::string file_of(std::string_view header, size_t data_bytes) {
  return length_prefix(header.size()) + std::string(header) + std::string(data_bytes, 'x');
}

inline std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

inline std::string random_bytes(Random& random, size_t count) {
  std::string out(count, '\0');
  for (char& c : out) c = static_cast<char>(random.next());
  return out;
}

inline std::string json_list(std::span<const uint64_t> values) {
  std::string out = "[";
  for (const uint64_t value : values) {
    if (out.size() > 1) out += ",";
    out += std::to_string(value);
  }
  return out + "]";
}

class FileBuilder {
 public:
  void add(std::string_view name, std::string_view dtype, std::vector<uint64_t> sizes,
           std::string_view bytes) {
    if (header_.size() > 1) header_ += ",";
    const uint64_t begin = data_.size();
    data_ += bytes;
    const uint64_t offsets[] = {begin, data_.size()};
    header_ += '"' + std::string(name) + "\":{\"dtype\":\"" + std::string(dtype) +
               "\",\"shape\":" + json_list(sizes) + ",\"data_offsets\":" + json_list(offsets) + "}";
  }
  [[nodiscard]] std::string finish() const {
    std::string header = header_ + "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    return length_prefix(header.size()) + header + data_;
  }

 private:
  std::string header_ = "{";
  std::string data_;
};

// A file of the given content under the temporary directory, already unlinked.
inline Fd temporary_file(std::string_view content) {
  const char* const directory = getenv("TMPDIR");
  std::string path = std::string(directory != nullptr ? directory : "/tmp") + "/djinn-load-XXXXXX";
  Fd fd(mkstemp(path.data()));
  EXPECT_TRUE(fd.valid());
  unlink(path.c_str());
  EXPECT_EQ(pwrite(fd.get(), content.data(), content.size(), 0),
            static_cast<ssize_t>(content.size()));
  return fd;
}

// Fresh extents for a manifest, mapped.
struct Extents {
  std::vector<Fd> memfds;
  std::vector<pal::Mapping> mappings;
  std::vector<ExtentTarget> targets;

  explicit Extents(const srg::ModelManifest& manifest) {
    for (const uint64_t bytes : manifest.extent_bytes) {
      memfds.push_back(*pal::make_memfd("extent", bytes, pal::Seals::kSize));
    }
    for (const Fd& memfd : memfds) {
      const uint64_t bytes = manifest.extent_bytes[mappings.size()];
      mappings.push_back(*pal::map_shared(memfd, bytes, pal::Access::kReadWrite));
      targets.push_back({&memfd, mappings.back().bytes()});
    }
  }
  [[nodiscard]] std::string bytes(const srg::TensorEntry& entry) const {
    const auto* const start = mappings[entry.extent].data() + entry.offset;
    return {reinterpret_cast<const char*>(start), entry.bytes};
  }
};

}  // namespace djinn::load::testing
