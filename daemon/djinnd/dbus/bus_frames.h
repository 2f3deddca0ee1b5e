// SPDX-License-Identifier: Apache-2.0

// BusFrames: what comes from a message bus, on its way to sd-bus, which reads a message whole and
// looks at all of its bytes at once: 0.2 s for one of 24 MiB, and a bus lets its members send more.
//
//   line     of the bus's answers while it gets to know us, ended by "\n"
//   head     the fixed 16 bytes of a message, and its header fields
//   body     its arguments
//
// A message over its limit goes on without its body: who reads its arguments finds none, and
// answers so. One whose head is over it does not go on; nobody's has more than some names.
//
// invariant: what goes on are whole lines and messages within their limit, in their order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace djinn::daemon {

class BusFrames {
 public:
  // Arguments are an id and a few words; to look at so much takes half a millisecond.
  static constexpr uint64_t kCallBytesMax = uint64_t{64} << 10;
  // Answers to us: the largest says which groups a caller is in, of which Linux allows 65,536.
  static constexpr uint64_t kBytesMax = uint64_t{512} << 10;

  // Appends to out what of in goes on. The bytes may be cut anywhere.
  void pass(std::span<const std::byte> in, std::vector<std::byte>& out);

 private:
  enum class Place : uint8_t { kStart, kLine, kHead, kForward, kDiscard };
  std::span<const std::byte> begin(std::span<const std::byte> in);
  std::span<const std::byte> pass_line(std::span<const std::byte> in, std::vector<std::byte>& out);
  std::span<const std::byte> read_head(std::span<const std::byte> in, std::vector<std::byte>& out);
  std::span<const std::byte> pass_rest(std::span<const std::byte> in, std::vector<std::byte>& out);
  void judge(std::vector<std::byte>& out);

  Place place_ = Place::kStart;
  std::vector<std::byte> head_;
  uint64_t forward_bytes_ = 0;  // of this message, still to come
  uint64_t discard_bytes_ = 0;  // behind them
};

}  // namespace djinn::daemon
