// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/dbus/bus_frames.h"

#include <algorithm>
#include <array>

#include "kernel/base/assert.h"
#include "kernel/base/checked.h"

namespace djinn::daemon {
namespace {

// A message begins as the D-Bus Specification says in "Message Format": byte order, type, flags,
// version, and three numbers: the body's bytes, a serial, the header fields' bytes. Fields are
// padded to 8 bytes.
constexpr size_t kHeadBytes = 16;
constexpr size_t kTypeAt = 1;
constexpr size_t kBodyAt = 4;
constexpr size_t kFieldsAt = 12;
constexpr std::byte kLittleEndian{'l'};
constexpr std::byte kBigEndian{'B'};
constexpr std::byte kMethodCall{1};

uint32_t number_at(std::span<const std::byte> head, size_t at) {
  uint32_t number = 0;
  for (size_t i = 0; i < sizeof number; ++i) {
    const size_t from = head[0] == kLittleEndian ? at + sizeof number - 1 - i : at + i;
    number = number << 8 | std::to_integer<uint32_t>(head[from]);
  }
  return number;
}

void append(std::vector<std::byte>& out, std::span<const std::byte> bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}

}  // namespace

void BusFrames::pass(std::span<const std::byte> in, std::vector<std::byte>& out) {
  while (!in.empty()) {
    switch (place_) {
      case Place::kStart:
        in = begin(in);
        break;
      case Place::kLine:
        in = pass_line(in, out);
        break;
      case Place::kHead:
        in = read_head(in, out);
        break;
      case Place::kForward:
      case Place::kDiscard:
        in = pass_rest(in, out);
        break;
    }
  }
}

// A line of the handshake never begins like a message: its commands are in capitals, and none
// begins with B.
std::span<const std::byte> BusFrames::begin(std::span<const std::byte> in) {
  const bool message = in[0] == kLittleEndian || in[0] == kBigEndian;
  place_ = message ? Place::kHead : Place::kLine;
  return in;
}

std::span<const std::byte> BusFrames::pass_line(std::span<const std::byte> in,
                                                std::vector<std::byte>& out) {
  const auto end = std::ranges::find(in, std::byte{'\n'});
  const bool ends = end != in.end();
  const size_t bytes = static_cast<size_t>(end - in.begin()) + (ends ? 1 : 0);
  append(out, in.first(bytes));
  if (ends) place_ = Place::kStart;
  return in.subspan(bytes);
}

std::span<const std::byte> BusFrames::read_head(std::span<const std::byte> in,
                                                std::vector<std::byte>& out) {
  DJINN_ASSERT(head_.size() < kHeadBytes);
  const size_t bytes = std::min(in.size(), kHeadBytes - head_.size());
  append(head_, in.first(bytes));
  if (head_.size() == kHeadBytes) judge(out);
  return in.subspan(bytes);
}

void BusFrames::judge(std::vector<std::byte>& out) {
  const uint64_t body = number_at(head_, kBodyAt);
  const uint64_t fields = *align_up(number_at(head_, kFieldsAt), 8);
  const uint64_t bytes_max = head_[kTypeAt] == kMethodCall ? kCallBytesMax : kBytesMax;
  const bool fits = kHeadBytes + fields + body <= bytes_max;
  const bool head_fits = kHeadBytes + fields <= bytes_max;
  if (!fits) std::fill_n(head_.begin() + kBodyAt, sizeof(uint32_t), std::byte{0});
  if (head_fits) append(out, head_);
  head_.clear();
  forward_bytes_ = head_fits ? fields + (fits ? body : 0) : 0;
  discard_bytes_ = fields + body - forward_bytes_;
  place_ = Place::kForward;
  if (forward_bytes_ == 0) place_ = discard_bytes_ > 0 ? Place::kDiscard : Place::kStart;
}

std::span<const std::byte> BusFrames::pass_rest(std::span<const std::byte> in,
                                                std::vector<std::byte>& out) {
  const bool forward = place_ == Place::kForward;
  uint64_t& left = forward ? forward_bytes_ : discard_bytes_;
  DJINN_ASSERT(left > 0);
  const auto bytes = static_cast<size_t>(std::min<uint64_t>(in.size(), left));
  if (forward) append(out, in.first(bytes));
  left -= bytes;
  if (left == 0) place_ = discard_bytes_ > 0 ? Place::kDiscard : Place::kStart;
  return in.subspan(bytes);
}

}  // namespace djinn::daemon
