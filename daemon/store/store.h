// SPDX-License-Identifier: Apache-2.0

// Store: models on disk that have names, for all who may read them.
//
//   PLACE/format                    what the layout is
//   PLACE/blobs/sha256/ab/<64 hex>  the bytes of a file, by their digest; two models with the same
//                                   file share it
//   PLACE/names/<escaped name>      what a name stands for: a Record
//
//   import   make_room(), take_in() in whichever process, add(): the blob is there; publish() when
//            all of a model's are
//   held     what is in use: an import under way, a model in memory. While one lives, garbage
//            collection leaves the blob.
//
// invariant: a blob has the bytes that its name says, or none has the name
// invariant: a name that was published stays until remove(), whatever dies at whichever moment
// invariant: no blob is removed unless every record was read, and none needs it
//
// One process at a time has a store, and one thread at a time calls it: all wait for the disk.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/store/blob_disk.h"
#include "daemon/store/digest.h"
#include "daemon/store/name.h"
#include "daemon/store/reader.h"
#include "daemon/store/record.h"
#include "kernel/base/clock.h"
#include "kernel/base/fd.h"
#include "kernel/base/result.h"

namespace djinn::store {

inline constexpr size_t kNamesMax = 16384;  // garbage collection and lists read all of them

// Destroyed on any thread.
using Held = std::shared_ptr<const Digest>;

struct Blob {
  Fd file;  // for reading
  Held held;
};

struct Listing {
  std::vector<Record> records;  // by name
  std::vector<Error> damaged;   // what is in their place and is none
};

struct Collected {
  uint64_t blobs = 0;
  uint64_t bytes = 0;
};

class Store {
 public:
  // Makes the folder, not those above it, if it is not there. disk and clock outlive the store.
  // Errors: kBusy if another process has it, kUnsupported for another version's.
  static Result<Store> open(BlobDisk& disk, const Clock& clock, std::string place);

  // A file with room for so many bytes, for take_in(). Errors: kOutOfMemory for a full disk.
  Result<Fd> make_room(uint64_t bytes);
  // The file is a blob under the digest that take_in() gave, or the one that there is already is.
  Result<Held> add(const Fd& file, const Digest& digest, uint64_t bytes);

  // The name stands for these files. Errors: kNotFound if the store has not all of them,
  // kAlreadyExists, kLimitExceeded, those of check().
  Status publish(const Record& record, Existing existing = Existing::kRefused);
  // Its blobs go with collect(). A name with a damaged record goes, too. Errors: kNotFound.
  Status remove(const Name& name);

  // Errors: kNotFound, kMalformed.
  [[nodiscard]] Result<Record> record_of(const Name& name) const;
  // What NAME[:TAG], or NAME[:TAG]@sha256:CONTENTS, or else an alias stands for; of several with an
  // alias the last that was published. Errors: kNotFound, the same for what is not there and what
  // the asker may not read; kHashMismatch for a name that stands for other contents now.
  [[nodiscard]] Result<Record> find(std::string_view text, const Asker& asker) const;
  // All, whoever may read them.
  [[nodiscard]] Result<Listing> list() const;

  // Errors: kNotFound, kFileChanged if somebody wrote to it or it was found to be damaged.
  Result<Blob> open_file(const File& file);
  // Files of a record whose bytes are not what it says, or that are not there; they are not opened
  // from then on, and the next import of them mends the store. It reads all of them.
  Result<std::vector<File>> verify(const Record& record);
  // Removes blobs that no name needs, that nobody holds, and that were linked so long ago; and what
  // was left by a process that died. Errors: those of a record that cannot be read.
  Result<Collected> collect(uint64_t grace_s);

 private:
  Store(BlobDisk& disk, const Clock& clock, std::string place, Fd lock)
      : disk_(&disk), clock_(&clock), place_(std::move(place)), lock_(std::move(lock)) {}

  [[nodiscard]] std::string names() const { return place_ + "/names"; }
  [[nodiscard]] std::string blobs() const { return place_ + "/blobs/sha256"; }
  [[nodiscard]] std::string path_of(const Name& name) const;
  [[nodiscard]] std::string folder_of(const Digest& digest) const;
  [[nodiscard]] std::string path_of(const Digest& digest) const;
  Status make_layout();
  Status ensure_folder(const std::string& path);
  Result<Fd> open_blob(const Digest& digest, uint64_t bytes) const;
  Held hold(const Digest& digest);
  // What collect() may remove of a folder of blobs.
  Status collect_folder(const std::string& folder, const std::set<Digest>& needed, uint64_t grace_s,
                        Collected& collected);
  Status remove_unfinished();

  BlobDisk* disk_;
  const Clock* clock_;
  std::string place_;
  Fd lock_;
  std::map<Digest, std::weak_ptr<const Digest>> held_;
};

}  // namespace djinn::store
