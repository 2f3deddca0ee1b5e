// SPDX-License-Identifier: Apache-2.0

// ExtentSource: the seam behind which the extents of a device are made, sealed and freed. djinnd
// holds their descriptors and keeps their accounts; what makes the memory stands behind this, and
// nobody walks around it.
//
//   extent   device memory that one descriptor names (device_pal.h); djinnd maps none
//   use      what an extent is for, and so who may write it and whether it is ever sealed
//
// What djinnd makes beside these is host memory whatever the device: what a session talks through
// (rings, staging slab, state extent, bells), and sealed memfds with content (plans, manifests,
// graphs, records). It does not come from here.
//
// Making is told by a callback, because not every device's extents are made in this process: a
// child may make them, and send their descriptors. Whoever asks looks up in the callback for whom
// the extent was, and frees it where they are gone.
//
// Where extents have no parts, all of one for refs is there from its making on, and is given back
// whole. Sequence groups are sparse all the same where that is the host's memory; elsewhere one has
// the memory of its whole capacity from its making on.
//
// invariant: the bytes were granted before, and stay granted until the memory is free.
// invariant: a callback is called once, on the loop; nothing is called once the source is
// destroyed.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernel/base/fd.h"
#include "kernel/base/result.h"

namespace djinn::daemon {

enum class ExtentUse : uint8_t {
  kRefs,      // of one session; its worker writes it
  kSequence,  // of one sequence group; likewise
  kSlab,      // of one lane, or a chunk of its heap; likewise
  kWeights,   // of one model: its loader writes it, then it is sealed
};

class ExtentSource {
 public:
  using Made = std::function<void(Result<Fd>)>;

  virtual ~ExtentSource() = default;
  // As pal::DeviceProperties says of the device.
  [[nodiscard]] virtual bool extents_have_parts() const = 0;
  [[nodiscard]] virtual bool sequences_have_parts() const { return true; }
  [[nodiscard]] virtual uint64_t granularity_bytes() const = 0;
  // What the host allows its memory, as pal::huge_page_setting() says; empty of a device that has
  // no choice of pages. Asked anew each time.
  [[nodiscard]] virtual std::string huge_page_setting() const = 0;

  // A new extent of so many bytes, all zero. made: called at once, or later. Errors: kOutOfMemory,
  // kLimitExceeded (descriptors), kInvalidArgument (size).
  virtual void create(ExtentUse use, uint64_t bytes, Made made) = 0;

  // Nobody writes the extent from now on, in no process. Errors: kBusy while somebody still may.
  virtual Status seal(const Fd& extent) = 0;
  // Judges a descriptor that outlived the djinnd that sealed it: whether it is a sealed extent of
  // so many bytes. Errors: kInvalidArgument, kOutOfRange.
  [[nodiscard]] virtual Status check_sealed(const Fd& extent, uint64_t bytes) const = 0;

  // Closes extents that nobody else has, which frees their memory. freed: called later.
  virtual void free(std::vector<Fd> extents, std::function<void()> freed) = 0;
  // One that nothing is granted for, or none.
  void free(Fd extent);
  // Gives all memory of these back; they stay, also with whoever else has them, and read as zeros.
  // They are not used once this returns. done: called later, and never before this returns, with
  // whether all of it is free; a sealed extent keeps its memory.
  virtual void decommit(std::span<const Fd> extents, std::function<void(bool)> done) = 0;
};

// Makes an extent of each size, in their order, or none. Errors: as create(). source: outlives it.
void create_all(ExtentSource& source, ExtentUse use, std::vector<uint64_t> sizes,
                std::function<void(Result<std::vector<Fd>>)> made);

}  // namespace djinn::daemon
