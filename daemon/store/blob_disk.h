// SPDX-License-Identifier: Apache-2.0

// BlobDisk: the steps by which a file of a model comes into the store, beside Disk's. A blob is
// made without a name, has its room before its first byte, and is linked once it is whole and on
// the disk: there are no partial ones, even on a full disk.
//
// Its time of modification is kBlobTime, which whoever writes to it changes.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>

#include "daemon/store/digest.h"
#include "kernel/base/disk.h"
#include "kernel/base/fd.h"
#include "kernel/base/result.h"

namespace djinn::store {

inline constexpr time_t kBlobTime = 1;  // seconds since the epoch; 0 is what broken clocks give

// The steps. Errors of each: what the system said; kOutOfMemory for a full disk.
// A file that goes with its last descriptor unless it is linked; for its owner, to read.
Result<Fd> make_unnamed_file(const std::string& folder);
Status reserve_room(const Fd& file, uint64_t bytes);
// All of `from`, which has so many bytes, by reference where the file system can.
Status copy_bytes(const Fd& from, const Fd& to, uint64_t bytes);
// Sets kBlobTime, and waits until all of it is on the disk.
Status seal_blob(const Fd& file);
// kAlreadyExists: something has the name.
Status link_file(const Fd& file, const std::string& path);
Status remove_file(const std::string& path);
// A blob whose bytes are others is marked, and no longer opened.
Status distrust_blob(const Fd& blob);

class BlobDisk : public Disk {
 public:
  virtual Result<Fd> make_unnamed(const std::string& folder) { return make_unnamed_file(folder); }
  virtual Status reserve(const Fd& file, uint64_t bytes) { return reserve_room(file, bytes); }
  virtual Status copy(const Fd& from, const Fd& to, uint64_t bytes) {
    return copy_bytes(from, to, bytes);
  }
  virtual Status seal(const Fd& file) { return seal_blob(file); }
  virtual Status link(const Fd& file, const std::string& path) { return link_file(file, path); }
  virtual Status remove(const std::string& path) { return remove_file(path); }
  virtual Status distrust(const Fd& blob) { return distrust_blob(blob); }
};

// Fills a file that make_unnamed() and reserve() have made, and gives the digest of what it has
// then. This is what takes long, and may hang in a file system of the user's: it is for a process
// that djinnd does not wait for, and needs nothing of the store but these two descriptors. from: at
// any position, which stays. Errors: kInvalidArgument for what is no regular file, kFileChanged if
// its size is another or somebody wrote to it, and those of the steps.
Result<Digest> take_in(BlobDisk& disk, const Fd& from, const Fd& to, uint64_t bytes);

}  // namespace djinn::store
