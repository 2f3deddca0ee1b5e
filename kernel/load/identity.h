// SPDX-License-Identifier: Apache-2.0

// Identity: whether two opens are of the same bytes, told from what the file system says of them.
//
//   FileIdentity    what a file was when a load looked at it
//   content         the SHA-256 of a file that nobody can change: a memfd with all seals
//   trust domain    see ARCHITECTURE section 4
//   unwritten       nobody has the file open for writing: without that, its times prove nothing
//
// The comparisons are pure, so that djinnd, which makes no file-system call on a client's
// descriptor, can make them on what a loader reported.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "kernel/base/clock.h"
#include "kernel/base/fd.h"
#include "kernel/base/result.h"
#include "kernel/load/hash.h"

namespace djinn::load {

// File times move in ticks, and a clock may be set: a file written within this time of being read
// may change once more without its ctime showing it.
constexpr uint64_t kSettledNs = 2'000'000'000;

struct FileIdentity {
  uint32_t device_major = 0;
  uint32_t device_minor = 0;
  uint64_t inode = 0;
  uint64_t bytes = 0;
  int64_t mtime_ns = 0;  // since the epoch
  int64_t ctime_ns = 0;
  bool on_block_device =
      false;                // of a local disk's file system: its numbers and times can be trusted
  uint64_t read_at_ns = 0;  // wall clock, before the first byte was read
  std::optional<Digest> content = {};
  // Nobody had it open for writing, and on its file system every later write moves ctime. While
  // somebody has, a page that is mapped and dirty already takes writes that move nothing.
  bool unwritten = false;
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

// Whether the file's bytes come from this host's own disks or memory, so that reading them waits
// for nobody's server. Blocks nobody.
[[nodiscard]] bool always_answers(const Fd& fd, const FileIdentity& file);

// Whether the proof of FileIdentity::unwritten can be had: see lease.h. Blocks nobody. False for
// what overlay and FUSE show, whose writers the kernel does not count here, and for tmpfs, where
// writes through a mapping move no time. Two ways around it are known, both of them only for who
// may write the file: a device that still writes to pages which were mapped, and ext4's
// EXT4_IOC_MOVE_EXT, which exchanges the blocks of two files and moves no time.
[[nodiscard]] bool is_unwritten(const Fd& fd, const FileIdentity& file);

// Judges a descriptor from outside (ARCHITECTURE rule 3) and looks the file up, without asking a
// server to refresh what it knows. Makes system calls that a dead file system can hold up. Errors:
// kInvalidArgument (not a regular file, or opened with O_PATH), kPermissionDenied (not open for
// reading), kSystem.
Result<FileIdentity> identify(const Fd& fd, const Clock& clock);

// Reads all of a file that nobody can change. Nothing for any other, nor for one with holes.
// Errors: kSystem.
Result<std::optional<Digest>> content_of(const Fd& fd, uint64_t bytes);

// The file was not replaced, written, truncated or relabelled between two looks, as far as its
// times tell: everything but read_at_ns, content and unwritten agrees.
[[nodiscard]] bool unchanged(const FileIdentity& before, const FileIdentity& after);

// Whether there are as many files, in the same order, each unchanged, or of the same content where
// both tell it.
[[nodiscard]] bool all_unchanged(std::span<const FileIdentity> before,
                                 std::span<const FileIdentity> after);

// Whether a write after these looks shows in each file's times, or there can be none. It may not
// show for a file that was written just before it was read.
[[nodiscard]] bool were_settled(std::span<const FileIdentity> files);

// Sharing within one trust domain, without a look at the bytes: all are unchanged, and unwritten at
// both looks.
[[nodiscard]] bool same_within_domain(std::span<const FileIdentity> resident,
                                      std::span<const FileIdentity> opened);

// Sharing between trust domains: besides, every file lies on a block device and was settled when
// the resident model's bytes were read.
[[nodiscard]] bool same_across_domains(std::span<const FileIdentity> resident,
                                       std::span<const FileIdentity> opened);

// Whether there are as many files, in the same order, of the same sizes: their bytes may be the
// same.
[[nodiscard]] bool of_same_sizes(std::span<const FileIdentity> resident,
                                 std::span<const FileIdentity> opened);

}  // namespace djinn::load
