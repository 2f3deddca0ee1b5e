// SPDX-License-Identifier: Apache-2.0

// Huge pages: blocks of 2 MiB that the processor finds with one entry of its tables, where pages of
// 4 KiB need 512. Who reads gibibytes again and again, as each token reads all weights, reads them
// faster so.
//
//   block     kHugePageBytes of a memfd, from a multiple of that on; it is huge, or 512 small pages
//   setting   what the host allows to shared memory: root's, the same for all programs
//
// The kernel decides at the first touch of a block. Where the setting is "advise" it takes a huge
// page only if that touch is a page fault in a mapping that asked, and never for a write() or
// fallocate(). What is huge stays so for all who map it, at addresses where blocks begin at
// multiples of their size.
//
// invariant: asking costs no memory: only blocks that lie in the mapping as a whole are asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "kernel/base/fd.h"
#include "kernel/base/result.h"
#include "kernel/pal/memfd.h"

namespace djinn::pal {

inline constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;
inline constexpr const char* kHugePageDirectory = "/sys/kernel/mm/transparent_hugepage";

// Inaccessible addresses without memory; those of at least a block begin at a multiple of its size.
// Errors: kInvalidArgument for no bytes, kOutOfMemory.
Result<Mapping> reserve_addresses(uint64_t bytes);

// Asks for huge pages in a writable shared mapping of a memfd's first bytes, before it is touched.
// A kernel that has none is no error, and nothing changes there.
void ask_for_huge_pages(std::span<std::byte> mapped);

// What the host allows to shared memory, as the kernel calls it: "always", "within_size", "advise",
// "never", "deny" or "force"; empty where it does not say. Of the setting for blocks of this size,
// where that does not inherit the general one. Any thread; reads two files of sysfs.
[[nodiscard]] std::string huge_page_setting(const std::string& directory = kHugePageDirectory);

// What the kernel tells of the mappings of this process, in /proc/self/smaps.
class OwnMappings {
 public:
  // A process that confines itself opens before. Where the kernel has no such file, nothing is ever
  // counted.
  static OwnMappings open();

  // How many of the bytes are mapped as huge pages; 0 where the kernel does not say. Walks all
  // mappings: about 10 ms a gibibyte of small pages. Any thread, one at a time.
  [[nodiscard]] uint64_t huge_bytes(std::span<const std::byte> mapped) const;

 private:
  explicit OwnMappings(Fd smaps) noexcept : smaps_(std::move(smaps)) {}

  Fd smaps_;
};

}  // namespace djinn::pal
