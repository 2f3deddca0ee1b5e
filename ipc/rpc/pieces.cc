// SPDX-License-Identifier: Apache-2.0

#include "ipc/rpc/pieces.h"

namespace djinn::rpc {

void put(MirroredMemory& memory, Piece::Reader piece) {
  const auto bytes = bytes_of(piece.getData());
  if (!memory.has({piece.getOffset(), bytes.size()})) {
    raise(breach("A piece lies outside of the staging slab."));
  }
  require(memory.write(piece.getOffset(), bytes));
}

void fill(capnp::List<Piece>::Builder list, const MirroredMemory& memory,
          std::span<const ipc::StagingRange> ranges) {
  for (unsigned i = 0; i < ranges.size(); ++i) {
    set(list[i], ranges[i].offset, require(memory.read(ranges[i])));
  }
}

}  // namespace djinn::rpc
