// SPDX-License-Identifier: Apache-2.0

// Spans of bytes as Cap'n Proto has them, and back.
#pragma once

#include <capnp/blob.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "ipc/rpc/gate.capnp.h"

namespace djinn::rpc {

inline std::span<const std::byte> bytes_of(capnp::Data::Reader data) {
  return std::as_bytes(std::span(data.begin(), data.size()));
}
inline capnp::Data::Reader data_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size()};
}
inline void set(Piece::Builder piece, uint64_t offset, std::span<const std::byte> bytes) {
  piece.setOffset(offset);
  piece.setData(data_of(bytes));
}

}  // namespace djinn::rpc
