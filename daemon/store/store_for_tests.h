// SPDX-License-Identifier: Apache-2.0

// A folder of a test's own, and what is asked of a store there.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/store/store.h"
#include "kernel/base/clock.h"
#include "kernel/base/file.h"

namespace djinn::store {

// The file has these bytes and no others.
inline void write_file(const std::string& path, std::string_view bytes) {
  const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  EXPECT_TRUE(write_to_disk(file, bytes, path).ok());
}

class PlaceForTests {
 public:
  PlaceForTests() {
    folder_ = testing::TempDir() + "djinn-store.XXXXXX";
    EXPECT_NE(::mkdtemp(folder_.data()), nullptr);
  }
  ~PlaceForTests() { std::filesystem::remove_all(folder_); }
  PlaceForTests(const PlaceForTests&) = delete;
  PlaceForTests& operator=(const PlaceForTests&) = delete;

  [[nodiscard]] std::string store() const { return folder_ + "/store"; }
  [[nodiscard]] std::string names() const { return store() + "/names"; }
  [[nodiscard]] std::string blob(const Digest& digest) const {
    const std::string text = text_of(digest);
    return store() + "/blobs/sha256/" + text.substr(0, 2) + '/' + text;
  }
  // Digests of the blobs, each of which has the bytes that its name says.
  [[nodiscard]] std::set<Digest> whole_blobs() const {
    std::set<Digest> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(store() + "/blobs")) {
      if (!entry.is_regular_file()) continue;
      const auto name = digest_from(entry.path().filename().string());
      const auto bytes = read_regular_file(entry.path(), uint64_t{1} << 30);
      EXPECT_TRUE(name && bytes.ok() && *digest_of(*bytes) == *name) << entry.path();
      if (name) found.insert(*name);
    }
    return found;
  }
  // A file of a user's, at its end after it was written.
  [[nodiscard]] Fd file(std::string_view bytes) const {
    const std::string path = folder_ + "/file";
    write_file(path, bytes);
    auto opened = open_regular_file(path);
    EXPECT_TRUE(opened.ok());
    std::filesystem::remove(path);
    return opened ? *std::move(opened) : Fd();
  }

 private:
  std::string folder_;
};

struct Imported {
  File file;
  Held held;
};

inline Result<Imported> import_file(BlobDisk& disk, Store& store, const PlaceForTests& place,
                                    std::string name, std::string_view bytes) {
  const Fd from = place.file(bytes);
  DJINN_TRY(const Fd to, store.make_room(bytes.size()));
  DJINN_TRY(const Digest digest, take_in(disk, from, to, bytes.size()));
  DJINN_TRY(Held held, store.add(to, digest, bytes.size()));
  return Imported{{std::move(name), digest, bytes.size()}, std::move(held)};
}

using Contents = std::vector<std::pair<std::string, std::string>>;

inline Status import_model(BlobDisk& disk, Store& store, const PlaceForTests& place,
                           std::string_view name, const Contents& contents,
                           Existing existing = Existing::kRefused) {
  DJINN_TRY(const Name parsed, Name::parse(name));
  Record record{.name = parsed, .owner = Owner::of_user(1000)};
  record.readers = {*Reader::parse("local")};
  std::vector<Held> held;
  for (const auto& [file, bytes] : contents) {
    DJINN_TRY(Imported one, import_file(disk, store, place, file, bytes));
    record.files.push_back(std::move(one.file));
    held.push_back(std::move(one.held));
  }
  return store.publish(record, existing);
}

}  // namespace djinn::store
